// Operations that treat every element alike: a launch over views of one shape, as vectors in the order of memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/cuda/check.hpp"
#include "base/cuda/divider.cuh"
#include "base/cuda/index.hpp"
#include "base/cuda/vectors.cuh"

namespace rotunda::cuda {

/// The axes that N views of one shape share, outermost first, in the order of the last view's memory and joined as far
/// as the strides of all of them allow. Strides in elements.
template <std::size_t N>
struct FlatAxes {
  std::array<std::int64_t, 4> extent{1, 1, 1, 1};
  std::array<std::array<std::int64_t, 4>, N> stride{};
};

template <std::size_t N>
[[nodiscard]] FlatAxes<N> plan_flat(const std::array<TensorView, N>& views) {
  const TensorView& last = views[N - 1];
  std::array<std::size_t, 4> order{0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if ((last.shape[a] == 1) != (last.shape[b] == 1)) return last.shape[a] == 1;
    return last.stride[a] > last.stride[b];
  });
  FlatAxes<N> axes;
  std::size_t at = 4;
  for (std::size_t i = 4; i-- > 0;) {
    const std::size_t axis = order[i];
    if (last.shape[axis] == 1 && at < 4) continue;
    const auto joins = [&](std::size_t n) { return views[n].stride[axis] == axes.stride[n][at] * axes.extent[at]; };
    bool all = at < 4;
    for (std::size_t n = 0; all && n < N; ++n) all = joins(n);
    if (all) {
      axes.extent[at] *= last.shape[axis];
      continue;
    }
    axes.extent[--at] = last.shape[axis];
    for (std::size_t n = 0; n < N; ++n) axes.stride[n][at] = last.shape[axis] == 1 ? 1 : views[n].stride[axis];
  }
  return axes;
}

/// Whether the inner axis can be walked `count` elements at a time in every view.
template <std::size_t N>
[[nodiscard]] bool takes_vectors(const FlatAxes<N>& axes, const std::array<TensorView, N>& views, int count) {
  for (std::size_t n = 0; n < N; ++n) {
    TensorView joined = views[n];
    std::copy(axes.extent.begin(), axes.extent.end(), joined.shape.begin());
    std::copy(axes.stride[n].begin(), axes.stride[n].end(), joined.stride.begin());
    if (!takes_vectors(joined, count)) return false;
  }
  return true;
}

/// What a kernel needs of FlatAxes: the place of vector number n in each view.
template <class Index, std::size_t N>
struct FlatPlaces {
  Index count = 0;           ///< vectors
  Divider<Index> extent[3];  ///< of axes 1 to 3
  Index stride[N][4];

  FlatPlaces(const FlatAxes<N>& axes, int vector) {
    count = static_cast<Index>(axes.extent[0] * axes.extent[1] * axes.extent[2] * (axes.extent[3] / vector));
    for (int i = 0; i < 3; ++i) extent[i] = Divider<Index>(i == 2 ? axes.extent[3] / vector : axes.extent[i + 1]);
    for (std::size_t n = 0; n < N; ++n) {
      for (std::size_t i = 0; i < 4; ++i) {
        stride[n][i] = static_cast<Index>(axes.stride[n][i]) * static_cast<Index>(i == 3 ? vector : 1);
      }
    }
  }

  __device__ void find(Index n, Index (&offset)[N]) const {
    Index at[4];
#pragma unroll
    for (int i = 3; i > 0; --i) {
      const Index rest = extent[i - 1].quotient(n);
      at[i] = n - rest * extent[i - 1].divisor();
      n = rest;
    }
    at[0] = n;
#pragma unroll
    for (std::size_t v = 0; v < N; ++v) {
      offset[v] = at[0] * stride[v][0] + at[1] * stride[v][1] + at[2] * stride[v][2] + at[3] * stride[v][3];
    }
  }
};

constexpr int kFlatThreads = 256;
constexpr int kFlatUnroll = 4;  // vectors in flight a thread: 8 KiB to 32 KiB a block

/// Op has, for N views: a type Loaded, Loaded load(offset) and store(offset, Loaded).
template <class Op, class Index, std::size_t N>
__global__ void __launch_bounds__(kFlatThreads) flat_kernel(const Op op, const FlatPlaces<Index, N> places) {
  const Index first = static_cast<Index>(blockIdx.x) * (kFlatThreads * kFlatUnroll) + threadIdx.x;
  Index offset[kFlatUnroll][N];
  typename Op::Loaded loaded[kFlatUnroll];
  if (static_cast<Index>(blockIdx.x + std::int64_t{1}) * (kFlatThreads * kFlatUnroll) <= places.count) {
#pragma unroll
    for (int u = 0; u < kFlatUnroll; ++u) {
      places.find(first + u * kFlatThreads, offset[u]);
      loaded[u] = op.load(offset[u]);
    }
#pragma unroll
    for (int u = 0; u < kFlatUnroll; ++u) op.store(offset[u], loaded[u]);
  } else {
    for (Index n = first; n < places.count; n += kFlatThreads) {
      places.find(n, offset[0]);
      op.store(offset[0], op.load(offset[0]));
    }
  }
}

/// Launches Op over the views, which have one shape. make(std::integral_constant<int, V>) makes the Op that works on V
/// elements at a time; V is kVector where the views allow, else 1.
template <int kVector, std::size_t N, class Make>
void launch_flat(const std::array<TensorView, N>& views, IndexWidth width, Stream stream, const char* name,
                 Make&& make) {
  if (views[N - 1].empty()) return;
  const FlatAxes<N> axes = plan_flat(views);
  bool narrow = width == IndexWidth::narrow;
  if (width == IndexWidth::automatic) {
    narrow = true;
    for (const TensorView& view : views) narrow = narrow && fits_narrow({view});
  }
  const auto launch = [&](auto vector) {
    dispatch_width(narrow, [&](auto index) {
      const FlatPlaces<decltype(index), N> places(axes, vector);
      const auto op = make(vector);
      constexpr std::int64_t kBlock = kFlatThreads * kFlatUnroll;
      const auto blocks = static_cast<unsigned>((static_cast<std::int64_t>(places.count) + kBlock - 1) / kBlock);
      flat_kernel<<<blocks, kFlatThreads, 0, native(stream)>>>(op, places);
      check_launch(name);
    });
  };
  if (takes_vectors(axes, views, kVector)) {
    launch(std::integral_constant<int, kVector>{});
  } else {
    launch(std::integral_constant<int, 1>{});
  }
}

}  // namespace rotunda::cuda
