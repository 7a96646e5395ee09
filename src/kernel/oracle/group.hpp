// One KV head of one batch entry and the query heads that read it: inputs as matrices, and both passes over them.
//
// Two passes instead of one keep every sum in one thread's hands and in one order: blocks of query rows make out, lse
// and dq; blocks of keys make dk and dv, from logits computed again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/oracle/matmul.hpp"
#include "kernel/oracle/runs.hpp"
#include "rotunda/oracle.hpp"

namespace rotunda::oracle_detail {

/// Rows of one (batch entry, head), row-major and transposed. Elements that are not finite are 0 and their row is sick.
template <class Real>
struct HeadMatrix {
  Matrix<Real> rows, transposed;
  std::vector<char> sick;
  bool any_sick = false;

  void load(const TensorView& view, std::int64_t b, std::int64_t head);
};

/// What a block needs besides inputs; one a worker, reused.
template <class Real>
struct BlockScratch {
  Matrix<Real> s, p, dp, ds, out, dq, dk, dv;
  Matrix<Real> mean_k, delta_errors, dk_errors;
  std::vector<double> dk_variance, dv_variance;  ///< by key: sums over rows of squared errors
};

/// Where a group's answers go and what all groups share.
struct GroupTask {
  const Problem& problem;
  const Tensors& tensors;
  const SliceIndex& slices;    ///< of the batch entry
  std::span<const char> real;  ///< by query row of the batch entry: not padding
  std::int64_t b = 0;
  int kv_head = 0;

  [[nodiscard]] int heads() const { return problem.h_q / problem.h_kv; }
  [[nodiscard]] int q_head(int member) const { return kv_head * heads() + member; }
};

/// Arithmetic is Exact or Naive<element>. row_block and key_block may run in any threads at once, each block once, all
/// row blocks before the first key block.
template <class Arithmetic>
class Group {
 public:
  using Real = typename Arithmetic::Real;

  Group(const GroupTask& task, Answers& answers);

  /// out, lse, dq of query rows of one member head. Raises `floors` by what these rows contribute.
  void row_block(int member, Range rows, BlockScratch<Real>& x, ErrorFloors& floors);
  /// max_logit, dsink and their floor, after all row blocks.
  void finish_heads(ErrorFloors& floors);
  /// dk, dv of keys, and their floors.
  void key_block(Range keys, BlockScratch<Real>& x, ErrorFloors& floors);

 private:
  /// What a query row's roundings do to terms of dk and dv: error per unit of P and per unit of dS, and the error of
  /// delta from the rounded out, with its sign.
  struct Noise {
    double dk_per_p = 0, dk_per_ds = 0, dv_per_p = 0, delta = 0;
  };

  struct Member {
    HeadMatrix<Real> q, dout;
    std::vector<double> lse, delta, top;     ///< by row
    std::vector<double> delta_spread;        ///< by row: sqrt(Σ (dout·out)²)
    std::vector<Noise> noise;                ///< by row
    std::vector<char> hurt, hurt_gradients;  ///< by row: depends on something sick
    bool sick_sink = false;                  ///< NaN: hurts the lse of every real row, and all else of rows with a key
  };

  [[nodiscard]] bool has_sink() const { return task_.problem.sink != Sink::none; }
  [[nodiscard]] bool sink_is_sick(int member) const;
  /// A sick one is left to what it hurts.
  [[nodiscard]] double sink(int member) const;
  void softmax(Member& one, double sink, Range rows, const Runs& runs, BlockScratch<Real>& x);
  void row_gradients(Member& one, Range rows, const Runs& runs, BlockScratch<Real>& x);
  void row_noise(Member& one, Range rows, const Runs& runs, BlockScratch<Real>& x, ErrorFloors& floors);
  [[nodiscard]] double gradient_noise(Member& one, std::int64_t row, double from_logit, const Real* out,
                                      const Real* mean_k);
  void find_hurt(Member& one, const Runs& runs);
  void write_rows(int member, Range rows, const BlockScratch<Real>& x);
  void add_member_to_keys(Member& one, Range keys, const Runs& runs, BlockScratch<Real>& x);
  void write_keys(Range keys, const BlockScratch<Real>& x, std::span<const char> hurt);

  GroupTask task_;
  Answers& answers_;
  HeadMatrix<Real> k_, v_;
  std::vector<Member> members_;
  bool any_sick_ = false;
  double largest_k_ = 0, largest_v_ = 0;
};

}  // namespace rotunda::oracle_detail
