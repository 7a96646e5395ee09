#include "transport/callback/callback_transport.hpp"

#include <algorithm>
#include <chrono>

#include "base/copy.hpp"
#include "base/fail.hpp"
#include "transport/disagreement.hpp"

namespace rotunda::callback {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a failure of the host program waits for its cause: a process that has ended is known to the rendezvous
/// within this time.
constexpr auto kGrace = std::chrono::milliseconds(500);

std::int64_t bytes_of(const TensorView& view) {
  return view.elements() * static_cast<std::int64_t>(size_of(view.dtype));
}

/// Calls body(view, the same elements densely packed) for every view of a parcel.
template <class Body>
void for_packed(const Parcel& parcel, Body&& body) {
  std::byte* at = parcel.bytes.data();
  for (const TensorView& view : parcel.views) {
    body(view, make_view(at, view.dtype, Layout::bshd, view.batch(), view.rows(), view.heads(), view.dim()));
    at += bytes_of(view);
  }
}

}  // namespace

CallbackTransport::CallbackTransport(const ProcessOptions& options, std::unique_ptr<Rendezvous> rendezvous,
                                     std::shared_ptr<HostExchange> exchange)
    : ProcessEnd(options, std::move(rendezvous)), courier_(options.group.rank, std::move(exchange)) {
  this->rendezvous().on_failure([this] { courier_.wake(); });
}

CallbackTransport::~CallbackTransport() {
  rendezvous().on_failure({});
}

void CallbackTransport::post(int id, std::span<const Message> sends, std::span<const Message> receives) {
  check_post(id, sends, receives);
  const auto earlier = posted_.find(id);
  if (earlier != posted_.end() && !(earlier->second.sent && earlier->second.received)) {
    fail(ErrorKind::internal, "rank {} posts exchange {} again, whose earlier post it has not awaited", rank(), id);
  }
  copy_own(sends, receives, id);
  Posted posted;
  posted.errand = {parcels(id, sends), parcels(id, receives)};
  for (const auto& parcel : posted.errand.sends) {
    parcel->label = write_label(id, parcel->views);
    for_packed(*parcel, [](const TensorView& view, const TensorView& packed) { copy(view, packed); });
  }
  posted.sent = sends.empty();
  posted.received = receives.empty();
  const Posted& kept = posted_[id] = std::move(posted);
  if (kept.errand.sends.empty() && kept.errand.receives.empty()) return;
  try {
    courier_.run(kept.errand);
  } catch (const std::exception& error) {
    fail_all(fmt::format("the exchange of rank {} failed: {}", rank(), error.what()));
  }
}

void CallbackTransport::copy_own(std::span<const Message> sends, std::span<const Message> receives, int id) {
  const auto own = [this](std::span<const Message> messages) {
    std::vector<TensorView> views;
    for (const Message& message : messages) {
      if (message.peer == rank()) views.push_back(message.view);
    }
    return views;
  };
  const auto from = own(sends), to = own(receives);
  if (const auto text = disagreement({rank(), rank(), id, id, from, to}); !text.empty()) fail_all(text);
  for (std::size_t i = 0; i < from.size(); ++i) copy(from[i], to[i]);
}

CallbackTransport::Parcels CallbackTransport::parcels(int id, std::span<const Message> messages) const {
  std::map<int, std::shared_ptr<Parcel>> by_peer;
  for (const Message& message : messages) {
    if (message.peer == rank()) continue;
    auto& parcel = by_peer[message.peer];
    if (parcel == nullptr) parcel = std::make_shared<Parcel>();
    parcel->peer = message.peer;
    parcel->id = id;
    parcel->views.push_back(message.view);
  }
  Parcels result;
  for (auto& [peer, parcel] : by_peer) {
    parcel->label.resize(kLabelBytes);
    parcel->bytes = HostBuffer(total_bytes(parcel->views));
    result.push_back(std::move(parcel));
  }
  return result;
}

CallbackTransport::Posted& CallbackTransport::find(int id) {
  const auto posted = posted_.find(id);
  if (posted == posted_.end()) {
    fail(ErrorKind::internal, "rank {} awaits exchange {}, which it has not posted", rank(), id);
  }
  return posted->second;
}

void CallbackTransport::await(int id) {
  check_group();
  Posted& posted = find(id);
  if (posted.received) return;
  wait_for(posted.errand.receives, "to send");
  for (const auto& parcel : posted.errand.receives) {
    for_packed(*parcel, [](const TensorView& view, const TensorView& packed) { copy(packed, view); });
    counters_.messages_received += static_cast<std::int64_t>(parcel->views.size());
    counters_.bytes_received += parcel->bytes.bytes();
  }
  posted.errand.receives.clear();
  posted.received = true;
}

void CallbackTransport::await_sent(int id) {
  check_group();
  Posted& posted = find(id);
  if (posted.sent) return;
  wait_for(posted.errand.sends, "to receive");
  for (const auto& parcel : posted.errand.sends) {
    counters_.messages_sent += static_cast<std::int64_t>(parcel->views.size());
    counters_.bytes_sent += parcel->bytes.bytes();
  }
  posted.errand.sends.clear();
  posted.sent = true;
}

std::optional<CallbackTransport::Reason> CallbackTransport::reason_to_give_up(const Parcel& lacking,
                                                                              const char* action) const {
  if (const auto error = courier_.error()) {
    return Reason{fmt::format("the exchange of rank {} failed: {}", rank(), *error), kGrace};
  }
  if (!lacking.awaited) return std::nullopt;  // what the courier has not got to may be here already
  const int peer = lacking.peer;
  const auto what = fmt::format("{} exchange {}", action, lacking.id);
  if (rendezvous().has_left(peer)) {
    return Reason{fmt::format("rank {} waits for rank {} {}, but rank {} has left the group", rank(), peer, what, peer),
                  kGrace};
  }
  if (rendezvous().waits_in_agreement(peer)) return Reason{elsewhere_text(rendezvous(), peer, what), kElsewhere};
  return std::nullopt;
}

std::string CallbackTransport::late(const Parcel& lacking, const char* action) const {
  const int behind = rendezvous().slowest().first;
  const bool named = behind == lacking.peer || behind == rank();
  return late_text(rendezvous(), lacking.peer, fmt::format("{} exchange {}", action, lacking.id)) +
         (named ? "" : fmt::format("; rank {} is the furthest behind", behind));
}

void CallbackTransport::wait_for(const Parcels& parcels, const char* action) {
  const auto deadline = Clock::now() + options().timeout;
  const auto next = [&] { return std::ranges::find_if(parcels, [](const auto& parcel) { return !parcel->done; }); };
  std::optional<Clock::time_point> suspicious;  // since when there is a reason to give up before the deadline
  while (true) {
    check_group();
    const auto lacking = next();
    if (lacking == parcels.end()) break;
    const auto reason = reason_to_give_up(**lacking, action);
    if (!reason) suspicious.reset();
    if (reason && !suspicious) suspicious = Clock::now();
    const auto end = suspicious ? std::min(deadline, *suspicious + reason->grace) : deadline;
    if (Clock::now() >= end) fail_all(reason ? reason->text : late(**lacking, action));
    // Leaving and agreements are told to the rendezvous alone: look now and then.
    const auto look = std::min(end, Clock::now() + std::chrono::milliseconds(50));
    courier_.wait([&] { return next() == parcels.end() || rendezvous().failed(); }, look);
  }
  for (const auto& parcel : parcels) {
    if (!parcel->difference.empty()) fail_all(parcel->difference);
  }
}

}  // namespace rotunda::callback

namespace rotunda {

std::unique_ptr<Transport> make_callback_transport(const ProcessOptions& options,
                                                   std::shared_ptr<HostExchange> exchange) {
  if (options.device.is_cuda()) {
    fail(ErrorKind::unsupported, "transport callback moves host memory, and rank {} is on {}: use ipc or nccl there",
         options.group.rank, to_string(options.device));
  }
  if (exchange == nullptr) fail(ErrorKind::bad_input, "transport callback needs an exchange that carries its bytes");
  const auto& [rank, size, local_rank, address, launcher] = options.group;
  auto rendezvous = std::make_unique<Rendezvous>(RendezvousOptions{rank, size, address, options.timeout});
  return std::make_unique<callback::CallbackTransport>(options, std::move(rendezvous), std::move(exchange));
}

}  // namespace rotunda
