// Plans: the immutable outcome for one problem on one group of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rotunda/device.hpp"
#include "rotunda/machine.hpp"
#include "rotunda/problem.hpp"
#include "rotunda/schedule.hpp"
#include "rotunda/shard.hpp"
#include "rotunda/transport.hpp"

namespace rotunda {

/// What a caller may fix; what is left empty is chosen.
struct PlanOptions {
  std::optional<ScheduleKind> schedule;
  std::optional<ScheduleKind> backward_schedule;  ///< default: the forward's, or with mixes any
  bool mixes = false;                             ///< where backward_schedule is empty: chosen by predicted time
  int inner = 0;                                  ///< a2a_p2p: ranks of an a2a group; 0 chooses
  int head_groups = 0;                            ///< groups of KV heads that are pipelined; 0 chooses
  std::optional<ShardKind> shard;
  std::int64_t chunk_size = 0;  ///< balanced shards: tokens a chunk; 0 chooses
  std::string shard_for;        ///< text of the problem that the shard is made for, if many share it; empty: this one
  std::string kernel;           ///< empty: auto (never reference)
  std::string transport;        ///< empty: auto
  std::optional<Device::Kind> device;  ///< empty: cuda where a kernel there serves the problem, else cpu
  std::vector<int> devices{};          ///< CUDA device of rank r: devices[r % size]; empty: all in turn
  int threads = 0;                     ///< a rank's thread budget; 0: cores / ranks, at least 1
  /// Bytes that a kernel may take for what one of its passes leaves to the next, where it can do with less: less costs
  /// time, and other sizes give other bits. 0: the kernel's default. sm90's backward: P and dS, of at least one query
  /// tile.
  std::int64_t kernel_scratch = 0;
  std::optional<Machine> machine{};  ///< times are predicted for it; empty: this one, calibrated or in round figures

  bool operator==(const PlanOptions&) const = default;
};

/// A choice that was not made, and why.
struct Refusal {
  std::string what;  ///< such as "kernel cudnn" or "schedule a2a"
  std::string reason;
  bool unsupported = true;  ///< false: it could serve, but something else is predicted to be better
};

/// One rank's plan. Immutable, shareable between threads.
struct Plan {
  Problem problem;
  PlanOptions options;  ///< as asked
  int rank = 0, ranks = 1;
  ScheduleOptions forward_schedule, backward_schedule;  ///< as chosen
  Shard shard;
  std::string kernel, transport;
  Device device;
  int threads = 1;
  Machine machine;  ///< that the choice was made for
  Program forward;
  std::optional<Program> backward;  ///< where the problem has grad
  std::int64_t kernel_workspace_bytes = 0;
  bool takes_scratch = false;   ///< PlanOptions::kernel_scratch changes something: the kernel's backward keeps to it
  int partials = 0;             ///< most 16-bit results that an output or gradient is summed from; 0: sums are fp32
  std::int64_t list_bytes = 0;  ///< slices and rows of the steps in a CUDA device's memory
  std::vector<Refusal> refusals;
  std::uint64_t hash = 0;  ///< of everything but the rank: equal on every rank of a group

  /// Bytes held beyond inputs and outputs at the worse of forward and backward.
  [[nodiscard]] std::int64_t peak_bytes() const;
  /// "p2p, dual_chunk, cpu, local"
  [[nodiscard]] std::string summary() const;
};

/// On what kind of device a plan of these options runs. Where the options leave it open: cuda where a device is there
/// and a kernel on it serves the problem, else cpu. @throws Error unsupported (no device, or none of that number),
/// bad_input
[[nodiscard]] Device::Kind device_kind(const Problem& problem, const PlanOptions& options);

/// The shards that a plan may choose from. @throws Error bad_input (a chunk size for a shard that has none)
[[nodiscard]] std::vector<ShardKind> shards_allowed(const Problem& problem, const PlanOptions& options, int ranks);

/// The backward schedules that a plan with this forward one may choose from.
[[nodiscard]] std::vector<ScheduleKind> backward_schedules_allowed(const PlanOptions& options, ScheduleKind forward,
                                                                   int ranks);

/// Plans one rank without a group: nothing is agreed. @throws Error bad_input, unsupported (with every reason)
[[nodiscard]] std::shared_ptr<const Plan> make_plan(const Problem& problem, const PlanOptions& options, int rank,
                                                    int ranks);

/// The same through a bounded, thread-safe cache keyed by everything that matters: problem, options, rank, ranks,
/// device and what is disabled in the environment.
[[nodiscard]] std::shared_ptr<const Plan> cached_plan(const Problem& problem, const PlanOptions& options, int rank,
                                                      int ranks);
[[nodiscard]] std::string plan_cache_key(const Problem& problem, const PlanOptions& options, int rank, int ranks);

/// Plans on every rank of a group and makes sure that all agree before anything moves. Collective. Where ranks disagree
/// every one of them throws Error bad_input that names a differing rank, the field and both values, and the group stays
/// usable; where one cannot plan, all throw its reason. The device is the transport's. Where ranks find themselves on
/// unlike machines, all plan for rank 0's.
[[nodiscard]] std::shared_ptr<const Plan> agree_on_plan(const Problem& problem, const PlanOptions& options,
                                                        Transport& transport);

/// A schedule on a shard, counted over all ranks (of more than 64: over some that stand for all).
struct Candidate {
  ScheduleOptions schedule;
  ShardKind shard = ShardKind::contiguous;
  Cost forward_max, backward_max;  ///< of the costliest rank, field by field
  double forward_flops_mean = 0;   ///< over ranks: balance is mean / max
  int partials = 1;                ///< most attention calls that one output or gradient is summed from
  double seconds = 0;              ///< predicted by `machine`, of the slowest rank
};
[[nodiscard]] Candidate evaluate(const Problem& problem, const Shard& shard, const ScheduleOptions& forward,
                                 const ScheduleOptions& backward, const Machine& machine);

}  // namespace rotunda
