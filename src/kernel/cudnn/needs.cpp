#include "kernel/cudnn/needs.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "kernel/cudnn/passes.hpp"

namespace rotunda::cudnn {
namespace {

/// Where tensors would lie while a call is only measured. Nothing there is touched.
void* nowhere() {
  return reinterpret_cast<void*>(std::uintptr_t{1} << 20);
}

/// Statistics with strides that cuDNN can't take, so that room for a dense copy is counted.
TensorView spread_statistics(std::int64_t batch, std::int64_t rows, std::int64_t heads) {
  TensorView view = make_view(nowhere(), DType::fp32, Layout::bshd, batch, rows, heads, 1);
  for (std::int64_t& stride : view.stride) stride *= 2;
  return view;
}

/// Which query head comes first is not known when a plan is made: all that fit the number of KV heads.
std::vector<HeadMap> possible_heads(const Problem& problem, const CallShape& call) {
  const int group = problem.h_q / problem.h_kv;
  std::vector<HeadMap> maps;
  for (int first = 0; first < group; ++first) {
    if ((first + call.heads_q - 1) / group + 1 == call.heads_kv) maps.push_back({group, first, 0});
  }
  if (maps.empty()) maps.push_back({group, 0, 0});
  return maps;
}

}  // namespace

void rehearse(const Problem& p, const CallShape& call, const HeadMap& heads, const std::vector<GroupedCall>& calls,
              Operations& operations, Strides strides) {
  const int device = call.device.is_cuda() ? call.device.index : 0;
  // Heads of a wider buffer: twice as many lie there.
  const int spread = strides == Strides::spread ? 2 : 1;
  const auto view = [&](DType dtype, std::int64_t rows, int count, std::int64_t dim) {
    return make_view(nowhere(), dtype, p.layout, call.batch, rows, spread * count, dim).narrow_heads(0, count);
  };
  const auto q_view = [&](DType dtype, std::int64_t dim) { return view(dtype, call.rows_q, call.heads_q, dim); };
  const auto k_view = [&](DType dtype, std::int64_t dim) { return view(dtype, call.rows_k, call.heads_kv, dim); };
  const TensorView lse = spread_statistics(call.batch, call.rows_q, call.heads_q);
  if (!call.backward) {
    ForwardArgs args;
    args.q = q_view(p.dtype, p.d);
    args.k = k_view(p.dtype, p.d);
    args.v = k_view(p.dtype, p.d_v);
    args.out = q_view(p.dtype, p.d_v);
    args.acc = q_view(DType::fp32, p.d_v);
    args.lse = lse;
    args.heads = heads;
    args.scale = p.scale;
    args.init = call.init;
    args.last = call.last;
    forward(args, calls, device, operations);
    return;
  }
  BackwardArgs args;
  args.q = q_view(p.dtype, p.d);
  args.k = k_view(p.dtype, p.d);
  args.v = k_view(p.dtype, p.d_v);
  args.dout = args.out = q_view(p.dtype, p.d_v);
  args.lse = lse;
  args.dq = q_view(call.narrow_dq ? p.dtype : DType::fp32, p.d);
  args.dk = k_view(call.narrow_dkv ? p.dtype : DType::fp32, p.d);
  args.dv = k_view(call.narrow_dkv ? p.dtype : DType::fp32, p.d_v);
  args.heads = heads;
  args.scale = p.scale;
  args.init_dq = call.init_dq;
  args.init_dkv = call.init_dkv;
  args.deterministic = p.deterministic;
  backward(args, calls, device, operations);
}

std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call, const SavedDevice* saved) {
  const Grouping grouping = group_slices(call.slices);
  if (grouping.refusal) return grouping.refusal;
  try {
    for (const HeadMap& heads : possible_heads(problem, call)) {
      Measurement measurement(Measurement::Workspace::left_out, saved);
      rehearse(problem, call, heads, grouping.calls, measurement, Strides::packed);
      if (measurement.refusal) return measurement.refusal;
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported) throw;
    return error.what();
  }
  return std::nullopt;
}

std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) {
  const Grouping grouping = group_slices(call.slices);
  std::int64_t most = 0;
  for (const HeadMap& heads : possible_heads(problem, call)) {
    Measurement packed(Measurement::Workspace::counted);
    rehearse(problem, call, heads, grouping.calls, packed, Strides::packed);
    Measurement spread(packed.library_bytes);  // only the strides of its inputs differ
    rehearse(problem, call, heads, grouping.calls, spread, Strides::spread);
    most = std::max({most, packed.scratch.bytes_needed(), spread.scratch.bytes_needed()});
  }
  return most;
}

}  // namespace rotunda::cudnn
