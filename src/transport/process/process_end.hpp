// What the transports whose ranks are processes have in common: the rendezvous, wrong calls, faults, counters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rotunda/transport.hpp"
#include "transport/rendezvous/rendezvous.hpp"

namespace rotunda::process {

class ProcessEnd : public Transport {
 public:
  ProcessEnd(const ProcessOptions& options, std::unique_ptr<Rendezvous> rendezvous);

  [[nodiscard]] int rank() const final { return options_.group.rank; }
  [[nodiscard]] int size() const final { return options_.group.size; }
  [[nodiscard]] Device device() const final { return options_.device; }
  [[nodiscard]] TransportCounters counters() const final { return counters_; }
  /// Through the rendezvous, which waits alone: nothing of an exchange needs this thread meanwhile.
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& text) override;
  void abort(const std::string& reason) noexcept final;

 protected:
  /// At the start of post: the group's failure, an injected fault, wrong peers, own messages that don't match.
  void check_post(int id, std::span<const Message> sends, std::span<const Message> receives);
  /// At the start of all_gather_text.
  void check_agreement();
  /// Throws the group's failure, after stop(), if there is one.
  void check_group();
  /// Makes `reason` the group's failure, stops, and throws it.
  [[noreturn]] void fail_all(const std::string& reason);
  /// This process is not to touch its buffers any more: returns when that is so.
  virtual void stop() noexcept = 0;

  [[nodiscard]] Rendezvous& rendezvous() const { return *rendezvous_; }
  [[nodiscard]] const ProcessOptions& options() const { return options_; }
  [[nodiscard]] int posts() const { return posts_; }

  TransportCounters counters_;

 private:
  void inject_fault(int number);

  ProcessOptions options_;
  std::unique_ptr<Rendezvous> rendezvous_;
  int posts_ = 0, agreements_ = 0;
};

}  // namespace rotunda::process
