#include "schedule/key_gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace rotunda {

KeyGradients::KeyGradients(Builder& builder, const std::vector<Stage>& stages)
    : b_(builder),
      p_(builder.problem()),
      stages_(stages),
      whole_(builder.team().gradients_are_whole()),
      exact_(!whole_ && p_.dtype == DType::fp32 && builder.ranks() > 1) {}

/// Rows of this rank whose gradients arrive for item i, from all who took them.
std::int64_t KeyGradients::rows_arriving(std::size_t i) const {
  std::int64_t rows = 0;
  for (const Taker& taker : b_.takers(i)) rows += taker.rows.rows();
  return rows;
}

bool KeyGradients::any_arrive(std::size_t items) const {
  for (std::size_t i = 0; i < items; ++i) {
    if (rows_arriving(i) > 0) return true;
  }
  return false;
}

void KeyGradients::allocate() {
  if (whole_) return;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    rows = std::max(rows, rows_arriving(i));
    for (const Taker& taker : b_.takers(i)) heads = std::max<std::int64_t>(heads, taker.kv.count);
  }
  if (rows * heads == 0) return;
  arrived_dk_ = Slots(b_.workspace_pair("arrived dk", DType::fp32, rows, heads, p_.d));
  arrived_dv_ = Slots(b_.workspace_pair("arrived dv", DType::fp32, rows, heads, p_.d_v));
}

void KeyGradients::prepare(bool in_user, bool covered) {
  in_user_ = in_user;
  rows_ = stages_.front().own_k;
  const auto sum = [&](const char* name, int dim) { return b_.workspace(name, DType::fp32, rows_.len, p_.h_kv, dim); };
  dk_ = in_user ? narrow_rows(b_.bound(Binding::dk), rows_) : sum("dk sum", p_.d);
  dv_ = in_user ? narrow_rows(b_.bound(Binding::dv), rows_) : sum("dv sum", p_.d_v);
  if (!covered) {  // rows that nobody sees are touched by no step
    b_.add(Fill{dk_, 0});
    b_.add(Fill{dv_, 0});
  }
  if (!exact_) return;
  dk_low_ = sum("low bits of dk", p_.d);
  dv_low_ = sum("low bits of dv", p_.d_v);
  b_.add(Fill{dk_low_, 0});
  b_.add(Fill{dv_low_, 0});
}

int KeyGradients::send(std::size_t i, const Stage& stage, Region dk, Region dv) {
  Transfers transfers;
  for (const Segment& segment : stage.keys.list) {
    if (!dk) break;
    give(stage, segment, {dk, dk_, dk_low_}, transfers);
    give(stage, segment, {dv, dv_, dv_low_}, transfers);
  }
  receive(i, transfers);
  arriving_ = b_.post(fmt::format("key gradients of item {}", i), std::move(transfers));
  return arriving_;
}

/// sum += part for own rows [row, row + part.rows) and these KV heads.
Add KeyGradients::sum_of(const Gradient& gradient, Region part, std::int64_t row, HeadRange heads) const {
  const auto own = [&](Region region) {
    return region ? narrow_heads(narrow_rows(region, row - rows_.begin, part.rows), heads) : region;
  };
  return {part, own(gradient.sum), own(gradient.low)};
}

void KeyGradients::give(const Stage& stage, const Segment& segment, const Gradient& gradient, Transfers& transfers) {
  const Region part = narrow_rows(gradient.part, segment.row, segment.len);
  if (segment.owner != b_.rank()) {
    transfers.sends.push_back({segment.owner, part});
    return;
  }
  const Add sum = sum_of(gradient, part, segment.owner_row, stage.item.kv);
  if (whole_) {
    b_.add(Convert{sum.from, sum.to});
  } else {
    b_.add(sum);
  }
}

/// Where the gradients of a segment land: their place in the result, or rows from `row` on to be summed from there.
Region KeyGradients::landing_of(const Gradient& gradient, const Segment& segment, std::int64_t row, HeadRange heads) {
  if (whole_) return narrow_heads(narrow_rows(gradient.sum, segment.owner_row, segment.len), heads);
  const Region landing = narrow_heads(narrow_rows(gradient.part, row, segment.len), 0, heads.count);
  sums_.push_back(sum_of(gradient, landing, segment.owner_row, heads));
  return landing;
}

void KeyGradients::receive(std::size_t i, Transfers& transfers) {
  const std::vector<Taker> takers = b_.takers(i);
  Region arrived_dk, arrived_dv;
  if (!whole_ && rows_arriving(i) > 0) {
    std::int64_t heads = 0;
    for (const Taker& taker : takers) heads = std::max<std::int64_t>(heads, taker.kv.count);
    arrived_dk = arrived_dk_.next(b_, heads);
    arrived_dv = arrived_dv_.next(b_, heads);
  }
  std::int64_t row = 0;
  for (const Taker& taker : takers) {
    for (const Segment& segment : taker.rows.list) {
      for (const Gradient& gradient : {Gradient{arrived_dk, dk_, dk_low_}, Gradient{arrived_dv, dv_, dv_low_}}) {
        transfers.receives.push_back({taker.rank, landing_of(gradient, segment, row, taker.kv)});
      }
      row += segment.len;
    }
  }
}

void KeyGradients::collect() {
  b_.await(std::exchange(arriving_, -1));
  for (const Add& sum : sums_) b_.add(sum);
  sums_.clear();
}

void KeyGradients::finish() {
  if (dk_low_) {
    b_.add(Add{dk_low_, dk_, {}});
    b_.add(Add{dv_low_, dv_, {}});
  }
  if (in_user_) return;
  b_.add(Convert{dk_, narrow_rows(b_.bound(Binding::dk), rows_)});
  b_.add(Convert{dv_, narrow_rows(b_.bound(Binding::dv), rows_)});
}

}  // namespace rotunda
