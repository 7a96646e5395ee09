#include "kernel/grouping.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "problem/band.hpp"

namespace rotunda {
namespace {

/// A slice cut down to what it sees; low and high are differences column - row that occur.
using Piece = BandedRectangle;

std::int64_t pairs_of(const SliceRegion& r) {
  return visible_pairs({.q_begin = r.q_begin,
                        .q_len = r.q_end - r.q_begin,
                        .k_begin = r.k_begin,
                        .k_len = r.k_end - r.k_begin,
                        .q_pos = r.q_begin,
                        .k_pos = r.k_begin,
                        .left = -r.low,
                        .right = r.high});
}

std::vector<Piece> pieces_of(std::span<const Slice> slices) {
  std::vector<Piece> pieces;
  for (const Slice& slice : slices) {
    auto region = slice_region(slice);
    if (!region) continue;
    region->low = std::max(region->low, region->k_begin - (region->q_end - 1));
    region->high = std::min(region->high, region->k_end - 1 - region->q_begin);
    pieces.push_back({slice.batch, *region, pairs_of(*region)});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.batch, a.region.q_begin, a.region.k_begin, a.region.low) <
           std::tie(b.batch, b.region.q_begin, b.region.k_begin, b.region.low);
  });
  return pieces;
}

SliceRegion bounds(const SliceRegion& a, const SliceRegion& b) {
  return {std::min(a.q_begin, b.q_begin), std::max(a.q_end, b.q_end), std::min(a.k_begin, b.k_begin),
          std::max(a.k_end, b.k_end),     std::min(a.low, b.low),     std::max(a.high, b.high)};
}

/// Pieces share no pair, and lie within the banded rectangle around them: they are it where it has as many pairs.
std::optional<Piece> join(const Piece& a, const Piece& b) {
  const auto apart = [](std::int64_t begin, std::int64_t end, std::int64_t other_begin, std::int64_t other_end) {
    return end < other_begin || other_end < begin;
  };
  const SliceRegion &r = a.region, &s = b.region;
  if (a.batch != b.batch || apart(r.q_begin, r.q_end, s.q_begin, s.q_end) ||
      apart(r.k_begin, r.k_end, s.k_begin, s.k_end)) {
    return std::nullopt;  // a row or key between them that nothing sees
  }
  const Piece both = {a.batch, bounds(a.region, b.region), a.pairs + b.pairs};
  if (both.pairs < a.pairs || pairs_of(both.region) != both.pairs) return std::nullopt;
  return both;
}

/// Pieces [begin, end) of one batch entry as one.
std::optional<Piece> join_all(std::span<const Piece> pieces) {
  Piece all = pieces.front();
  for (const Piece& piece : pieces.subspan(1)) {
    all.region = bounds(all.region, piece.region);
    all.pairs += piece.pairs;
    if (all.pairs < piece.pairs) return std::nullopt;
  }
  if (pairs_of(all.region) != all.pairs) return std::nullopt;
  return all;
}

/// Joins pieces of one batch entry, all at once or two by two.
std::vector<Piece> joined(std::span<const Piece> pieces) {
  if (auto all = join_all(pieces)) return {*all};
  constexpr std::size_t kNeighbours = 64;  // pieces that fit are near each other in the order of their rows
  std::vector<Piece> done;
  for (Piece piece : pieces) {
    for (bool again = true; again;) {
      again = false;
      const std::size_t first = done.size() > kNeighbours ? done.size() - kNeighbours : 0;
      for (std::size_t i = done.size(); i-- > first;) {
        const auto both = join(done[i], piece);
        if (!both) continue;
        piece = *both;
        done.erase(done.begin() + static_cast<std::ptrdiff_t>(i));
        again = true;
        break;
      }
    }
    done.push_back(piece);
  }
  std::sort(done.begin(), done.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.region.q_begin, a.region.k_begin) < std::tie(b.region.q_begin, b.region.k_begin);
  });
  return done;
}

std::vector<Piece> joined_by_batch(const std::vector<Piece>& pieces) {
  std::vector<Piece> result;
  for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
    while (end < pieces.size() && pieces[end].batch == pieces[begin].batch) ++end;
    const auto part = joined(std::span(pieces).subspan(begin, end - begin));
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

/// Values of a bound that mean the same for a sequence: one, or all from some value on.
struct Choice {
  std::int64_t least = 0, most = kInfinity;

  [[nodiscard]] bool empty() const { return least > most; }
  [[nodiscard]] std::int64_t value() const { return most == kInfinity ? kInfinity : least; }
  [[nodiscard]] Choice with(const Choice& other) const {
    return {std::max(least, other.least), std::min(most, other.most)};
  }
};

Choice choice(std::int64_t bound, std::int64_t farthest) {
  if (bound >= farthest) return {std::max<std::int64_t>(farthest, 0), kInfinity};
  return bound < 0 ? Choice{1, 0} : Choice{bound, bound};
}

/// The masks from one corner that a sequence may be given.
struct Corner {
  Choice left, right;

  [[nodiscard]] bool empty() const { return left.empty() || right.empty(); }
  [[nodiscard]] Corner with(const Corner& other) const { return {left.with(other.left), right.with(other.right)}; }
};

Corner corner_of(const SliceRegion& r, Align align) {
  const std::int64_t q_len = r.q_end - r.q_begin, k_len = r.k_end - r.k_begin;
  const std::int64_t shift = align == Align::top_left ? 0 : k_len - q_len;
  const std::int64_t origin = r.k_begin - r.q_begin + shift;
  return {choice(origin - r.low, q_len - 1 + shift), choice(r.high - origin, k_len - 1 - shift)};
}

/// A call in the making.
struct Group {
  Corner top_left, bottom_right;
  std::vector<Sequence> sequences;

  /// Whether the sequence, which comes after the others in the order of its rows, was added.
  bool add(const Sequence& s, const Corner& from_top, const Corner& from_bottom) {
    if (!sequences.empty()) {
      const Sequence& last = sequences.back();
      if (s.batch == last.batch && (s.q_begin < last.q_begin + last.q_len || s.k_begin < last.k_begin + last.k_len)) {
        return false;
      }
      const Corner top = top_left.with(from_top), bottom = bottom_right.with(from_bottom);
      if (top.empty() && bottom.empty()) return false;
      top_left = top;
      bottom_right = bottom;
    } else {
      top_left = from_top;
      bottom_right = from_bottom;
    }
    sequences.push_back(s);
    return true;
  }

  /// What libraries do best first: no bound, then the diagonal itself from either corner.
  [[nodiscard]] CornerMask mask() const {
    const CornerMask top = {Align::top_left, top_left.left.value(), top_left.right.value()};
    const CornerMask bottom = {Align::bottom_right, bottom_right.left.value(), bottom_right.right.value()};
    if (bottom_right.empty()) return top;
    if (top_left.empty()) return bottom;
    const auto rank = [](const CornerMask& m) {
      return std::tuple(m.right != 0 && m.right != kInfinity, m.left != kInfinity, m.right != kInfinity);
    };
    return rank(bottom) < rank(top) ? bottom : top;
  }
};

/// Form and step, from the sequences.
void set_form(GroupedCall& call) {
  const auto& list = call.sequences;
  const Sequence& first = list.front();
  if (list.size() > 1) {
    call.step = {list[1].batch - first.batch, list[1].q_begin - first.q_begin, list[1].k_begin - first.k_begin};
  }
  bool regular = true, alike = true;
  for (std::size_t i = 1; i < list.size(); ++i) {
    const SequenceStep step = {list[i].batch - list[i - 1].batch, list[i].q_begin - list[i - 1].q_begin,
                               list[i].k_begin - list[i - 1].k_begin};
    regular = regular && step == call.step;
    alike = alike && list[i].q_len == first.q_len && list[i].k_len == first.k_len;
  }
  if (regular && alike) {
    call.form = CallForm::dense;
  } else if (regular && call.step.q == 0 && call.step.k == 0) {
    call.form = CallForm::padded;
  } else {
    call.form = CallForm::ragged;
    call.step = {};
  }
}

/// Rows that calls have touched: disjoint spans by (batch, begin).
class TouchedRows {
 public:
  /// Adds a span; whether some of it was there.
  bool add(const RowSpan& span) {
    bool found = false;
    std::int64_t begin = span.begin, end = span.begin + span.len;
    auto at = ends_.upper_bound({span.batch, begin});
    if (at != ends_.begin()) {
      const auto before = std::prev(at);
      if (before->first.first == span.batch && before->second > begin) at = before;
    }
    while (at != ends_.end() && at->first.first == span.batch && at->first.second < end) {
      found = true;
      begin = std::min(begin, at->first.second);
      end = std::max(end, at->second);
      at = ends_.erase(at);
    }
    ends_[{span.batch, begin}] = end;
    return found;
  }
  [[nodiscard]] const std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t>& ends() const { return ends_; }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> ends_;
};

}  // namespace

RowSpan rows_of(const Sequence& sequence, Side side) {
  if (side == Side::query) return {sequence.batch, sequence.q_begin, sequence.q_len};
  return {sequence.batch, sequence.k_begin, sequence.k_len};
}

std::int64_t GroupedCall::longest(Side side) const {
  std::int64_t most = 0;
  for (const Sequence& s : sequences) most = std::max(most, rows_of(s, side).len);
  return most;
}

std::vector<BandedRectangle> join_slices(std::span<const Slice> slices) {
  return joined_by_batch(pieces_of(slices));
}

Grouping group_slices(std::span<const Slice> slices, std::size_t most_calls) {
  constexpr std::size_t kMostCounted = 1024;  // beyond it the exact number interests nobody
  std::vector<Group> groups;
  for (const Piece& piece : join_slices(slices)) {
    const SliceRegion& r = piece.region;
    const Sequence s = {piece.batch, r.q_begin, r.q_end - r.q_begin, r.k_begin, r.k_end - r.k_begin};
    const Corner top = corner_of(r, Align::top_left), bottom = corner_of(r, Align::bottom_right);
    const auto fits = [&](Group& group) { return group.add(s, top, bottom); };
    if (std::any_of(groups.begin(), groups.end(), fits)) continue;
    if (groups.size() == kMostCounted) {
      return {{}, fmt::format("its slices need more than {} calls; at most {} are made", kMostCounted, most_calls)};
    }
    fits(groups.emplace_back());
  }
  if (groups.size() > most_calls) {
    return {{}, fmt::format("its slices need {} calls; at most {} are made", groups.size(), most_calls)};
  }
  Grouping result;
  TouchedRows rows, keys;
  for (Group& group : groups) {
    GroupedCall& call = result.calls.emplace_back();
    call.mask = group.mask();
    call.sequences = std::move(group.sequences);
    set_form(call);
    for (const Sequence& s : call.sequences) {
      call.shares_rows |= rows.add(rows_of(s, Side::query));
      call.shares_keys |= keys.add(rows_of(s, Side::key));
    }
  }
  return result;
}

std::vector<RowSpan> untouched_rows(const std::vector<GroupedCall>& calls, std::int64_t batches, std::int64_t rows,
                                    Side side) {
  TouchedRows touched;
  for (const GroupedCall& call : calls) {
    for (const Sequence& s : call.sequences) touched.add(rows_of(s, side));
  }
  std::vector<RowSpan> gaps;
  auto at = touched.ends().begin();
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    std::int64_t next = 0;
    for (; at != touched.ends().end() && at->first.first == batch; ++at) {
      if (at->first.second > next) gaps.push_back({batch, next, at->first.second - next});
      next = at->second;
    }
    if (next < rows) gaps.push_back({batch, next, rows - next});
  }
  return gaps;
}

std::string describe(const GroupedCall& call) {
  const char* form = call.form == CallForm::dense ? "dense" : call.form == CallForm::padded ? "padded" : "ragged";
  const bool one = call.sequences.size() == 1;
  std::string text = fmt::format("{} call of {} sequence{}", form, call.sequences.size(), one ? "" : "s");
  const auto bound = [&](const char* name, std::int64_t value) {
    if (value != kInfinity) text += fmt::format(", {} {}", name, value);
  };
  if (call.mask.left != kInfinity || call.mask.right != kInfinity) {
    text += call.mask.align == Align::top_left ? ", top-left" : ", bottom-right";
  }
  bound("left", call.mask.left);
  bound("right", call.mask.right);
  return text;
}

}  // namespace rotunda
