// Choosing what the caller left open: every allowed pair of schedule and shard is costed, the fastest is taken.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/fail.hpp"
#include "plan/selection.hpp"

namespace rotunda {
namespace {

constexpr ScheduleKind kSchedules[] = {ScheduleKind::p2p, ScheduleKind::all_gather, ScheduleKind::a2a,
                                       ScheduleKind::a2a_p2p};

std::vector<ScheduleKind> schedules_allowed(const PlanOptions& options, int ranks) {
  if (options.schedule) return {*options.schedule};
  if (options.inner > 0) return {ScheduleKind::a2a_p2p};
  if (ranks == 1) return {ScheduleKind::p2p};
  return {std::begin(kSchedules), std::end(kSchedules)};
}

ScheduleOptions schedule_options(const PlanOptions& options, ScheduleKind kind, const Kernel& kernel) {
  return {kind, kind == ScheduleKind::a2a_p2p ? options.inner : 0, options.head_groups,
          kernel.capabilities().narrow_gradients, kernel.capabilities().reads_out};
}

/// A candidate together with the shard that it was costed on.
struct Costed {
  Candidate candidate;
  ScheduleOptions backward;
  const Shard* shard;
};

std::string name(const ScheduleOptions& forward, const ScheduleOptions& backward, const Shard& shard) {
  const std::string mixed = forward.kind == backward.kind ? "" : fmt::format(" / {}", to_string(backward.kind));
  return fmt::format("{}{} on {}", to_string(forward.kind), mixed, to_string(shard.kind));
}

/// Why the kernel can't serve a rank's program, or nothing.
std::optional<std::string> refuse_calls(const Problem& problem, const Program& program, const Kernel& kernel,
                                        const Device& device) {
  for (const CallShape& call : calls_of(program, 1, device)) {
    if (auto reason = kernel.refuse_call(problem, call)) {
      return fmt::format("kernel {} can't serve rank {}: {}", kernel.name(), program.rank, *reason);
    }
  }
  return std::nullopt;
}

/// What the kernel makes of the schedules on one shard, each direction of each worked out once.
class Directions {
 public:
  struct Entry {
    ScheduleOptions options;
    std::optional<std::string> refusal;
    DirectionCost cost;  ///< where it matters
  };

  Directions(const Problem& problem, const PlanOptions& options, const Shard& shard, const Kernel& kernel,
             const Device& device, const Machine& machine, bool costs)
      : problem_(problem),
        options_(options),
        shard_(shard),
        kernel_(kernel),
        device_(device),
        machine_(machine),
        costs_(costs) {}

  [[nodiscard]] const Shard& shard() const { return shard_; }
  const Entry& of(ScheduleKind kind, bool backward) {
    const auto [found, is_new] = entries_.try_emplace({kind, backward});
    if (is_new) found->second = make(kind, backward);
    return found->second;
  }

 private:
  Entry make(ScheduleKind kind, bool backward) const {
    ScheduleOptions asked = schedule_options(options_, kind, kernel_);
    if (kind == ScheduleKind::a2a_p2p) asked.inner = inner_ranks(problem_, asked, shard_.q.ranks());
    if (backward && !problem_.grad) return {asked, std::nullopt, {}};
    const bool pipelines = kind == ScheduleKind::all_gather || kind == ScheduleKind::a2a;
    if (asked.head_groups != 0 || !pipelines || !machine_.overlaps) return entry_of(asked, backward, costs_);
    // Where little travels, more calls cost more than they hide.
    ScheduleOptions whole = asked;
    whole.head_groups = 1;
    const Entry grouped = entry_of(asked, backward, true), one = entry_of(whole, backward, true);
    Entry better = is_faster(one, grouped) ? one : grouped;
    if (!costs_) better.cost = {};  // as the other direction's, which may have had nothing to weigh
    return better;
  }

  [[nodiscard]] Entry entry_of(const ScheduleOptions& options, bool backward, bool costs) const {
    Entry entry{options, std::nullopt, {}};
    const bool may_refuse = !kernel_.capabilities().slices;
    const int ranks = shard_.q.ranks();
    for (int rank = 0; rank < ranks && !entry.refusal; ++rank) {
      const bool counts = costs && is_counted(rank, ranks);
      if (!may_refuse && !counts) continue;
      const Program program = make_program(problem_, shard_, options, rank, backward);
      if (may_refuse) entry.refusal = refuse_calls(problem_, program, kernel_, device_);
      if (counts) entry.cost.add(problem_, program, machine_);
    }
    return entry;
  }

  static bool is_faster(const Entry& a, const Entry& b) {
    if (a.refusal || b.refusal) return !a.refusal && b.refusal;
    const auto slowest = [](const Entry& e) { return *std::max_element(e.cost.seconds.begin(), e.cost.seconds.end()); };
    return slowest(a) < slowest(b);
  }

  const Problem& problem_;
  const PlanOptions& options_;
  const Shard& shard_;
  const Kernel& kernel_;
  const Device& device_;
  const Machine& machine_;
  bool costs_;
  std::map<std::pair<ScheduleKind, bool>, Entry> entries_;
};

// Where a kernel leaves 16-bit partial results, each is rounded once more than it need be: a sum of two may miss the
// bar of twice the naive error already (docs/accuracy.md).
constexpr int kMost16BitPartials = 1;

/// Why dual_chunk_doc, which cuts every document into chunks for all ranks, is not worth a look, or nothing.
std::optional<std::string> refuse_dual_chunk_doc(const Problem& problem, int ranks) {
  constexpr std::int64_t most = 1 << 16;  // beyond it they are a few rows each, and a plan takes minutes
  const auto documents = static_cast<std::int64_t>(document_offsets(problem, Side::query).size()) - 1;
  if (documents * 2 * ranks <= most) return std::nullopt;
  return fmt::format("would cut {} documents into {} chunks each; serves only when asked for by name", documents,
                     2 * ranks);
}

/// Why a shard is not weighed where others are.
std::string why_not_weighed(const Problem& problem, ShardKind kind, int ranks) {
  if (kind == ShardKind::striped) {
    return "is never better than dual_chunk, and library kernels can't take it; serves only when asked for by name";
  }
  const bool packed = document_offsets(problem, Side::query).size() > 2;
  const auto many = kind == ShardKind::dual_chunk_doc ? refuse_dual_chunk_doc(problem, ranks) : std::nullopt;
  return packed && many ? *many : "is for packed documents; serves only when asked for by name";
}

/// The shard of a kind, made for the planned problem or for the one that the options name.
Shard shard_of(const Problem& problem, const PlanOptions& options, ShardKind kind, int ranks) {
  const std::int64_t chunk_size = kind == ShardKind::balanced ? options.chunk_size : 0;
  if (options.shard_for.empty()) return make_shard(problem, kind, ranks, chunk_size);
  const Problem other = parse_problem(options.shard_for);
  if (other.s_q != problem.s_q || other.s_k != problem.s_k) {
    fail(ErrorKind::bad_input, "a shard made for {} queries and {} keys does not suit a problem of {} and {}",
         other.s_q, other.s_k, problem.s_q, problem.s_k);
  }
  return make_shard(other, kind, ranks, chunk_size);
}

}  // namespace

std::vector<ShardKind> shards_allowed(const Problem& problem, const PlanOptions& options, int ranks) {
  if (options.chunk_size < 0) {
    fail(ErrorKind::bad_input, "chunk-size={}; allowed: 1 or more, 0 for auto", options.chunk_size);
  }
  if (options.chunk_size != 0 && options.shard && *options.shard != ShardKind::balanced) {
    fail(ErrorKind::bad_input, "chunk-size={} is for shard balanced; the shard asked for is {}", options.chunk_size,
         to_string(*options.shard));
  }
  if (options.shard) return {*options.shard};
  if (options.chunk_size > 0) return {ShardKind::balanced};
  if (ranks == 1) return {ShardKind::contiguous};
  std::vector<ShardKind> kinds = {ShardKind::contiguous, ShardKind::dual_chunk};
  if (document_offsets(problem, Side::query).size() > 2) {
    if (!refuse_dual_chunk_doc(problem, ranks)) kinds.push_back(ShardKind::dual_chunk_doc);
    kinds.push_back(ShardKind::balanced);
  }
  return kinds;
}

std::vector<ScheduleKind> backward_schedules_allowed(const PlanOptions& options, ScheduleKind forward, int ranks) {
  if (options.backward_schedule) return {*options.backward_schedule};
  if (!options.mixes || ranks == 1) return {forward};
  return {std::begin(kSchedules), std::end(kSchedules)};
}

Choice choose_schedule(const Problem& problem, const PlanOptions& options, int ranks, const Kernel& kernel,
                       const Device& device, const Machine& machine) {
  const ScheduleKind asked_backward = options.backward_schedule.value_or(ScheduleKind::p2p);
  const bool inner_used = !options.schedule || options.mixes || *options.schedule == ScheduleKind::a2a_p2p ||
                          (options.backward_schedule && asked_backward == ScheduleKind::a2a_p2p);
  if (options.inner != 0 && !inner_used) {
    fail(ErrorKind::bad_input, "inner={} is for schedule a2a_p2p; the schedule asked for is {}", options.inner,
         to_string(*options.schedule));
  }
  const auto schedules = schedules_allowed(options, ranks);
  const auto shard_kinds = shards_allowed(problem, options, ranks);
  std::vector<Shard> shards;
  shards.reserve(shard_kinds.size());
  for (const ShardKind kind : shard_kinds) shards.push_back(shard_of(problem, options, kind, ranks));
  const bool open =
      schedules.size() * shards.size() * backward_schedules_allowed(options, schedules.front(), ranks).size() > 1;
  std::vector<Costed> candidates;
  std::vector<Refusal> refused;
  const auto weigh = [&](Directions& on, ScheduleKind forward_kind, ScheduleKind backward_kind) {
    const auto& forward = on.of(forward_kind, false);
    const auto& backward = on.of(backward_kind, true);
    if (const auto& reason = forward.refusal ? forward.refusal : backward.refusal) {
      refused.push_back({name(forward.options, backward.options, on.shard()), *reason, true});
      return;
    }
    const DirectionCost* back = problem.grad ? &backward.cost : nullptr;
    candidates.push_back({combine(on.shard(), forward.options, forward.cost, back), backward.options, &on.shard()});
  };
  for (const Shard& shard : shards) {
    Directions directions(problem, options, shard, kernel, device, machine, open);
    for (const ScheduleKind kind : schedules) {
      for (const ScheduleKind backward : backward_schedules_allowed(options, kind, ranks)) {
        weigh(directions, kind, backward);
      }
    }
  }
  if (candidates.empty()) fail(ErrorKind::unsupported, "{}", refused.front().reason);
  const bool partials = !kernel.capabilities().accumulates;
  const auto too_many = [&](const Costed& c) { return partials && c.candidate.partials > kMost16BitPartials; };
  const Costed& best = *std::min_element(candidates.begin(), candidates.end(), [&](const Costed& a, const Costed& b) {
    return std::pair(too_many(a), a.candidate.seconds) < std::pair(too_many(b), b.candidate.seconds);
  });
  const auto name_of = [](const Costed& c) { return name(c.candidate.schedule, c.backward, *c.shard); };
  Choice choice{best.candidate.schedule, best.backward, *best.shard, refused};
  for (const ShardKind kind : kShardKinds) {
    const bool weighed = std::find(shard_kinds.begin(), shard_kinds.end(), kind) != shard_kinds.end();
    if (weighed || shard_kinds.size() == 1) continue;
    choice.refusals.push_back({fmt::format("shard {}", to_string(kind)), why_not_weighed(problem, kind, ranks), false});
  }
  for (const Costed& other : candidates) {
    if (&other == &best) continue;
    const auto reason =
        too_many(other) && !too_many(best)
            ? fmt::format("would sum {} 16-bit partial results of kernel {}", other.candidate.partials, kernel.name())
            : fmt::format("{:.3g} ms predicted against {:.3g} ms for {}", other.candidate.seconds * 1e3,
                          best.candidate.seconds * 1e3, name_of(best));
    choice.refusals.push_back({name_of(other), reason, false});
  }
  return choice;
}

}  // namespace rotunda
