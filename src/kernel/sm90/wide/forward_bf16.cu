#include "kernel/sm90/wide/forward_table.cuh"

namespace rotunda::sm90::wide {

ForwardKernel forward_kernel_bf16(int dim) {
  return forward_kernel_of<__nv_bfloat16>(dim);
}

}  // namespace rotunda::sm90::wide
