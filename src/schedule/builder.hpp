// What forward and backward programs have in common: buffers, exchanges, and who needs which rows.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "rotunda/schedule.hpp"
#include "schedule/parts.hpp"
#include "schedule/segments.hpp"
#include "schedule/team.hpp"

namespace rotunda {

/// An item of this rank with what it attends.
struct Stage {
  Item item;
  bool in_place = false;             ///< reads this rank's own keys where the user has them
  Segments keys;                     ///< the item's key rows: own open ones in place, or those needed of the owners
  RowRange q, k;                     ///< open rows of q_segments; own open rows in place, or all of keys
  RowRange own_k;                    ///< this rank's key rows that stages attend: the open ones
  std::vector<Slice> slices;         ///< in rows of q and of k
  std::vector<Part> closed;          ///< parts of own rows to be computed while what this stage awaits is on its way
  std::vector<Part> closed_after;    ///< backward: while this stage's key gradients are on their way
  bool active = false;               ///< attends: has slices, or is all that its head group has
  bool first = false, last = false;  ///< active one of its head group
};

/// A query-side tensor between the user's rows (all heads) and the gathered rows (an item's heads).
struct QueryTensor {
  Region user, gathered;
};

struct Transfers {
  std::vector<Transfer> sends, receives;
};

/// Another rank that takes keys of this one for an item of its own.
struct Taker {
  int rank = 0;
  HeadRange kv;
  Segments rows;  ///< this rank's that it needs, counted in the order of sending
};

/// Builds one rank's program, step by step.
class Builder {
 public:
  Builder(const Problem& problem, const Shard& shard, const ScheduleOptions& options, int rank, bool backward);

  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] const Team& team() const { return team_; }
  [[nodiscard]] const ScheduleOptions& options() const { return options_; }
  [[nodiscard]] int rank() const { return program_.rank; }
  [[nodiscard]] int ranks() const { return program_.ranks; }
  /// A rank's item number `index`: forward stage by stage, backward remote keys first.
  [[nodiscard]] Item item(int of_rank, std::size_t index) const;
  /// This rank's query rows as it attends them: its own in place, or those of the team that see anything.
  [[nodiscard]] const Segments& q_segments() const { return q_segments_; }
  /// This rank's items with their slices; index i is the item's number on every rank. All have the same query rows.
  [[nodiscard]] std::vector<Stage> stages() const;
  /// Who takes keys of this rank for item `index`, by rank.
  [[nodiscard]] std::vector<Taker> takers(std::size_t index) const;
  /// Every row of this rank is gathered by somebody: what comes back covers all of them.
  [[nodiscard]] bool every_query_row_is_gathered() const;
  [[nodiscard]] bool every_key_row_is_gathered() const;
  /// Rows that exist (no padding): of this rank, or of q_segments.
  [[nodiscard]] std::vector<RowSpan> real_local_rows() const;
  [[nodiscard]] std::vector<RowSpan> real_attended_rows() const;

  /// The user's tensor, whole.
  Region bound(Binding binding);
  /// New workspace, whole.
  [[nodiscard]] Region workspace(const std::string& name, DType dtype, std::int64_t rows, std::int64_t heads,
                                 std::int64_t dim);
  /// Two of them to be used by turns, or one twice where there is but one item.
  [[nodiscard]] std::array<Region, 2> workspace_pair(const std::string& name, DType dtype, std::int64_t rows,
                                                     std::int64_t heads, std::int64_t dim);
  /// New workspace of one fp32 number a row and query head, for no batch entry in particular.
  [[nodiscard]] Region row_statistics(const std::string& name, std::int64_t rows);
  /// The sink, where it is an input, becomes a buffer of the program.
  void bind_sink();

  void add(Step step) { program_.steps.push_back(std::move(step)); }
  /// Posts an exchange unless it is empty here. The id counts up on every rank alike. Returns its index, or -1.
  int post(const std::string& label, Transfers transfers);
  void await(int exchange);
  void await_sent(int exchange);

  /// K and V rows for item `index`: this rank's to the workers that need them, the owners' into k and v, whose rows are
  /// the stage's keys; own rows are copied at once.
  void transfer_keys(std::size_t index, const Stage& stage, Region k, Region v, Transfers& transfers);
  enum class Direction { to_gathered, to_user };
  /// Query-side tensors of the team to the members that compute item `index`'s heads, or their results back to the
  /// queries' owners; own rows are copied at once.
  void move_queries(std::size_t index, const std::vector<QueryTensor>& tensors, Direction direction,
                    Transfers& transfers);

  /// Waits for all sends, lays out the workspace and hands the program over.
  [[nodiscard]] Program finish();

 private:
  /// Sets rows_needed_ and rows_wanted_.
  void find_visible_rows();
  /// Leaves to the stages what is open of this rank's rows and gives what is closed to the first and the last of each
  /// head group.
  void split_own_rows(std::vector<Stage>& stages) const;
  [[nodiscard]] Parts parts_of_own_rows(const std::vector<Stage>& stages) const;
  void leave_open(Stage& stage, const Part& open) const;
  int add_buffer(Buffer buffer);
  /// move_queries for rows that this rank owns: to and from all members.
  void move_own_queries(std::size_t index, const QueryTensor& rows, Direction direction, Transfers& transfers);

  const Problem& problem_;
  const Shard& shard_;
  const ScheduleOptions& options_;
  Team team_;
  Program program_;
  std::vector<Slice> slices_;      ///< the mask, in tokens
  std::vector<Slice> own_slices_;  ///< those of q_segments_
  Segments q_segments_;
  std::vector<std::vector<RowRange>> rows_needed_;  ///< by owner: its key rows that this rank's team sees
  std::vector<std::vector<RowRange>> rows_wanted_;  ///< by team: this rank's key rows that the team sees
  std::map<Binding, int> bound_;
  int next_id_ = 0;
};

[[nodiscard]] Region narrow_rows(Region region, std::int64_t row, std::int64_t rows);
[[nodiscard]] inline Region narrow_rows(Region region, RowRange rows) {
  return narrow_rows(region, rows.begin, rows.len);
}
[[nodiscard]] Region narrow_heads(Region region, std::int64_t head, std::int64_t heads);
[[nodiscard]] inline Region narrow_heads(Region region, HeadRange heads) {
  return narrow_heads(region, heads.begin, heads.count);
}

/// Two buffers used by turns: one is filled while the other is in use.
class Slots {
 public:
  Slots() = default;
  explicit Slots(std::array<Region, 2> regions) : regions_(regions) {}
  /// Turns to the other slot, once what was sent from it has left (a step). Its rows lie dense with `heads` heads:
  /// copies to and from other ranks are slower where rows are apart.
  Region next(Builder& builder, std::int64_t heads);
  /// The exchange that sends from the current slot.
  void sent_by(int exchange) { sent_[turn_] = exchange; }

 private:
  std::array<Region, 2> regions_;
  std::array<int, 2> sent_{-1, -1};
  std::size_t turn_ = 1;
};

/// The steps of the two directions.
void build_forward(Builder& builder);
void build_backward(Builder& builder);

}  // namespace rotunda
