#include <algorithm>
#include <cmath>

#include "rotunda/problem.hpp"

namespace rotunda {
namespace {

using List = std::vector<std::int64_t>;

std::int64_t floored(std::int64_t value, double factor) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(value) * factor));
}

/// Lengths that must not vanish.
std::int64_t shrunk(std::int64_t length, double factor) {
  return length == 0 ? 0 : std::max<std::int64_t>(1, std::llround(static_cast<double>(length) * factor));
}

std::int64_t shrunk_edge(std::int64_t edge, double factor) {
  if (edge == kInfinity || edge == -kInfinity || edge == 0) return edge;
  return edge > 0 ? shrunk(edge, factor) : -shrunk(-edge, factor);
}

void scale_span(std::int64_t& begin, std::int64_t& len, double factor) {
  const std::int64_t end = floored(begin + len, factor);
  begin = floored(begin, factor);
  len = end - begin;
}

void scale(Slice& slice, double factor) {
  scale_span(slice.q_begin, slice.q_len, factor);
  scale_span(slice.k_begin, slice.k_len, factor);
  slice.q_pos = floored(slice.q_pos, factor);
  slice.k_pos = floored(slice.k_pos, factor);
  slice.left = shrunk_edge(slice.left, factor);
  slice.right = shrunk_edge(slice.right, factor);
}

/// Visible lengths no longer than the sequences that hold them.
void clamp_used(List& used, const List& offsets) {
  for (std::size_t i = 0; i < used.size(); ++i) used[i] = std::min(used[i], offsets[i + 1] - offsets[i]);
}

}  // namespace

Problem scaled(Problem problem, double factor) {
  for (List* list :
       {&problem.lens_q, &problem.lens_k, &problem.cu_q, &problem.cu_k, &problem.used_q, &problem.used_k}) {
    for (std::int64_t& value : *list) value = floored(value, factor);
  }
  if (problem.layout == Layout::thd) {  // the rows follow from the offsets
    clamp_used(problem.used_q, problem.cu_q);
    clamp_used(problem.used_k, problem.cu_k);
  } else {
    problem.s_q = shrunk(problem.s_q, factor);
    problem.s_k = shrunk(problem.s_k, factor);
  }
  problem.window = {shrunk_edge(problem.window.left, factor), shrunk_edge(problem.window.right, factor)};
  problem.prefix = shrunk(problem.prefix, factor);
  problem.chunk = shrunk(problem.chunk, factor);
  if (problem.slices) {
    for (Slice& slice : *problem.slices) scale(slice, factor);
  }
  normalize(problem);
  return problem;
}

}  // namespace rotunda
