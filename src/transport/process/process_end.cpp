#include "transport/process/process_end.hpp"

#include <algorithm>
#include <csignal>
#include <thread>

#include "base/fail.hpp"
#include "transport/membership.hpp"

namespace rotunda::process {

ProcessEnd::ProcessEnd(const ProcessOptions& options, std::unique_ptr<Rendezvous> rendezvous)
    : options_(options), rendezvous_(std::move(rendezvous)) {}

void ProcessEnd::check_post(int id, std::span<const Message> sends, std::span<const Message> receives) {
  check_group();
  inject_fault(++posts_);
  rendezvous_->set_progress(posts_);
  for (const auto messages : {sends, receives}) {
    for (const Message& message : messages) {
      if (message.peer >= 0 && message.peer < size()) continue;
      fail(ErrorKind::internal, "exchange {} of rank {} names rank {}: the group has ranks 0 to {}", id, rank(),
           message.peer, size() - 1);
    }
  }
  const auto to_self = [this](const Message& message) { return message.peer == rank(); };
  const auto self_sends = std::ranges::count_if(sends, to_self);
  const auto self_receives = std::ranges::count_if(receives, to_self);
  if (self_sends != self_receives) {
    fail_all(fmt::format("exchange {}: rank {} sends {} messages to itself and receives {}", id, rank(), self_sends,
                         self_receives));
  }
}

void ProcessEnd::check_agreement() {
  check_group();
  if (agreements_++ == 0) inject_fault(0);
}

std::vector<std::string> ProcessEnd::all_gather_text(const std::string& text) {
  check_agreement();
  try {
    return rendezvous_->all_gather(text);
  } catch (const Error&) {
    stop();
    throw;
  }
}

void ProcessEnd::abort(const std::string& reason) noexcept {
  rendezvous_->abort(reason);
  stop();
}

void ProcessEnd::check_group() {
  if (!rendezvous_->failed()) return;
  stop();
  check_failure(*rendezvous_);
}

void ProcessEnd::fail_all(const std::string& reason) {
  check_group();
  rendezvous_->abort(reason);
  stop();
  throw Error(ErrorKind::transport, reason);
}

void ProcessEnd::inject_fault(int number) {
  const Fault& fault = options_.fault;
  if (fault.kind == Fault::Kind::none || fault.rank != rank() || fault.after != number) return;
  if (fault.kind == Fault::Kind::dies) std::raise(SIGKILL);
  const auto others_left = [this] {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank() && !rendezvous_->has_left(peer)) return false;
    }
    return true;
  };
  while (fault.kind == Fault::Kind::stalls && !rendezvous_->failed() && !others_left()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  check_group();
  const auto where = number == 0 ? std::string("at the agreement") : fmt::format("at its exchange number {}", number);
  fail_all(fmt::format("injected fault: rank {} {} {}", rank(), fault.kind == Fault::Kind::throws ? "throws" : "stalls",
                       where));
}

}  // namespace rotunda::process
