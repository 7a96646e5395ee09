// The local transport: ranks are threads of one process, messages are copies in host memory.
//
// Pull: a sender publishes its views, and the receiver's thread copies straight from them into its own, once, with no
// buffer between. Copies happen inside the receiver's waits, whatever it waits for; so ranks that wait for each other
// always get on. A sender's memory is read until its await_sent returns; where a sender fails first, its posts are
// withdrawn before the error leaves the transport.
//
// Between CUDA devices (cuda/cuda_mover.cpp) the receiver's thread does not copy but enqueues the copies on streams of
// its own, behind the marks of both sides; await and await_sent make the rank's stream wait for the arrival.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/local/group.hpp"
#include "transport/membership.hpp"

namespace rotunda::local {

class LocalTransport final : public Transport, public Membership {
 public:
  LocalTransport(std::shared_ptr<Group> group, int rank, const Device& device, std::unique_ptr<Mover> mover)
      : group_(std::move(group)), rank_(rank), device_(device), mover_(std::move(mover)) {}
  ~LocalTransport() override { leave(); }

  [[nodiscard]] std::string name() const override { return "local"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return group_->size; }
  [[nodiscard]] Device device() const override { return device_; }
  void use_stream(Stream stream) override { mover_->use_stream(stream); }

  /// An id may be posted again when its earlier post has been awaited, both ways where both have messages.
  void post(int id, std::span<const Message> sends, std::span<const Message> receives) override;
  void await(int id) override;
  void await_sent(int id) override;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& text) override;
  /// When it returns nobody reads this rank's memory any more.
  void abort(const std::string& reason) noexcept override;
  [[nodiscard]] TransportCounters counters() const override;

  void leave() noexcept override;
  void rejoin() override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Deliveries = std::vector<std::shared_ptr<Delivery>>;

  /// What this rank has posted under an id.
  struct Posted {
    Deliveries sends, receives;
    bool received = false, sent = false;  ///< awaited
  };

  /// What a wait still lacks: "rank 0 waits for rank `peer` `action` `number`".
  struct Missing {
    int peer = 0;
    const char* action = "";
    std::int64_t number = 0;
  };

  void check_post(Lock& lock, int id, std::span<const Message> messages);
  /// Posts one side's messages, one delivery a peer, appended to `deliveries` as they become visible to others.
  void post_side(Lock& lock, int id, std::span<const Message> messages, bool sending, const Mark& mark,
                 Deliveries& deliveries);
  Posted& find(Lock& lock, int id);
  void pull(Lock& lock, Delivery& delivery);
  bool pull_any(Lock& lock);
  void wait(Lock& lock, const std::function<std::optional<Missing>()>& missing);
  [[nodiscard]] std::string blame(const Missing& missing) const;
  void inject_fault(Lock& lock, int number);
  /// Takes back what this rank has sent and nobody has copied; waits for copies at work. Before every error, because
  /// the memory may be freed as the error unwinds the stack.
  void withdraw(Lock& lock) noexcept;
  /// Throws the group's failure if there is one.
  void check_failure(Lock& lock);
  /// Throws for a wrong call of this rank. The group learns of it when the rank aborts.
  [[noreturn]] void fail_call(Lock& lock, const std::string& reason);
  /// Makes `reason` the group's failure and throws it.
  [[noreturn]] void fail_group(Lock& lock, const std::string& reason);

  std::shared_ptr<Group> group_;
  int rank_ = 0;
  Device device_;
  std::unique_ptr<Mover> mover_;
  int posts_ = 0;
  std::map<int, Posted> posted_;
  Deliveries incoming_;  ///< receives that have not arrived, in posting order
};

}  // namespace rotunda::local
