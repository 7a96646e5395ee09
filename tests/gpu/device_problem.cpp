#include "gpu/device_problem.hpp"

#include <bit>
#include <cstring>

#include "base/cuda/strided_copy.hpp"
#include "gpu/device_values.hpp"
#include "support/random_tensors.hpp"

namespace rotunda::testing {
namespace {

/// One number in device memory, zero at first.
template <class T>
class Counter {
 public:
  explicit Counter(const Device& device) : device_(device), memory_(device, sizeof(T)) {
    set_bytes(memory_.data(), 0, sizeof(T), device, {});
  }
  [[nodiscard]] T* get() const { return reinterpret_cast<T*>(memory_.data()); }
  [[nodiscard]] T value() const {
    T result{};
    copy_bytes(&result, memory_.data(), sizeof(T), device_, {});
    synchronize(device_, {});
    return result;
  }

 private:
  Device device_;
  DeviceMemory memory_;
};

const Device kDevice = cuda_device(0);

}  // namespace

Difference difference(const TensorView& got, const TensorView& exact) {
  if (got.empty()) return {};
  const Counter<unsigned> most(kDevice);
  const Counter<unsigned long long> misplaced(kDevice);
  launch_compare(got, exact, most.get(), misplaced.get());
  return {std::bit_cast<float>(most.value()), static_cast<std::int64_t>(misplaced.value())};
}

std::int64_t differing_bits_on_device(const TensorView& a, const TensorView& b) {
  if (a.empty()) return 0;
  const Counter<unsigned long long> differing(kDevice);
  launch_bits(a, b, differing.get());
  return static_cast<std::int64_t>(differing.value());
}

void fill_nearly_normal_on_device(const TensorView& view, std::uint64_t seed, std::uint64_t stream) {
  if (!view.empty()) launch_fill(view, splitmix64(16 * seed + stream));
}

DeviceTensors::DeviceTensors(const Problem& p, std::int64_t rows_q, std::int64_t rows_k, const Device& device)
    : device_(device) {
  const auto tensor = [&](std::int64_t s, int h, int d) { return allocate(p.dtype, p.layout, p.batches(), s, h, d); };
  const auto heads = [&] { return allocate(DType::fp32, Layout::bshd, 1, 1, p.h_q, 1); };
  views_.q = tensor(rows_q, p.h_q, p.d);
  views_.k = tensor(rows_k, p.h_kv, p.d);
  views_.v = tensor(rows_k, p.h_kv, p.d_v);
  if (p.sink == Sink::learnable) views_.sink = heads();
  if (p.grad) views_.dout = tensor(rows_q, p.h_q, p.d_v);
  const std::size_t inputs = memory_.size();
  views_.out = tensor(rows_q, p.h_q, p.d_v);
  views_.lse = allocate(DType::fp32, Layout::bhsd, p.batches(), rows_q, p.h_q, 1);
  if (p.max_logit) views_.max_logit = heads();
  if (p.grad) {
    views_.dq = tensor(rows_q, p.h_q, p.d);
    views_.dk = tensor(rows_k, p.h_kv, p.d);
    views_.dv = tensor(rows_k, p.h_kv, p.d_v);
    if (p.sink == Sink::learnable) views_.dsink = heads();
  }
  for (std::size_t i = inputs; i < memory_.size(); ++i) outputs_.push_back(i);
  poison_outputs();
}

TensorView DeviceTensors::allocate(DType dtype, Layout layout, std::int64_t b, std::int64_t s, std::int64_t h,
                                   std::int64_t d) {
  TensorView view = make_view(nullptr, dtype, layout, b, s, h, d);
  memory_.emplace_back(device_, view.bytes());
  view.data = memory_.back().data();
  set_bytes(memory_.back().data(), 0xff, memory_.back().bytes(), device_, {});
  return view;
}

void DeviceTensors::fill_inputs(const Problem& problem, std::uint64_t seed) {
  // Only real rows get values: NaN stays in padding.
  const auto fill_rows = [&](const TensorView& view, Side side, std::uint64_t stream) {
    const std::vector<bool> visible = visible_rows(problem, side);
    const std::int64_t s = view.rows();
    fill_nearly_normal_on_device(view, seed, stream);
    for (std::int64_t b = 0; b < view.batch(); ++b) {
      for (std::int64_t row = 0; row < s;) {
        if (visible[static_cast<std::size_t>(b * s + row)]) {
          ++row;
          continue;
        }
        std::int64_t end = row;
        while (end < s && !visible[static_cast<std::size_t>(b * s + end)]) ++end;
        launch_nan(view.narrow_batch(b, 1).narrow_rows(row, end - row));
        row = end;
      }
    }
  };
  fill_rows(views_.q, Side::query, 0);
  fill_rows(views_.k, Side::key, 1);
  fill_rows(views_.v, Side::key, 2);
  if (problem.grad) fill_rows(views_.dout, Side::query, 3);
  if (problem.sink == Sink::learnable) fill_nearly_normal_on_device(views_.sink, seed, 4);
}

void DeviceTensors::poison_outputs() {
  for (const std::size_t i : outputs_) set_bytes(memory_[i].data(), 0xff, memory_[i].bytes(), device_, {});
}

void scatter_on_device(const TokenMap& map, int rank, const TensorView& whole, const TensorView& local, int device) {
  std::int64_t row = 0;
  for (const Run& run : map.runs(rank)) {
    cuda::copy(whole.narrow_rows(run.token, run.len), local.narrow_rows(row, run.len), device, {});
    row += run.len;
  }
}

void gather_on_device(const TokenMap& map, int rank, const TensorView& local, const TensorView& whole, int device) {
  std::int64_t row = 0;
  for (const Run& run : map.runs(rank)) {
    cuda::copy(local.narrow_rows(row, run.len), whole.narrow_rows(run.token, run.len), device, {});
    row += run.len;
  }
}

std::vector<std::byte> download(const TensorView& view, TensorView& on_host) {
  // Dense on the device first, then one copy.
  TensorView dense = make_view(nullptr, view.dtype, Layout::bshd, view.batch(), view.rows(), view.heads(), view.dim());
  const std::int64_t bytes = dense.bytes();
  const DeviceMemory memory(kDevice, bytes);
  dense.data = memory.data();
  cuda::copy(view, dense, kDevice.index, {});
  std::vector<std::byte> result(static_cast<std::size_t>(bytes));
  copy_bytes(result.data(), memory.data(), bytes, kDevice, {});
  synchronize(kDevice, {});
  on_host = dense;
  on_host.data = result.data();
  return result;
}

}  // namespace rotunda::testing
