#include "kernel/sm90/wide/backward_components.hpp"

#include <algorithm>
#include <tuple>

#include "problem/band.hpp"

namespace rotunda::sm90::wide {
namespace {

/// Joins `from` to `to`, whose hulls then cover both.
void absorb(Component& to, Component& from) {
  const std::int64_t q_end = std::max(to.q_begin + to.q_len, from.q_begin + from.q_len);
  const std::int64_t k_end = std::max(to.k_begin + to.k_len, from.k_begin + from.k_len);
  to.q_begin = std::min(to.q_begin, from.q_begin);
  to.k_begin = std::min(to.k_begin, from.k_begin);
  to.q_len = q_end - to.q_begin;
  to.k_len = k_end - to.k_begin;
  to.slices.insert(to.slices.end(), from.slices.begin(), from.slices.end());
}

/// Sorts by the rows of one side and joins neighbours that share some. Returns whether there were any.
bool join_neighbours(std::vector<Component>& list, std::int64_t Component::*begin, std::int64_t Component::*len) {
  std::sort(list.begin(), list.end(), [&](const Component& a, const Component& b) {
    return std::tie(a.batch, a.*begin) < std::tie(b.batch, b.*begin);
  });
  std::size_t kept = 0;
  for (std::size_t i = 1; i < list.size(); ++i) {
    Component& before = list[kept];
    if (list[i].batch == before.batch && list[i].*begin < before.*begin + before.*len) {
      absorb(before, list[i]);
    } else if (++kept != i) {
      list[kept] = std::move(list[i]);
    }
  }
  const bool joined = kept + 1 < list.size();
  if (joined) list.resize(kept + 1);
  return joined;
}

}  // namespace

std::vector<Component> components_of(std::span<const Slice> slices) {
  std::vector<Component> list;
  for (const Slice& slice : slices) {
    const Slice seen = trim(slice);
    if (seen.q_len > 0) list.push_back({seen.batch, seen.q_begin, seen.q_len, seen.k_begin, seen.k_len, {seen}});
  }
  bool joined = true;
  while (joined) {
    joined = join_neighbours(list, &Component::k_begin, &Component::k_len);
    joined |= join_neighbours(list, &Component::q_begin, &Component::q_len);
  }
  for (Component& one : list) {
    for (Slice& slice : one.slices) {
      slice.q_begin -= one.q_begin;
      slice.k_begin -= one.k_begin;
    }
    // The order of the caller's list must not change a bit.
    std::sort(one.slices.begin(), one.slices.end(), [](const Slice& a, const Slice& b) {
      return std::tie(a.q_begin, a.k_begin, a.q_len, a.k_len) < std::tie(b.q_begin, b.k_begin, b.q_len, b.k_len);
    });
  }
  return list;
}

std::vector<RowSpan> rows_without(const std::vector<Component>& components, std::int64_t batches, std::int64_t rows,
                                  Side side) {
  std::vector<RowSpan> covered;
  for (const Component& one : components) {
    covered.push_back(side == Side::query ? RowSpan{one.batch, one.q_begin, one.q_len}
                                          : RowSpan{one.batch, one.k_begin, one.k_len});
  }
  std::sort(covered.begin(), covered.end(),
            [](const RowSpan& a, const RowSpan& b) { return std::tie(a.batch, a.begin) < std::tie(b.batch, b.begin); });
  std::vector<RowSpan> free;
  auto next = covered.begin();
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    std::int64_t at = 0;
    const auto leave = [&](std::int64_t end) {
      if (end > at) free.push_back({batch, at, end - at});
    };
    for (; next != covered.end() && next->batch == batch; ++next) {
      leave(next->begin);
      at = next->begin + next->len;
    }
    leave(rows);
  }
  return free;
}

}  // namespace rotunda::sm90::wide
