// Masks become slices here and nowhere else.
#include <algorithm>
#include <tuple>

#include "base/fail.hpp"
#include "problem/band.hpp"
#include "problem/slice_region.hpp"

namespace rotunda {
namespace {

// The visible part of one sequence (thd) or batch entry (dense), in buffer rows.
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t k_begin = 0, k_len = 0;
};

Sequence sequence_of(const Problem& p, std::int64_t entry) {
  const auto at = static_cast<std::size_t>(entry);
  if (p.layout == Layout::thd) return {0, p.cu_q[at], p.used_q[at], p.cu_k[at], p.used_k[at]};
  return {entry, 0, p.lens_q.empty() ? p.s_q : p.lens_q[at], 0, p.lens_k.empty() ? p.s_k : p.lens_k[at]};
}

// A slice takes 72 bytes and is looked at on every rank; beyond this a plan would take minutes and gigabytes.
constexpr std::size_t kMostSlices = std::size_t{1} << 22;

void add(std::vector<Slice>& slices, const Slice& slice) {
  if (slices.size() == kMostSlices) {
    fail(ErrorKind::unsupported,
         "problem: the mask takes more than {} slices; allowed: fewer batch entries, sequences or chunks", kMostSlices);
  }
  if (const auto seen = canonical(slice)) slices.push_back(*seen);
}

// Rows and keys of a sequence, counted from its first, that only chunk may keep apart.
struct Block {
  std::int64_t q_first = 0, q_end = 0;
  std::int64_t k_first = 0, k_end = 0;
};

// (mask and window, or prefix) in one block: the prefix without a band, the rest with it.
void add_block(std::vector<Slice>& slices, const Problem& p, const Sequence& sequence, const Block& block,
               std::int64_t first_position) {
  const std::int64_t cut = std::clamp(p.prefix, block.k_first, block.k_end);
  Slice slice;
  slice.batch = sequence.batch;
  slice.q_begin = sequence.q_begin + block.q_first;
  slice.q_len = block.q_end - block.q_first;
  slice.q_pos = first_position + block.q_first;
  slice.k_begin = sequence.k_begin + block.k_first;
  slice.k_len = cut - block.k_first;
  slice.k_pos = block.k_first;
  add(slices, slice);
  slice.k_begin = sequence.k_begin + cut;
  slice.k_len = block.k_end - cut;
  slice.k_pos = cut;
  slice.left = p.window.left;
  slice.right = p.window.right;
  add(slices, slice);
}

void add_sequence(std::vector<Slice>& slices, const Problem& p, const Sequence& sequence) {
  if (sequence.q_len == 0 || sequence.k_len == 0) return;
  // The diagonal: query i stands at first_position + i, key j at j.
  const std::int64_t first_position = p.align == Align::bottom_right ? sequence.k_len - sequence.q_len : 0;
  if (p.chunk == 0) {
    add_block(slices, p, sequence, {0, sequence.q_len, 0, sequence.k_len}, first_position);
    return;
  }
  const std::int64_t end_position = first_position + sequence.q_len;
  const std::int64_t first_chunk = std::max<std::int64_t>(0, floor_div(first_position, p.chunk));
  const std::int64_t last_chunk = floor_div(std::min(end_position, sequence.k_len) - 1, p.chunk);
  for (std::int64_t chunk = first_chunk; chunk <= last_chunk; ++chunk) {
    const std::int64_t begin = chunk * p.chunk;                                                        // at most k_len
    const auto cut = [&](std::int64_t end) { return p.chunk > end - begin ? end : begin + p.chunk; };  // no overflow
    const Block block{std::max(begin, first_position) - first_position, cut(end_position) - first_position, begin,
                      cut(sequence.k_len)};
    add_block(slices, p, sequence, block, first_position);
  }
}

bool by_row(const Slice& a, const Slice& b) {
  return std::tie(a.batch, a.q_begin, a.k_begin) < std::tie(b.batch, b.q_begin, b.k_begin);
}

}  // namespace

std::vector<Slice> mask_slices(const Problem& problem) {
  std::vector<Slice> slices;
  if (problem.slices) {
    for (const Slice& slice : *problem.slices) add(slices, slice);
  } else if (problem.s_q > 0 && problem.s_k > 0) {
    for (std::int64_t i = 0; i < problem.b; ++i) add_sequence(slices, problem, sequence_of(problem, i));
  }
  std::stable_sort(slices.begin(), slices.end(), by_row);
  return slices;
}

std::vector<RowSpan> real_query_rows(const Problem& problem) {
  std::vector<RowSpan> spans;
  if (problem.slices) {
    for (const Slice& slice : *problem.slices) spans.push_back({slice.batch, slice.q_begin, slice.q_len});
  } else if (problem.s_q > 0) {
    for (std::int64_t i = 0; i < problem.b; ++i) {
      const Sequence sequence = sequence_of(problem, i);
      spans.push_back({sequence.batch, sequence.q_begin, sequence.q_len});
    }
  }
  std::erase_if(spans, [](const RowSpan& span) { return span.len == 0; });
  std::sort(spans.begin(), spans.end(),
            [](const RowSpan& a, const RowSpan& b) { return std::tie(a.batch, a.begin) < std::tie(b.batch, b.begin); });
  std::vector<RowSpan> merged;
  for (const RowSpan& span : spans) {
    const bool touches =
        !merged.empty() && merged.back().batch == span.batch && merged.back().begin + merged.back().len >= span.begin;
    if (!touches) {
      merged.push_back(span);
    } else {
      merged.back().len = std::max(merged.back().len, span.begin + span.len - merged.back().begin);
    }
  }
  return merged;
}

std::vector<std::int64_t> document_offsets(const Problem& problem, Side side) {
  if (problem.layout == Layout::thd) return side == Side::query ? problem.cu_q : problem.cu_k;
  return {0, side == Side::query ? problem.s_q : problem.s_k};
}

}  // namespace rotunda
