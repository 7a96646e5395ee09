// Tensors that lie on the host and on a CUDA device, for comparing what is computed there.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/memory.hpp"
#include "kernel/elementwise/elementwise.hpp"
#include "rotunda/device.hpp"
#include "support/random_tensors.hpp"

namespace rotunda::testing {

/// Skips where there is no device; else device 0 and a stream of it.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
    owned_ = OwnedStream(device);
  }
  [[nodiscard]] rotunda::Stream stream() const { return owned_.get(); }

  Device device = cuda_device(0);

 private:
  OwnedStream owned_;
};

/// Where a tensor lies: `gap` unused elements behind each [dim] vector and `lead` before the first.
struct Form {
  Layout layout = Layout::bshd;
  std::int64_t b = 1, s = 1, h = 1, d = 1, gap = 0, lead = 0;

  [[nodiscard]] Form with_dim(std::int64_t dim) const { return {layout, b, s, h, dim, 0, 0}; }
};

inline std::ostream& operator<<(std::ostream& out, const Form& f) {
  return out << to_string(f.layout) << " b=" << f.b << " s=" << f.s << " h=" << f.h << " d=" << f.d << " gap=" << f.gap
             << " lead=" << f.lead;
}

/// Sizes around every edge of the kernels: vectors, tails, misaligned starts, one and no element, several blocks, tiles
/// of rows and heads with a last one that is not full.
[[nodiscard]] inline std::vector<Form> forms() {
  using enum Layout;
  return {{bshd, 2, 17, 3, 128},       {sbhd, 3, 5, 2, 64, 8},    {bhsd, 2, 33, 4, 96},      {thd, 1, 41, 5, 40},
          {bshd, 1, 9, 2, 1},          {bshd, 2, 9, 3, 7},        {sbhd, 2, 3, 2, 512},      {bhsd, 1, 7, 2, 257},
          {bshd, 1, 6, 2, 64, 3},      {bhsd, 1, 6, 2, 64, 0, 1}, {sbhd, 2, 6, 2, 16, 4, 8}, {bshd, 1, 0, 2, 8},
          {bshd, 0, 4, 2, 8},          {bshd, 1, 1, 1, 1},        {bshd, 2, 301, 5, 72},     {bhsd, 2, 1030, 3, 192, 8},
          {sbhd, 1, 1, 130, 24, 0, 4}, {bshd, 1, 700, 1, 1},      {bshd, 1, 130, 1, 320},    {bshd, 1, 4, 0, 8},
          {bshd, 3, 37, 5, 8},         {bhsd, 2, 21, 3, 200},     {sbhd, 3, 67, 3, 512},     {bhsd, 1, 40, 7, 5},
          {bshd, 2, 131, 16, 40},      {thd, 1, 131, 6, 40},      {bshd, 2, 70, 4, 40, 3}};
}

/// A tensor on both sides. Starts as NaN everywhere (bytes 0xff), gaps included.
class Mirror {
 public:
  Mirror(const Device& device, DType dtype, const Form& form)
      : Mirror(device, make_view(nullptr, dtype, form.layout, form.b, form.s, form.h, form.d + form.gap), form.lead) {
    host_.shape[3] = device_.shape[3] = fetched_.shape[3] = form.d;
  }
  /// A view's strides over fresh memory, `lead` elements from its begin.
  Mirror(const Device& device, const TensorView& view, std::int64_t lead = 0) : where_(device) {
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    std::int64_t reach = 1;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (view.shape[axis] > 0) reach += (view.shape[axis] - 1) * view.stride[axis];
    }
    bytes_ = (lead + reach) * size;
    for (HostBuffer* buffer : {&host_memory_, &fetched_memory_}) {
      *buffer = HostBuffer(bytes_);
      std::memset(buffer->data(), 0xff, static_cast<std::size_t>(bytes_));
    }
    device_memory_ = DeviceMemory(device, bytes_);
    host_ = device_ = fetched_ = view;
    host_.data = host_memory_.data() + lead * size;
    fetched_.data = fetched_memory_.data() + lead * size;
    device_.data = device_memory_.data() + lead * size;
  }

  [[nodiscard]] const TensorView& host() const { return host_; }
  [[nodiscard]] const TensorView& device() const { return device_; }
  /// What fetch() brought.
  [[nodiscard]] const TensorView& fetched() const { return fetched_; }

  void randomize(std::uint64_t seed, double gain = 1) const {
    fill_nearly_normal(host_, seed, rotunda::testing::Stream::q, gain);
  }
  void upload(rotunda::Stream stream) const { copy_bytes(device_.data, host_.data, bytes_from_data(), where_, stream); }
  void fetch(rotunda::Stream stream) const {
    copy_bytes(fetched_memory_.data(), device_memory_.data(), bytes_, where_, stream);
    synchronize(where_, stream);
  }
  /// All bytes of both sides, gaps included.
  void upload_all(rotunda::Stream stream) const {
    copy_bytes(device_memory_.data(), host_memory_.data(), bytes_, where_, stream);
  }
  /// From the first element to the end of the memory.
  [[nodiscard]] std::int64_t bytes_from_data() const {
    return bytes_ - (static_cast<std::byte*>(host_.data) - host_memory_.data());
  }
  /// Elements that belong to no row are still what they were.
  void expect_gaps_untouched() const {
    std::vector<bool> covered(static_cast<std::size_t>(bytes_), false);
    const auto size = static_cast<std::int64_t>(size_of(fetched_.dtype));
    for_each_element(fetched_, [&](auto b, auto row, auto head, auto dim) {
      const std::int64_t at = b * fetched_.stride[0] + row * fetched_.stride[1] + head * fetched_.stride[2] + dim;
      const std::int64_t begin = static_cast<std::byte*>(fetched_.data) - fetched_memory_.data() + at * size;
      for (std::int64_t i = begin; i < begin + size; ++i) covered[static_cast<std::size_t>(i)] = true;
    });
    for (std::int64_t i = 0; i < bytes_; ++i) {
      const bool touched = fetched_memory_.data()[i] != std::byte{0xff};
      ASSERT_TRUE(covered[static_cast<std::size_t>(i)] || !touched) << "byte " << i << " of a gap was written";
    }
  }

 private:
  Device where_;
  std::int64_t bytes_ = 0;
  HostBuffer host_memory_, fetched_memory_;
  DeviceMemory device_memory_;
  TensorView host_, device_, fetched_;
};

/// Row statistics [batch, row, head, 1] in the library's order.
[[nodiscard]] inline Mirror row_mirror(const Device& device, const Form& form) {
  return {device, make_row_view(nullptr, form.b, form.s, form.h)};
}

/// A list in the device's memory; alive as long as this.
template <class T>
class DeviceList {
 public:
  DeviceList(const Device& device, std::span<const T> list, rotunda::Stream stream)
      : memory_(device, static_cast<std::int64_t>(std::max<std::size_t>(list.size_bytes(), 1))) {
    copy_bytes(memory_.data(), list.data(), static_cast<std::int64_t>(list.size_bytes()), device, stream);
  }
  [[nodiscard]] const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }

 private:
  DeviceMemory memory_;
};

/// got = want element by element, NaN where NaN is wanted; differences up to relative·|want| + absolute.
inline void expect_equal(const TensorView& got, const TensorView& want, double relative, double absolute = 0) {
  int shown = 0;
  for_each_element(want, [&](auto b, auto row, auto head, auto dim) {
    const double x = read(got, b, row, head, dim);
    const double y = read(want, b, row, head, dim);
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    if (std::abs(x - y) <= relative * std::abs(y) + absolute) return;
    if (shown++ < 3) {
      ADD_FAILURE() << "[" << b << ", " << row << ", " << head << ", " << dim << "]: " << x << ", wanted " << y;
    }
  });
  EXPECT_EQ(shown, 0) << "elements differ";
}

/// Two roundings of a dtype.
[[nodiscard]] inline double rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::fp16 ? 0x1p-10 : 0x1p-22;
}

}  // namespace rotunda::testing
