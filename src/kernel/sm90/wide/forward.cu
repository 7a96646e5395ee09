#include "kernel/sm90/wide/forward.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/fail.hpp"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/forward_kernels.hpp"
#include "kernel/sm90/wide/shape.cuh"

namespace rotunda::sm90::wide {
namespace {

constexpr double kLog2E = 1.4426950408889634;

/// A launch of as many clusters as asked for, behind the launch before it in the stream: it may begin while that one
/// ends.
class ClusterLaunch {
 public:
  ClusterLaunch(const ForwardKernel& kernel, int clusters, Stream stream) : kernel_(kernel) {
    attributes_[0].id = cudaLaunchAttributeClusterDimension;
    attributes_[0].val.clusterDim = {kCluster, 1, 1};
    attributes_[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[1].val.programmaticStreamSerializationAllowed = 1;
    config_.gridDim = dim3(static_cast<unsigned>(clusters * kCluster));
    config_.blockDim = dim3(static_cast<unsigned>(kernel.threads));
    config_.dynamicSmemBytes = static_cast<std::size_t>(kernel.shared_bytes);
    config_.stream = cuda::native(stream);
    config_.attrs = attributes_;
    config_.numAttrs = 2;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  /// Clusters that the current device runs at once.
  [[nodiscard]] int most_clusters() const {
    int clusters = 0;
    ROTUNDA_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel_.function, &config_));
    return clusters;
  }
  void operator()(const ForwardMaps& maps, const ForwardCall& call) const {
    const void* arguments[] = {&maps, &call};
    ROTUNDA_CUDA(cudaLaunchKernelExC(&config_, kernel_.function, const_cast<void**>(arguments)));
  }

 private:
  const ForwardKernel& kernel_;
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

/// Clusters of this kernel that a device runs at once; the kernel is ready to be launched there. Asked for once.
int ready_clusters(const ForwardKernel& kernel, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> known;
  const std::scoped_lock lock(mutex);
  int& clusters = known[{kernel.function, device}];
  if (clusters > 0) return clusters;
  ROTUNDA_CUDA(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes));
  clusters = ClusterLaunch(kernel, 1, {}).most_clusters();
  if (clusters == 0) fail(ErrorKind::device, "device cuda:{} has no room for a cluster of the sm90 kernel", device);
  return clusters;
}

ForwardKernel kernel_for(const ForwardArgs& args) {
  const int dim = static_cast<int>(std::max(args.q.dim(), args.v.dim()));
  return args.q.dtype == DType::bf16 ? forward_kernel_bf16(dim) : forward_kernel_fp16(dim);
}

ForwardMaps maps_of(const ForwardArgs& args, int value_rows) {
  const bool keys = !args.k.empty() && !args.v.empty();  // without, there is no tile to load
  const TensorView &k = keys ? args.k : args.q, &v = keys ? args.v : args.q;
  const auto chunks_of_map = [&](const TensorView& view) {
    return map_of_chunks(view, value_rows, static_cast<int>(view.dim()) / kChunk);
  };
  return {.q = map_of_rows(args.q, kRows),
          .k = map_of_rows(k, kTileKeys / kCluster),
          .v_rows = map_of_rows(v, value_rows),
          .v_chunks = chunks_of_map(v),
          .v_shifted_chunks = chunks_of_map(shifted_heads(v))};
}

ForwardCall call_of(const ForwardArgs& args, const WorkList& list) {
  return {.list = list,
          .acc = cuda::RowView<float, std::int64_t>(args.acc),
          .lse = cuda::RowView<float, std::int64_t>(args.lse),
          .lse_low = cuda::RowView<float, std::int64_t>(args.lse_low),
          .out = cuda::RowView<std::uint16_t, std::int64_t>(args.out),
          .heads = static_cast<int>(args.q.heads()),
          .key_rows = static_cast<int>(args.k.rows()),
          .value_dim = static_cast<int>(args.v.dim()),
          .k_shift = row_shift(args.k),
          .v_shift = row_shift(args.v),
          .map = args.heads,
          .scale = static_cast<float>(args.scale),
          .unit = static_cast<float>(args.scale * kLog2E),
          .inverse_scale = static_cast<float>(1 / args.scale),
          .max_logit = args.max_logit,
          .init = args.init,
          .last = args.last};
}

/// Pairs of fp32 and eight 16-bit elements are stored at once.
void check_alignment(const TensorView& view, int bytes) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  bool aligned = reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) == 0;
  for (std::size_t axis = 0; axis < 3; ++axis)
    aligned &= view.shape[axis] == 1 || view.stride[axis] * size % bytes == 0;
  ROTUNDA_CHECK(aligned);
}

}  // namespace

std::int64_t forward_workspace_bytes(const CallShape& call) {
  return work_list_bytes(call.batch, call.rows_q);
}

void forward(const ForwardArgs& args, const KernelContext& context) {
  if (args.q.empty() || (args.slices.empty() && !args.init && !args.last)) return;
  ROTUNDA_CHECK(args.slices.empty() || args.device_slices != nullptr);
  ROTUNDA_CHECK(static_cast<std::int64_t>(context.workspace.size()) >= work_list_bytes(args.q.batch(), args.q.rows()));
  if (args.last) check_alignment(args.out, 16);
  if (!args.last || !args.init) check_alignment(args.acc, 8);
  const ForwardKernel kernel = kernel_for(args);
  const int most = ready_clusters(kernel, context.device.index);
  const WorkList list = make_work_list(args, context.workspace.data(), context.stream);
  const std::int64_t items = static_cast<std::int64_t>(list.block_count) * args.q.heads();
  const int clusters = static_cast<int>(std::min<std::int64_t>(most, items));
  ClusterLaunch(kernel, clusters, context.stream)(maps_of(args, kernel.value_rows), call_of(args, list));
}

}  // namespace rotunda::sm90::wide
