#include "kernel/fa4/needs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/fail.hpp"
#include "kernel/fa4/passes.hpp"

namespace rotunda::fa4 {
namespace {

constexpr int kDimStep = 8;                                // TMA: 16 bytes
constexpr std::int64_t kMostRows = std::int64_t{1} << 29;  // kernels count rows and bounds in 32 bits
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;
constexpr std::int64_t kMostPieces = 1 << 16;

Kind kind_of(const Problem& problem, bool backward) {
  if (!backward) return Kind::forward;
  return problem.deterministic ? Kind::deterministic : Kind::backward;
}

const char* to_text(Kind kind) {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::backward: return "backward";
    case Kind::direct: return "direct backward";
    case Kind::deterministic: return "deterministic backward";
  }
  return "?";
}

/// "64, 96, 128, 192/128, 256"
std::string widths(Kind kind, DType dtype) {
  std::vector<std::string> names;
  for (const Exported& kernel : all_exported()) {
    if (kernel.one || kernel.kind != kind || kernel.dtype != dtype) continue;
    names.push_back(kernel.d == kernel.d_v ? fmt::format("{}", kernel.d) : fmt::format("{}/{}", kernel.d, kernel.d_v));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

CallExtents extents_of(const CallShape& call) {
  return {call.batch, call.rows_q, call.rows_k, call.heads_q, call.heads_kv};
}

BackwardPlan backward_plan(const Problem& p, const CallShape& call) {
  const bool whole_keys = call.narrow_dkv && call.init_dkv && p.h_q == p.h_kv;
  return {backward_kernels(p.dtype, p.d, p.d_v, p.deterministic, whole_keys), call.slices, extents_of(call),
          call.init_dq, call.init_dkv};
}

}  // namespace

std::optional<std::string> refuse(const Problem& p) {
  if (p.dtype == DType::fp32) return "fa4 serves bf16 and fp16, not fp32";
  if (p.d % kDimStep != 0 || p.d_v % kDimStep != 0) {
    return fmt::format("fa4 serves head dims that are multiples of {}, not d={} d_v={}", kDimStep, p.d, p.d_v);
  }
  for (const bool backward : {false, true}) {
    const Kind kind = kind_of(p, backward);
    if ((backward && !p.grad) || find_exported(kind, p.dtype, p.d, p.d_v) != nullptr) continue;
    return fmt::format("the fa4 kernels of this build serve head dims up to {} ({} {}), not d={} d_v={}",
                       widths(kind, p.dtype), to_string(p.dtype), to_text(kind), p.d, p.d_v);
  }
  return std::nullopt;
}

std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call) {
  if (std::max(call.rows_q, call.rows_k) >= kMostRows) {
    return fmt::format("fa4 counts rows in 32 bits: at most {} in a buffer, not {}", kMostRows - 1,
                       std::max(call.rows_q, call.rows_k));
  }
  std::int64_t pieces = 0;
  if (call.backward) {
    const BackwardPlan plan = backward_plan(problem, call);
    pieces = plan.work.pieces;
    const int width = std::max(plan.kernel->d, plan.kernel->d_v);
    const std::int64_t most = std::max(plan.work.q.rows, plan.work.k.rows) * width;
    if (most >= kMostElements) {
      return fmt::format("fa4 counts a head's gradients in 32 bits: at most {} numbers, not {}", kMostElements - 1,
                         most);
    }
  } else {
    for (const Launch& launch : forward_launches(call.slices, call.batch, call.rows_q, call.init, call.last)) {
      pieces += static_cast<std::int64_t>(launch.size());
    }
  }
  if (pieces <= kMostPieces) return std::nullopt;
  return fmt::format("fa4 would cut its slices into {} pieces; at most {} are launched", pieces, kMostPieces);
}

const Exported& forward_kernel(DType dtype, std::int64_t d, std::int64_t d_v) {
  const Exported* kernel = find_exported(Kind::forward, dtype, static_cast<int>(d), static_cast<int>(d_v));
  ROTUNDA_CHECK(kernel != nullptr);
  return *kernel;
}

BackwardKernels backward_kernels(DType dtype, std::int64_t d, std::int64_t d_v, bool deterministic, bool whole_keys) {
  const auto find = [&](Kind kind) { return find_exported(kind, dtype, static_cast<int>(d), static_cast<int>(d_v)); };
  BackwardKernels kernels;
  kernels.any = find(deterministic ? Kind::deterministic : Kind::backward);
  if (whole_keys && !deterministic) kernels.direct = find(Kind::direct);
  ROTUNDA_CHECK(kernels.any != nullptr);
  return kernels;
}

std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) {
  if (call.backward) return backward_plan(problem, call).layout.bytes();
  const Exported& kernel = forward_kernel(problem.dtype, problem.d, problem.d_v);
  return ForwardPlan(kernel, call.slices, extents_of(call), problem.d_v, call.init, call.last).layout.bytes();
}

std::string describe_exported() {
  return fmt::format("FlashAttention-4 for compute capability 9.0, head dims up to {} in bf16, {} in fp16",
                     widths(Kind::forward, DType::bf16), widths(Kind::forward, DType::fp16));
}

}  // namespace rotunda::fa4
