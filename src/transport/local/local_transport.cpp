#include "transport/local/local_transport.hpp"

#include <algorithm>
#include <chrono>

#include "base/fail.hpp"
#include "transport/disagreement.hpp"
#include "transport/timeout.hpp"

namespace rotunda::local {

void LocalTransport::post(int id, std::span<const Message> sends, std::span<const Message> receives) {
  Lock lock(group_->mutex);
  check_failure(lock);
  inject_fault(lock, ++posts_);
  check_post(lock, id, sends);
  check_post(lock, id, receives);
  const auto to_self = [this](const Message& message) { return message.peer == rank_; };
  const auto self_sends = std::ranges::count_if(sends, to_self);
  const auto self_receives = std::ranges::count_if(receives, to_self);
  if (self_sends != self_receives) {  // else it would wait for itself
    fail_group(lock, fmt::format("exchange {}: rank {} sends {} messages to itself and receives {}", id, rank_,
                                 self_sends, self_receives));
  }
  Posted& posted = posted_[id] = {};
  const Mark mark = mover_->mark();
  post_side(lock, id, sends, true, mark, posted.sends);
  post_side(lock, id, receives, false, mark, posted.receives);
  posted.sent = posted.sends.empty();
  posted.received = posted.receives.empty();
}

void LocalTransport::check_post(Lock& lock, int id, std::span<const Message> messages) {
  for (const auto& message : messages) {
    if (message.peer >= 0 && message.peer < group_->size) continue;
    fail_call(lock, fmt::format("exchange {} of rank {} names rank {}: the group has ranks 0 to {}", id, rank_,
                                message.peer, group_->size - 1));
  }
  const auto earlier = posted_.find(id);
  if (earlier == posted_.end() || (earlier->second.received && earlier->second.sent)) return;
  fail_call(lock, fmt::format("rank {} posts exchange {} again, whose earlier post it has not awaited", rank_, id));
}

void LocalTransport::post_side(Lock& lock, int id, std::span<const Message> messages, bool sending, const Mark& mark,
                               Deliveries& deliveries) {
  std::map<int, std::vector<TensorView>> by_peer;
  for (const auto& message : messages) by_peer[message.peer].push_back(message.view);
  for (auto& [peer, views] : by_peer) {
    Channel& channel = sending ? group_->channel(rank_, peer) : group_->channel(peer, rank_);
    const bool meets = !channel.empty() && (sending ? channel.front()->wanted : channel.front()->offered);
    if (!meets) {
      channel.push_back(std::make_shared<Delivery>());
      channel.back()->id = id;
      channel.back()->from = sending ? rank_ : peer;
      channel.back()->to = sending ? peer : rank_;
    }
    const std::shared_ptr<Delivery> delivery = meets ? channel.front() : channel.back();
    if (meets) channel.pop_front();
    deliveries.push_back(delivery);
    if (!sending) incoming_.push_back(delivery);
    (sending ? delivery->source : delivery->target) = std::move(views);
    (sending ? delivery->offered : delivery->wanted) = true;
    (sending ? delivery->offered_at : delivery->wanted_at) = mark;
    if (meets) {
      const auto text =
          disagreement({delivery->from, delivery->to, delivery->id, id, delivery->source, delivery->target});
      if (!text.empty()) fail_group(lock, text);
    }
    group_->member(peer).wake.notify_all();
  }
}

void LocalTransport::await(int id) {
  Lock lock(group_->mutex);
  check_failure(lock);
  Posted& posted = find(lock, id);
  wait(lock, [&]() -> std::optional<Missing> {
    for (const auto& delivery : posted.receives) {
      if (!delivery->done()) return Missing{delivery->from, "to send exchange", id};
    }
    return std::nullopt;
  });
  for (const auto& delivery : posted.receives) mover_->wait(delivery->arrived_at);
  posted.received = true;
}

void LocalTransport::await_sent(int id) {
  Lock lock(group_->mutex);
  check_failure(lock);
  Posted& posted = find(lock, id);
  wait(lock, [&]() -> std::optional<Missing> {
    for (const auto& delivery : posted.sends) {
      if (!delivery->done()) return Missing{delivery->to, "to receive exchange", id};
    }
    return std::nullopt;
  });
  for (const auto& delivery : posted.sends) mover_->wait(delivery->arrived_at);
  posted.sent = true;
}

std::vector<std::string> LocalTransport::all_gather_text(const std::string& text) {
  Lock lock(group_->mutex);
  check_failure(lock);
  if (group_->member(rank_).agreements == 0) inject_fault(lock, 0);
  const auto size = static_cast<std::size_t>(group_->size);
  const std::int64_t number = group_->member(rank_).agreements++;
  auto& agreements = group_->agreements;
  // Finished agreements leave the front of the queue; deque references outlive insertion and removal at the ends.
  const auto index = static_cast<std::size_t>(number - group_->agreements_finished);
  while (agreements.size() <= index) agreements.push_back({std::vector<std::optional<std::string>>(size)});
  Agreement& agreement = agreements[index];
  agreement.texts[static_cast<std::size_t>(rank_)] = text;
  if (++agreement.joined == group_->size) group_->wake_all();  // nobody has anything to do before
  wait(lock, [&]() -> std::optional<Missing> {
    for (int peer = 0; peer < group_->size; ++peer) {
      if (!agreement.texts[static_cast<std::size_t>(peer)]) return Missing{peer, "to join agreement", number};
    }
    return std::nullopt;
  });
  std::vector<std::string> texts;
  texts.reserve(size);
  for (const auto& one : agreement.texts) texts.push_back(*one);
  ++agreement.taken;
  while (!agreements.empty() && agreements.front().taken == group_->size) {
    agreements.pop_front();
    ++group_->agreements_finished;
  }
  return texts;
}

void LocalTransport::abort(const std::string& reason) noexcept {
  Lock lock(group_->mutex);
  if (!group_->failure) group_->failure = Failure{rank_, reason};
  group_->wake_all();
  withdraw(lock);
}

TransportCounters LocalTransport::counters() const {
  const Lock lock(group_->mutex);
  return group_->member(rank_).counters;
}

void LocalTransport::leave() noexcept {
  Lock lock(group_->mutex);
  withdraw(lock);
  group_->member(rank_).left = true;
  group_->wake_all();
}

void LocalTransport::rejoin() {
  const Lock lock(group_->mutex);
  for (int peer = 0; peer < group_->size; ++peer) {
    group_->channel(rank_, peer).clear();
    group_->channel(peer, rank_).clear();
  }
  // What a rank that left early has not finished must not meet the next run's.
  group_->agreements.clear();
  group_->agreements_finished = 0;
  group_->member(rank_).agreements = 0;
  group_->member(rank_).left = false;
  posted_.clear();
  incoming_.clear();
}

LocalTransport::Posted& LocalTransport::find(Lock& lock, int id) {
  const auto posted = posted_.find(id);
  if (posted == posted_.end()) {
    fail_call(lock, fmt::format("rank {} awaits exchange {}, which it has not posted", rank_, id));
  }
  return posted->second;
}

void LocalTransport::pull(Lock& lock, Delivery& delivery) {
  delivery.state = Delivery::State::copying;
  lock.unlock();
  try {
    delivery.arrived_at =
        mover_->copy(delivery.from, delivery.source, delivery.target, delivery.offered_at, delivery.wanted_at);
  } catch (...) {  // a device has failed
    lock.lock();
    delivery.state = Delivery::State::withdrawn;
    group_->wake_all();
    throw;
  }
  lock.lock();
  delivery.state = Delivery::State::done;
  group_->member(delivery.from).wake.notify_all();
  if (delivery.from == rank_) return;  // nothing travelled
  const auto messages = static_cast<std::int64_t>(delivery.source.size());
  const std::int64_t bytes = total_bytes(delivery.source);
  group_->member(delivery.from).counters.messages_sent += messages;
  group_->member(delivery.from).counters.bytes_sent += bytes;
  group_->member(rank_).counters.messages_received += messages;
  group_->member(rank_).counters.bytes_received += bytes;
}

/// Copies the first exchange that can be copied; false where there is none.
bool LocalTransport::pull_any(Lock& lock) {
  const auto ready = std::ranges::find_if(incoming_, [](const auto& delivery) { return delivery->ready(); });
  if (ready == incoming_.end()) return false;
  const std::shared_ptr<Delivery> delivery = *ready;
  incoming_.erase(ready);
  pull(lock, *delivery);
  return true;
}

/// Sleeps and copies until nothing is missing.
void LocalTransport::wait(Lock& lock, const std::function<std::optional<Missing>()>& missing) {
  const auto deadline = std::chrono::steady_clock::now() + group_->options.timeout;
  Member& self = group_->member(rank_);
  while (true) {
    check_failure(lock);
    const auto lacking = missing();
    if (!lacking) break;
    if (pull_any(lock)) continue;
    if (lacking->peer != rank_ && group_->member(lacking->peer).left) {
      fail_group(lock, fmt::format("rank {} waits for rank {} {} {}, but rank {} has left the group", rank_,
                                   lacking->peer, lacking->action, lacking->number, lacking->peer));
    }
    if (std::chrono::steady_clock::now() >= deadline) fail_group(lock, blame(*lacking));
    self.waits_for = lacking->peer;
    self.wake.wait_until(lock, deadline);
    self.waits_for = -1;
  }
}

/// The sentence of a timeout. Where the late rank itself waits, the one at the end of the chain is to blame.
std::string LocalTransport::blame(const Missing& missing) const {
  const double seconds = std::chrono::duration<double>(group_->options.timeout).count();
  auto text = fmt::format("rank {} waited {} s for rank {} {} {}", rank_, seconds, missing.peer, missing.action,
                          missing.number);
  int late = missing.peer;
  for (int hop = 0; hop < group_->size && group_->member(late).waits_for >= 0; ++hop) {
    late = group_->member(late).waits_for;
    text += fmt::format(", which waits for rank {}", late);
    if (late == rank_) break;
  }
  return text;
}

void LocalTransport::inject_fault(Lock& lock, int number) {
  const Fault& fault = group_->options.fault;
  if (fault.kind == Fault::Kind::none || fault.rank != rank_ || fault.after != number) return;
  const auto where = number == 0 ? std::string("at the agreement") : fmt::format("at its exchange number {}", number);
  if (fault.kind == Fault::Kind::stalls) {
    // Until somebody notices, or nobody is left who could.
    group_->member(rank_).wake.wait(lock, [this] {
      int others = 0;
      for (int peer = 0; peer < group_->size; ++peer) others += peer != rank_ && !group_->member(peer).left ? 1 : 0;
      return group_->failure || others == 0;
    });
    check_failure(lock);
  }
  withdraw(lock);
  if (fault.kind == Fault::Kind::dies) throw RankDied{};
  fail(ErrorKind::transport, "injected fault: rank {} {} {}", rank_,
       fault.kind == Fault::Kind::throws ? "throws" : "stalls", where);
}

void LocalTransport::withdraw(Lock& lock) noexcept {
  for (auto& [id, posted] : posted_) {
    for (const auto& delivery : posted.sends) {
      group_->member(rank_).wake.wait(lock, [&] { return delivery->state != Delivery::State::copying; });
      if (delivery->state == Delivery::State::open) delivery->state = Delivery::State::withdrawn;
      // What has been awaited is in the order of the rank's stream already.
      if (delivery->done() && !posted.sent) mover_->settle(delivery->arrived_at);
    }
  }
  incoming_.clear();
}

void LocalTransport::check_failure(Lock& lock) {
  if (!group_->failure) return;
  withdraw(lock);
  throw AbortEcho(group_->failure->rank, group_->failure->reason);
}

void LocalTransport::fail_call(Lock& lock, const std::string& reason) {
  withdraw(lock);
  throw Error(ErrorKind::internal, reason);
}

void LocalTransport::fail_group(Lock& lock, const std::string& reason) {
  check_failure(lock);
  group_->failure = Failure{rank_, reason};
  group_->wake_all();
  withdraw(lock);
  throw Error(ErrorKind::transport, reason);
}

}  // namespace rotunda::local

namespace rotunda {

std::vector<std::unique_ptr<Transport>> make_local_group(int ranks, const LocalOptions& options) {
  if (ranks < 1) fail(ErrorKind::bad_input, "a group has {} ranks: at least 1 is needed", ranks);
  check_timeout(options.timeout);
  const auto shared = std::make_shared<local::Group>(ranks, options);
  std::vector<std::unique_ptr<Transport>> group;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool host = options.devices.empty();
    const Device device =
        host ? Device{} : cuda_device(options.devices[static_cast<std::size_t>(rank) % options.devices.size()]);
    auto mover = host ? local::host_mover() : local::cuda_mover(device, options.devices);
    group.push_back(std::make_unique<local::LocalTransport>(shared, rank, device, std::move(mover)));
  }
  return group;
}

}  // namespace rotunda
