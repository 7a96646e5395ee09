#include "base/cuda/strided_copy.hpp"

#include "base/cuda/check.hpp"
#include "base/cuda/copy_elements.hpp"
#include "base/fail.hpp"

namespace rotunda::cuda {
namespace {

// Below this the copy engines slow down (256-byte rows still run at full speed); threads do better.
constexpr std::int64_t kShortestRow = 128;

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
  } else {
    copy_elements(from, to, loops, stream);
  }
}

}  // namespace rotunda::cuda
