#include "kernel/sm90/wide/forward_table.cuh"

namespace rotunda::sm90::wide {

ForwardKernel forward_kernel_fp16(int dim) {
  return forward_kernel_of<__half>(dim);
}

}  // namespace rotunda::sm90::wide
