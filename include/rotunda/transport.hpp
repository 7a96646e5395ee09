// Transports: how buffers move between the ranks of a group.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rotunda/device.hpp"
#include "rotunda/error.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda {

/// One tensor to or from a peer. Views on both sides have the same shape and dtype; strides are each side's own.
struct Message {
  int peer = 0;
  TensorView view;
};

/// What a rank has moved since it was made.
struct TransportCounters {
  std::int64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0, messages_received = 0;
};

/// One rank's end of a group. Used by one thread at a time; the ends of a group live in different threads or processes.
///
/// On a CUDA device everything is in stream order: post takes what the rank's stream has been given so far as done
/// before the exchange, await makes the stream wait, and both return without waiting for the device (await does wait
/// until the peers' hosts have posted their sides).
///
/// Collective order: all ranks post the same exchange ids in the same order between two agreements. Every wait has the
/// group's timeout. After an abort (by anybody) every call of every rank throws Error transport, which names the rank
/// that failed and why; the group is then of no further use.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Where the messages of this rank lie.
  [[nodiscard]] virtual Device device() const { return {}; }
  /// The stream of this rank's work from now on (CUDA), which waits for what the one before it was given. Default: the
  /// device's default stream.
  virtual void use_stream(Stream) {}

  /// Starts exchange `id`. Sends are readable and receives writable from now until awaited. Message i of a pair of
  /// ranks meets message i, own rank as peer allowed. Does not block. An id may be posted again once its earlier post
  /// has been awaited (both ways where it has messages both ways): the n-th post for a pair meets the n-th.
  /// @throws Error transport where the two sides differ in id, number of messages, shape or dtype
  virtual void post(int id, std::span<const Message> sends, std::span<const Message> receives) = 0;
  /// Returns when everything that exchange `id` receives has arrived. @throws Error transport
  virtual void await(int id) = 0;
  /// Returns when everything that exchange `id` sends may be overwritten. @throws Error transport
  virtual void await_sent(int id) = 0;

  /// Every rank's text, by rank: small host data for agreement. @throws Error transport
  [[nodiscard]] virtual std::vector<std::string> all_gather_text(const std::string& text) = 0;

  /// Tells every rank that this one has failed; wakes those that wait. When it returns nobody touches this rank's
  /// buffers any more: call it before an error frees what has been posted. (Errors of the transport's own calls have
  /// done so already.) Safe to call twice, never throws.
  virtual void abort(const std::string& reason) noexcept = 0;

  [[nodiscard]] virtual TransportCounters counters() const = 0;
};

/// A fault to inject, for tests: rank `rank` misbehaves when it posts its exchange number `after`, counted from 1 (0:
/// at its first all_gather_text). It throws an Error; or stalls until another rank has failed or all others have ended;
/// or dies: its body is left without a word to the others (under run_ranks), or its process is killed.
struct Fault {
  enum class Kind { none, throws, stalls, dies } kind = Kind::none;
  int rank = 0;
  int after = 0;
};

struct LocalOptions {
  std::chrono::milliseconds timeout{60'000};
  Fault fault;
  /// CUDA device of rank r: devices[r % size], shared where there are more ranks; empty: host memory.
  std::vector<int> devices{};
};

/// Ranks as threads of this process, on host memory or CUDA devices. The result's element r belongs to rank r's thread.
/// Between devices the copy engines move the messages, from the sender's views straight to the receiver's.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> make_local_group(int ranks, const LocalOptions& options = {});

/// Runs body(transport) for every rank, each in its own thread, and joins them. A body that throws aborts the group;
/// one that returns leaves it, so whoever still waits for it gets an error at once. The error rethrown is the first
/// that is not an echo of another rank's abort. A group that has not failed may be run again, exchange ids starting
/// anew.
void run_ranks(std::vector<std::unique_ptr<Transport>>& group, const std::function<void(Transport&)>& body);

/// The place of this process in a job of one rank a process.
struct ProcessGroup {
  int rank = 0, size = 1;
  int local_rank = 0;    ///< among the ranks of its host
  std::string address;   ///< where rank 0 listens: "unix:PATH" (one host) or "HOST:PORT"
  std::string launcher;  ///< who says so
};

/// What torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), mpirun (Open MPI, MVAPICH, PMI) or srun have told this
/// process; nothing where none of them has started it. Where MASTER_ADDR is not set, ranks of one host meet at a Unix
/// socket in /tmp that is named after the job, and those of Slurm on several hosts at the first node.
/// @throws Error bad_input for values that make no sense, and where several hosts need MASTER_ADDR and MASTER_PORT
[[nodiscard]] std::optional<ProcessGroup> find_process_group();

struct ProcessOptions {
  ProcessGroup group;
  std::chrono::milliseconds timeout{60'000};
  Device device = cuda_device(0);  ///< of this rank's messages; ranks may share one (ipc only)
  Fault fault;
};

/// This process's end of a group in which every rank is a process of its own. Collective: returns when all are there.
///
/// - ipc: CUDA devices of one host. Peers' memory is mapped (CUDA IPC) and pulled by the copy engines, ordered by flags
///   in device memory; no kernel takes part. Tensors must lie in memory of cudaMalloc.
/// - nccl: one CUDA device a rank, any hosts. NCCL is loaded when it is first used; views that are not dense travel
///   through staging memory. Whether both sides of a message agree is not checked.
///
/// Both can be captured into CUDA graphs, each process capturing its own part: all processes replay alike, in step.
/// A process that dies is noticed at once, one that is late after the timeout. Streams that wait for it are then let
/// go, so that nothing hangs, and every later call throws: what a stream has computed counts when a call after it, such
/// as all_gather_text, has not thrown.
/// @throws Error transport (who is missing), unsupported (what a rank lacks, on all ranks alike), bad_input (an unknown
/// name)
[[nodiscard]] std::unique_ptr<Transport> make_process_transport(const std::string& name, const ProcessOptions& options);

/// Bytes between the ranks of a group, as a host program carries them (torch.distributed, say). The n-th send of rank a
/// to rank b meets the n-th receive of b from a, and both are equally long. Called from the rank's thread and from one
/// of the transport's; what it throws becomes the group's failure.
class HostExchange {
 public:
  virtual ~HostExchange() = default;
  HostExchange() = default;
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  /// Starts one and returns its ticket without waiting for the peer. The bytes stay where they are until its wait has
  /// returned.
  virtual std::int64_t send(int peer, std::span<const std::byte> bytes) = 0;
  virtual std::int64_t receive(int peer, std::span<std::byte> bytes) = 0;
  /// Returns when it is done. Called at most once for each.
  virtual void wait(std::int64_t ticket) = 0;
  /// After a failure: waits, begun or to come, should end soon. Called from any thread, more than once.
  virtual void stop() noexcept = 0;
};

/// This process's end of a group on host memory whose bytes `exchange` carries. Ranks meet at the group's address,
/// where they also learn of each other's failures. Collective. @throws Error transport, unsupported (a CUDA device)
[[nodiscard]] std::unique_ptr<Transport> make_callback_transport(const ProcessOptions& options,
                                                                 std::shared_ptr<HostExchange> exchange);

}  // namespace rotunda
