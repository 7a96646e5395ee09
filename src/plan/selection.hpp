// Selection: which kernel, transport, schedule and shard serve a problem, with a reason for each that does not.
#pragma once

#include <string>
#include <vector>

#include "kernel/kernel.hpp"
#include "rotunda/plan.hpp"

namespace rotunda {

/// Why a kernel or a transport is not used that could be.
inline constexpr const char* kDisabled = "disabled by ROTUNDA_DISABLE";

/// Schedules and shard that a plan will use, the same on every rank.
struct Choice {
  ScheduleOptions forward, backward;
  Shard shard;
  std::vector<Refusal> refusals;
};

/// The first kernel in order of preference that serves on the device; the others go to refusals.
/// @throws Error unsupported with every reason
[[nodiscard]] const Kernel& choose_kernel(const Problem& problem, const PlanOptions& options, const Device& device,
                                          std::vector<Refusal>& refusals);
/// @throws Error unsupported (one that does not move the device's memory, too), bad_input
[[nodiscard]] std::string choose_transport(const PlanOptions& options, const Device& device,
                                           std::vector<Refusal>& refusals);
/// The device of a rank. @throws Error unsupported, bad_input
[[nodiscard]] Device choose_device(const Problem& problem, const PlanOptions& options, int rank,
                                   std::vector<Refusal>& refusals);
/// What a rank of so many threads can do there: figures of the device's calibration, else round ones.
[[nodiscard]] Machine machine_of(const Problem& problem, const Kernel& kernel, const Device& device, int threads);
/// All figures on one line.
[[nodiscard]] std::string to_text(const Machine& machine);
/// What the caller left open, by the time predicted for a machine, among what the kernel serves.
/// @throws Error bad_input, unsupported
[[nodiscard]] Choice choose_schedule(const Problem& problem, const PlanOptions& options, int ranks,
                                     const Kernel& kernel, const Device& device, const Machine& machine);

/// One direction of a schedule on a shard, counted as a Candidate is.
struct DirectionCost {
  Cost most;                    ///< of the costliest rank, field by field
  double flops_mean = 0;        ///< over ranks
  int partials = 1;             ///< as Candidate's
  std::vector<double> seconds;  ///< predicted, by rank counted

  /// Counts one more rank.
  void add(const Problem& problem, const Program& program, const Machine& machine);
};
/// Whether a rank is among those that are counted: all, or in large groups some that stand for all.
[[nodiscard]] bool is_counted(int rank, int ranks);
[[nodiscard]] DirectionCost evaluate_direction(const Problem& problem, const Shard& shard,
                                               const ScheduleOptions& options, const Machine& machine, bool backward);
/// `backward` may be null: no gradients.
[[nodiscard]] Candidate combine(const Shard& shard, const ScheduleOptions& options, const DirectionCost& forward,
                                const DirectionCost* backward);

/// Most results of attention calls that one output or gradient of a program is summed from: the calls of one head
/// group's rows here, and the key gradients that arrive from other ranks.
[[nodiscard]] int partials(const Program& program);

/// The kernel calls of a program.
[[nodiscard]] std::vector<CallShape> calls_of(const Program& program, int threads, const Device& device);

}  // namespace rotunda
