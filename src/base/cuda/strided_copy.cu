#include "base/cuda/strided_copy.hpp"

#include "base/cuda/check.hpp"
#include "base/loops.hpp"

namespace rotunda::cuda {
namespace {

// Below this the copy engines slow down (256-byte rows still run at full speed); threads do better.
constexpr std::int64_t kShortestRow = 128;
constexpr int kThreads = 256;
// Enough to fill a device; more would only wait. A peer's memory needs no more than this to saturate the link.
constexpr std::int64_t kMostBlocks = 2048;

template <class T>
__global__ void __launch_bounds__(kThreads) copy_elements(const T* from, T* to, Loops loops, std::int64_t count) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count;
       n += std::int64_t{gridDim.x} * kThreads) {
    std::int64_t rest = n, source = 0, target = 0;
#pragma unroll
    for (int axis = 3; axis >= 0; --axis) {
      const std::int64_t i = rest % loops[axis].extent;
      rest /= loops[axis].extent;
      source += i * loops[axis].from;
      target += i * loops[axis].to;
    }
    to[target] = from[source];
  }
}

template <class T>
void launch(const TensorView& from, const TensorView& to, const Loops& loops, Stream stream) {
  const std::int64_t count = to.elements();
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
  copy_elements<<<blocks, kThreads, 0, native(stream)>>>(static_cast<const T*>(from.data), static_cast<T*>(to.data),
                                                         loops, count);
  check_launch("copy_elements");
}

/// Rows of the two inner loops as 2-D copies, one for each turn of the outer ones.
void copy_rows(const TensorView& from, const TensorView& to, const Loops& loops, Stream stream) {
  const auto size = static_cast<std::int64_t>(size_of(to.dtype));
  const auto& [x, y, z, inner] = loops;
  const auto width = static_cast<std::size_t>(inner.extent * size);
  for (std::int64_t i = 0; i < x.extent; ++i) {
    for (std::int64_t j = 0; j < y.extent; ++j) {
      const auto* source = static_cast<const std::byte*>(from.data) + (i * x.from + j * y.from) * size;
      auto* target = static_cast<std::byte*>(to.data) + (i * x.to + j * y.to) * size;
      if (z.extent == 1) {
        ROTUNDA_CUDA(cudaMemcpyAsync(target, source, width, cudaMemcpyDefault, native(stream)));
      } else {
        ROTUNDA_CUDA(cudaMemcpy2DAsync(target, static_cast<std::size_t>(z.to * size), source,
                                       static_cast<std::size_t>(z.from * size), width,
                                       static_cast<std::size_t>(z.extent), cudaMemcpyDefault, native(stream)));
      }
    }
  }
}

}  // namespace

void copy(const TensorView& from, const TensorView& to, int device, Stream stream) {
  if (from.shape != to.shape || from.dtype != to.dtype) {
    fail(ErrorKind::internal, "copy of {} to {}: shapes and dtypes must be equal", rotunda::describe(from),
         rotunda::describe(to));
  }
  if (to.empty() || (from.data == to.data && from.stride == to.stride)) return;
  const CurrentDevice current(device);
  const Loops loops = plan_loops(from, to);
  const Axis& inner = loops[3];
  const std::int64_t row = inner.extent * static_cast<std::int64_t>(size_of(to.dtype));
  const bool contiguous = inner.from == 1 && inner.to == 1;
  const bool one_row = row == to.elements() * static_cast<std::int64_t>(size_of(to.dtype));
  // 2-D copies need pitches that are no shorter than a row: not so where a view repeats memory.
  const bool pitched = loops[2].extent == 1 || (loops[2].from >= inner.extent && loops[2].to >= inner.extent);
  if (contiguous && pitched && (one_row || row >= kShortestRow)) {
    copy_rows(from, to, loops, stream);
  } else if (size_of(to.dtype) == 4) {
    launch<std::uint32_t>(from, to, loops, stream);
  } else {
    launch<std::uint16_t>(from, to, loops, stream);
  }
}

}  // namespace rotunda::cuda
