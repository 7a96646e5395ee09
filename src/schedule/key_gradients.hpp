// Key gradients: from the stages that compute them to the owners of the rows, who sum them.
#pragma once

#include <vector>

#include "schedule/builder.hpp"

namespace rotunda {

/// This rank's share of that: what it gives to others, and what it gets for its own keys.
class KeyGradients {
 public:
  KeyGradients(Builder& builder, const std::vector<Stage>& stages);

  /// Each gradient is made by one call: it lands in the user's tensor and there is no sum.
  [[nodiscard]] bool whole() const { return whole_; }
  /// fp32 results have no bits to hide the roundings of a sum over ranks: what they lose is kept and added last.
  [[nodiscard]] bool exact() const { return exact_; }
  /// Other ranks have gradients for this rank's keys, from one of their first `items` items.
  [[nodiscard]] bool any_arrive(std::size_t items) const;
  void allocate();
  /// Makes the sums: in the user's tensors or in fp32 beside them. covered: steps to come write every row of them
  /// before any is read.
  void prepare(bool in_user, bool covered);
  /// The sums; their rows are the own keys that take part in stages (in place: the open ones).
  [[nodiscard]] Region dk() const { return dk_; }
  [[nodiscard]] Region dv() const { return dv_; }

  /// Posts item i's exchange. Gradients of the stage's keys, where they are given, go to the owners of the rows; this
  /// rank's own rows are added at once. Returns the exchange.
  int send(std::size_t i, const Stage& stage, Region dk, Region dv);
  /// Awaits what is on its way here and adds it.
  void collect();
  /// After the last: narrows the sums into the user's tensors where they are not there yet.
  void finish();

 private:
  struct Gradient {
    Region part;      ///< of the stage's keys
    Region sum, low;  ///< of this rank's own rows
  };

  [[nodiscard]] std::int64_t rows_arriving(std::size_t i) const;
  [[nodiscard]] Add sum_of(const Gradient& gradient, Region part, std::int64_t row, HeadRange heads) const;
  void give(const Stage& stage, const Segment& segment, const Gradient& gradient, Transfers& transfers);
  Region landing_of(const Gradient& gradient, const Segment& segment, std::int64_t row, HeadRange heads);
  void receive(std::size_t i, Transfers& transfers);

  Builder& b_;
  const Problem& p_;
  const std::vector<Stage>& stages_;
  const bool whole_, exact_;
  Slots arrived_dk_, arrived_dv_;
  RowRange rows_;           // this rank's keys whose gradients are summed
  Region dk_, dv_;          // where they are
  Region dk_low_, dv_low_;  // what the sums' roundings lost
  bool in_user_ = false;
  std::vector<Add> sums_;  // of the gradients on their way
  int arriving_ = -1;
};

}  // namespace rotunda
