// Teams: how a schedule divides the work, and in which stages. This is the one place that tells the patterns apart.
//
// Every schedule is the same idea with three numbers. Ranks form teams of `inner` neighbours. A team shares the
// queries of its members by heads: member i computes its share of the heads for all of the team's queries. Keys arrive
// in stages, a team's worth at a time or all at once, and the heads may be cut into groups that travel one after the
// other:
//
//     schedule     inner     keys arrive          head groups
//     p2p          1         team by team         1
//     all_gather   1         all at once          several, pipelined
//     a2a          ranks     all at once          several, pipelined
//     a2a_p2p      divisor   team by team         1
#pragma once

#include "rotunda/schedule.hpp"

namespace rotunda {

/// Heads [begin, begin + count).
struct HeadRange {
  int begin = 0, count = 0;
  [[nodiscard]] int end() const { return begin + count; }
};

/// Ranks [begin, begin + count).
struct RankRange {
  int begin = 0, count = 0;
  [[nodiscard]] int end() const { return begin + count; }
};

/// One stage of one head group: the keys of these ranks, for these heads.
struct Item {
  int group = 0;     ///< head group
  int stage = 0;     ///< within the group
  HeadRange q, kv;   ///< global heads of the member in question
  RankRange owners;  ///< whose keys take part
};

/// The division of labour of a schedule over ranks.
class Team {
 public:
  Team(const Problem& problem, const ScheduleOptions& options, int ranks);

  [[nodiscard]] int inner() const { return inner_; }
  /// Ranks of the team that `rank` is in.
  [[nodiscard]] RankRange members(int rank) const;
  /// Query heads that `rank` computes, and the KV heads that these read.
  [[nodiscard]] HeadRange q_heads(int rank) const;
  [[nodiscard]] HeadRange kv_heads(HeadRange q) const;
  /// The work of `rank` in one stage of one head group; the team's own keys come in stage 0. Ranks with fewer heads may
  /// have none (count 0).
  [[nodiscard]] Item item(int rank, int group, int stage) const;
  /// The ranks whose items of this stage take keys of `owner`.
  [[nodiscard]] RankRange takers(int owner, int stage) const;
  [[nodiscard]] int groups() const { return groups_; }
  [[nodiscard]] int stages() const { return stages_; }
  /// The first stage of a group reads the rank's own keys where they lie: no gathered copy is made of them.
  [[nodiscard]] bool own_keys_in_place() const { return inner_ == 1 && !all_at_once_; }
  /// Queries are attended where they lie (teams of one).
  [[nodiscard]] bool queries_in_place() const { return inner_ == 1; }
  /// Every (key row, KV head) is gathered by exactly one rank, once: its gradient needs no sum.
  [[nodiscard]] bool gradients_are_whole() const;

 private:
  int ranks_, inner_, stages_, groups_;
  int h_q_, ratio_;
  bool all_at_once_;
  bool tapered_ = false;  ///< the first and the last head group are half as large as the others
};

}  // namespace rotunda
