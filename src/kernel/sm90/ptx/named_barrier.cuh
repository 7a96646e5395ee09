// The sixteen barriers that a thread block has beside those in shared memory. Number 0 is __syncthreads().
#pragma once

namespace rotunda::sm90::ptx {

/// Waits until `threads` threads have come, waiting or not.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Comes to a barrier without waiting, where `condition` holds. Without a branch: wgmma may be in flight.
__device__ __forceinline__ void named_barrier_arrive_if(bool condition, int barrier, int threads) {
  asm volatile(
      "{\n"
      ".reg .pred here;\n"
      "setp.ne.b32 here, %0, 0;\n"
      "@here bar.arrive %1, %2;\n"
      "}" ::"r"(static_cast<int>(condition)),
      "r"(barrier), "r"(threads)
      : "memory");
}

}  // namespace rotunda::sm90::ptx
