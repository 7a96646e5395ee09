// Elementwise on a CUDA device.
#include "kernel/elementwise/elementwise.hpp"
#include "base/fail.hpp"

#include "base/cuda/check.hpp"
#include "kernel/elementwise/cuda/operations.hpp"

namespace rotunda {
namespace {

using cuda::CurrentDevice;
using cuda::IndexWidth;

class CudaElementwise final : public Elementwise {
 public:
  CudaElementwise(int device, Stream stream) : device_(device), stream_(stream) {}

  void fill(const TensorView& to, float value) const override {
    const CurrentDevice current(device_);
    cuda::fill(to, value, IndexWidth::automatic, stream_);
  }
  void convert(const TensorView& from, const TensorView& to) const override {
    if (from.shape != to.shape) {
      fail(ErrorKind::internal, "convert of {} to {}: shapes must be equal", describe(from), describe(to));
    }
    const CurrentDevice current(device_);
    cuda::convert(from, to, IndexWidth::automatic, stream_);
  }
  void add(const TensorView& from, const TensorView& to, const TensorView& low) const override {
    const CurrentDevice current(device_);
    cuda::add(from, to, low, IndexWidth::automatic, stream_);
  }
  void row_dot(const TensorView& out, const TensorView& dout, const TensorView& delta) const override {
    const CurrentDevice current(device_);
    cuda::row_dot(out, dout, delta, IndexWidth::automatic, stream_);
  }
  void finish_with_sink(const RowState& state, const TensorView& out, const TensorView& sink,
                        const RowList& rows) const override {
    const CurrentDevice current(device_);
    cuda::finish_with_sink(state, out, sink, rows, stream_);
  }
  void fill_sink(const TensorView& lse, const TensorView& sink, const RowList& rows) const override {
    const CurrentDevice current(device_);
    cuda::fill_sink(lse, sink, rows, stream_);
  }
  void sink_gradient(const TensorView& lse, const TensorView& delta, const TensorView& sink, const RowList& rows,
                     const TensorView& dsink) const override {
    const CurrentDevice current(device_);
    cuda::sink_gradient(lse, delta, sink, rows, dsink, stream_);
  }
  void row_max(const TensorView& from, const TensorView& to) const override {
    const CurrentDevice current(device_);
    cuda::row_max(from, to, stream_);
  }

 private:
  int device_;
  Stream stream_;
};

}  // namespace

std::unique_ptr<Elementwise> cuda_elementwise(const Device& device, Stream stream) {
  return std::make_unique<CudaElementwise>(device.index, stream);
}

}  // namespace rotunda
