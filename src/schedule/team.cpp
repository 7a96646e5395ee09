#include "schedule/team.hpp"

#include <algorithm>
#include <cmath>

#include "base/fail.hpp"

namespace rotunda {
namespace {

/// Head groups that a pipelined schedule uses unless told otherwise, for so many KV heads of the busiest member: four
/// equal ones, few enough that a group still fills a machine. From eight heads on, the first and the last are half as
/// large as the others, since nothing hides the first fetch and the last delivery.
constexpr int kEqualGroups = 4, kTaperedGroups = 5, kHeadsToTaper = 8;

/// The first of `heads` heads that is in group `group` of `groups`.
int group_begin(int heads, int group, int groups, bool tapered) {
  if (!tapered || group == 0 || group == groups) return heads * group / groups;
  return heads * (2 * group - 1) / (2 * groups - 2);
}

/// The divisor of ranks nearest to its square root that the heads can feed; the larger of two.
int default_inner(int ranks, int heads) {
  int best = 1;
  for (int inner = 1; inner <= std::min(ranks, heads); ++inner) {
    if (ranks % inner != 0) continue;
    const double root = std::sqrt(static_cast<double>(ranks));
    if (std::abs(inner - root) <= std::abs(best - root)) best = inner;
  }
  return best;
}

}  // namespace

int inner_ranks(const Problem& problem, const ScheduleOptions& options, int ranks) {
  if (options.inner != 0 && options.kind != ScheduleKind::a2a_p2p) {
    fail(ErrorKind::bad_input, "inner={} is for schedule a2a_p2p; {} has none", options.inner, to_string(options.kind));
  }
  switch (options.kind) {
    case ScheduleKind::p2p:
    case ScheduleKind::all_gather: return 1;
    case ScheduleKind::a2a: return ranks;
    case ScheduleKind::a2a_p2p: break;
  }
  if (options.inner == 0) return default_inner(ranks, problem.h_q);
  if (options.inner < 0 || ranks % options.inner != 0) {
    fail(ErrorKind::bad_input, "inner={} does not divide {}; allowed: any divisor of the ranks", options.inner,
         counted(ranks, "rank"));
  }
  return options.inner;
}

Team::Team(const Problem& problem, const ScheduleOptions& options, int ranks)
    : ranks_(ranks),
      inner_(inner_ranks(problem, options, ranks)),
      h_q_(problem.h_q),
      ratio_(problem.h_q / problem.h_kv),
      all_at_once_(options.kind == ScheduleKind::all_gather || options.kind == ScheduleKind::a2a) {
  stages_ = all_at_once_ ? 1 : ranks_ / inner_;
  int widest = 0;  // KV heads of the busiest member
  for (int rank = 0; rank < inner_; ++rank) widest = std::max(widest, kv_heads(q_heads(rank)).count);
  const int wanted = options.head_groups > 0  ? options.head_groups
                     : !all_at_once_          ? 1
                     : widest < kHeadsToTaper ? kEqualGroups
                                              : kTaperedGroups;
  groups_ = std::clamp(wanted, 1, std::max(widest, 1));
  tapered_ = options.head_groups == 0 && groups_ == kTaperedGroups;
}

RankRange Team::members(int rank) const {
  return {rank / inner_ * inner_, inner_};
}

HeadRange Team::q_heads(int rank) const {
  const std::int64_t member = rank % inner_;
  const int begin = static_cast<int>(member * h_q_ / inner_);
  return {begin, static_cast<int>((member + 1) * h_q_ / inner_) - begin};
}

HeadRange Team::kv_heads(HeadRange q) const {
  if (q.count == 0) return {q.begin / ratio_, 0};
  const int begin = q.begin / ratio_;
  return {begin, (q.end() - 1) / ratio_ + 1 - begin};
}

Item Team::item(int rank, int group, int stage) const {
  const HeadRange q = q_heads(rank);
  const HeadRange kv = kv_heads(q);
  const int kv_begin = kv.begin + group_begin(kv.count, group, groups_, tapered_);
  const int kv_end = kv.begin + group_begin(kv.count, group + 1, groups_, tapered_);
  const int q_begin = std::clamp(kv_begin * ratio_, q.begin, q.end());
  const int q_end = std::clamp(kv_end * ratio_, q.begin, q.end());
  const RankRange owners = all_at_once_ ? RankRange{0, ranks_} : members((rank - stage * inner_ + ranks_) % ranks_);
  return {group, stage, {q_begin, q_end - q_begin}, {kv_begin, kv_end - kv_begin}, owners};
}

RankRange Team::takers(int owner, int stage) const {
  return all_at_once_ ? RankRange{0, ranks_} : members((owner + stage * inner_) % ranks_);
}

bool Team::gradients_are_whole() const {
  if (inner_ != ranks_ || own_keys_in_place()) return false;
  int taken = 0;  // KV heads that lower ranks read
  for (int rank = 0; rank < inner_; ++rank) {
    const HeadRange kv = kv_heads(q_heads(rank));
    if (kv.count > 0 && kv.begin < taken) return false;
    taken = std::max(taken, kv.end());
  }
  return true;
}

}  // namespace rotunda
