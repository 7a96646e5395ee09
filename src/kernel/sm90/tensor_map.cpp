#include "kernel/sm90/tensor_map.hpp"

#include <cudaTypedefs.h>

#include <array>
#include <cstdint>

#include "base/cuda/check.hpp"

namespace rotunda::sm90 {
namespace {

/// The driver's function, found at run time: programs need no driver to link and to start.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    ROTUNDA_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    if (found == nullptr)
      fail(ErrorKind::device, "the CUDA driver has no cuTensorMapEncodeTiled: it is older than 12.0");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

/// Bytes from one element of an axis to the next; an axis of one element is never walked.
std::uint64_t stride_bytes(const TensorView& view, std::size_t axis) {
  if (view.shape[axis] == 1) return kMapAlignment;
  return static_cast<std::uint64_t>(view.stride[axis]) * size_of(view.dtype);
}

template <std::size_t kRank>
CUtensorMap encode(const TensorView& view, const std::array<std::uint64_t, kRank>& extent,
                   const std::array<std::uint64_t, kRank - 1>& stride, const std::array<std::uint32_t, kRank>& box) {
  ROTUNDA_CHECK(!view.empty());
  const auto type = view.dtype == DType::bf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : view.dtype == DType::fp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  std::array<std::uint32_t, kRank> every;
  every.fill(1);
  CUtensorMap map;
  const CUresult result = encoder()(&map, type, kRank, view.data, extent.data(), stride.data(), box.data(),
                                    every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  fail(ErrorKind::device, "cuTensorMapEncodeTiled failed ({}) for {} at {} with strides {}, {}, {} elements",
       static_cast<int>(result), describe(view), view.data, view.stride[0], view.stride[1], view.stride[2]);
}

std::uint64_t extent(const TensorView& view, std::size_t axis) {
  return static_cast<std::uint64_t>(view.shape[axis]);
}

}  // namespace

CUtensorMap map_of_rows(const TensorView& view, int box_rows) {
  const auto columns = static_cast<std::uint32_t>(kChunkBytes / size_of(view.dtype));
  return encode<4>(view, {extent(view, 3), extent(view, 1), extent(view, 2), extent(view, 0)},
                   {stride_bytes(view, 1), stride_bytes(view, 2), stride_bytes(view, 0)},
                   {columns, static_cast<std::uint32_t>(box_rows), 1, 1});
}

bool may_be_mapped(const TensorView& view) {
  bool aligned = reinterpret_cast<std::uintptr_t>(view.data) % kMapAlignment == 0;
  for (std::size_t axis = 0; axis < 3; ++axis) aligned &= stride_bytes(view, axis) % kMapAlignment == 0;
  return aligned && !view.empty();
}

CUtensorMap map_of_chunks(const TensorView& view, int box_rows, int box_chunks) {
  ROTUNDA_CHECK(view.dtype != DType::fp32);
  const std::uint64_t chunks = extent(view, 3) / kChunk;
  ROTUNDA_CHECK(chunks >= 1);
  return encode<5>(view, {kChunk, extent(view, 1), chunks, extent(view, 2), extent(view, 0)},
                   {stride_bytes(view, 1), kChunk * size_of(view.dtype), stride_bytes(view, 2), stride_bytes(view, 0)},
                   {kChunk, static_cast<std::uint32_t>(box_rows), static_cast<std::uint32_t>(box_chunks), 1, 1});
}

CUtensorMap map_of_halves(const TensorView& view, int box_rows, int half_columns) {
  ROTUNDA_CHECK(view.dtype != DType::fp32);
  const auto half = static_cast<std::uint64_t>(half_columns);
  return encode<5>(view, {half, extent(view, 1), 2, extent(view, 2), extent(view, 0)},
                   {stride_bytes(view, 1), half * size_of(view.dtype), stride_bytes(view, 2), stride_bytes(view, 0)},
                   {kChunk, static_cast<std::uint32_t>(box_rows), 1, 1, 1});
}

}  // namespace rotunda::sm90
