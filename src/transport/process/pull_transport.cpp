#include "transport/process/pull_transport.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/fail.hpp"
#include "transport/disagreement.hpp"
#include "transport/process/records.hpp"

namespace rotunda::process {
namespace {

using Clock = std::chrono::steady_clock;

enum class RecordKind : std::uint32_t { offer, taken };

/// Waits a little longer every time: peers answer within microseconds where they are at it, and are not robbed of their
/// core where there are few.
class Patience {
 public:
  void wait() {
    ++turns_;
    if (turns_ < 200) return;
    if (turns_ < 1000) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(turns_ < 2000 ? 20 : 200));
  }
  void reset() { turns_ = 0; }

 private:
  int turns_ = 0;
};

std::map<int, std::vector<TensorView>> by_peer(std::span<const Message> messages) {
  std::map<int, std::vector<TensorView>> result;
  for (const Message& message : messages) result[message.peer].push_back(message.view);
  return result;
}

/// Strides travel, addresses don't: the mover has its own words for those.
void put_view(std::string& bytes, const TensorView& view) {
  put(bytes, view.dtype);
  put(bytes, view.shape);
  put(bytes, view.stride);
}

TensorView get_view(std::string_view& bytes) {
  TensorView view;
  view.dtype = get<DType>(bytes);
  view.shape = get<decltype(view.shape)>(bytes);
  view.stride = get<decltype(view.stride)>(bytes);
  return view;
}

}  // namespace

PullTransport::PullTransport(std::string name, const ProcessOptions& options, std::unique_ptr<Rendezvous> rendezvous,
                             std::unique_ptr<Mailbox> mailbox, std::unique_ptr<Mover> mover)
    : ProcessEnd(options, std::move(rendezvous)),
      name_(std::move(name)),
      mailbox_(std::move(mailbox)),
      mover_(std::move(mover)),
      peers_(static_cast<std::size_t>(options.group.size)) {}

PullTransport::~PullTransport() {
  const bool busy =
      std::ranges::any_of(posted_, [](const auto& entry) { return !(entry.second.sent && entry.second.received); });
  if (busy || rendezvous().failed()) mover_->stop();
}

void PullTransport::post(int id, std::span<const Message> sends, std::span<const Message> receives) {
  check_post(id, sends, receives);
  const auto earlier = posted_.find(id);
  if (earlier != posted_.end() && !(earlier->second.sent && earlier->second.received)) {
    fail(ErrorKind::internal, "rank {} posts exchange {} again, whose earlier post it has not awaited", rank(), id);
  }
  Posted& posted = posted_[id] = {};
  const auto outgoing = by_peer(sends), incoming = by_peer(receives);
  for (const auto& [rank_to, views] : outgoing) {
    if (rank_to != rank()) send_to(rank_to, id, views, posted);
  }
  // Pulls come after this rank's own offers: nobody's queue then has a wait before the signal that lets its peer go on,
  // not even where a graph's branches run one after the other.
  const Mark mark = incoming.empty() ? nullptr : mover_->mark();
  if (const auto own = outgoing.find(rank()); own != outgoing.end()) {
    copy_own(own->second, incoming.at(rank()), id, mark, posted);
  }
  for (const auto& [rank_from, views] : incoming) {
    if (rank_from == rank()) continue;
    auto received = std::make_shared<Received>(Received{rank_from, id, views, mark, nullptr, false});
    posted.receives.push_back(received);
    peer(rank_from).wanted.push_back(std::move(received));
  }
  posted.sent = posted.sends.empty() && posted.own.empty();
  posted.received = posted.receives.empty() && posted.own.empty();
  serve();
}

int PullTransport::slot_of(int rank, int id) {
  auto& slots = peer(rank).slots;
  const auto found = slots.find(id);
  if (found != slots.end()) return found->second;
  const int slot = static_cast<int>(slots.size());
  if (slot >= mover_->slots()) {
    fail_all(fmt::format("transport {} serves {} different exchanges between two ranks, and exchange {} is one more",
                         name_, mover_->slots(), id));
  }
  return slots[id] = slot;
}

void PullTransport::send_to(int rank, int id, const std::vector<TensorView>& views, Posted& posted) {
  Peer& to = peer(rank);
  const int slot = slot_of(rank, id);
  std::string record;
  put(record, RecordKind::offer);
  put(record, id);
  put(record, slot);
  put(record, static_cast<std::uint32_t>(views.size()));
  for (const TensorView& view : views) put_view(record, view);
  record += mover_->offer(rank, slot, views);  // enqueued before anybody hears of it
  std::string framed;
  put(framed, static_cast<std::uint32_t>(record.size()));
  mailbox_->send(rank, framed + record);
  posted.sends.push_back({rank, slot, ++to.offered});
  to.unconfirmed.emplace_back(views.size(), total_bytes(views));
}

void PullTransport::copy_own(const std::vector<TensorView>& from, const std::vector<TensorView>& to, int id,
                             const Mark& mark, Posted& posted) {
  if (const auto text = disagreement({rank(), rank(), id, id, from, to}); !text.empty()) fail_all(text);
  posted.own.push_back(mover_->copy(from, to, mark));
}

PullTransport::Posted& PullTransport::find(int id) {
  const auto posted = posted_.find(id);
  if (posted == posted_.end()) {
    fail(ErrorKind::internal, "rank {} awaits exchange {}, which it has not posted", rank(), id);
  }
  return posted->second;
}

void PullTransport::await(int id) {
  check_group();
  Posted& posted = find(id);
  wait([&]() -> std::optional<Missing> {
    for (const auto& received : posted.receives) {
      if (!received->done) return Missing{received->peer, fmt::format("to send exchange {}", id)};
    }
    return std::nullopt;
  });
  if (!posted.received) {
    for (const auto& received : posted.receives) mover_->wait(received->arrived);
    for (const Mark& arrived : posted.own) mover_->wait(arrived);
  }
  posted.received = true;
}

void PullTransport::await_sent(int id) {
  check_group();
  Posted& posted = find(id);
  wait([&]() -> std::optional<Missing> {
    for (const Sent& sent : posted.sends) {
      if (peer(sent.peer).taken < sent.number) return Missing{sent.peer, fmt::format("to receive exchange {}", id)};
    }
    return std::nullopt;
  });
  if (!posted.sent) {  // a signal is waited for once, and then free for the next round
    for (const Sent& sent : posted.sends) mover_->wait_taken(sent.peer, sent.slot);
    for (const Mark& arrived : posted.own) mover_->wait(arrived);
  }
  posted.sent = true;
}

std::vector<std::string> PullTransport::all_gather_text(const std::string& text) {
  check_agreement();
  mover_->tidy();
  const std::int64_t number = rendezvous().join(text);
  std::optional<std::vector<std::string>> texts;
  wait([&]() -> std::optional<Missing> {
    texts = rendezvous().result(number);
    if (texts) return std::nullopt;
    return Missing{rendezvous().missing_in(number), fmt::format("to join agreement {}", number)};
  });
  return *std::move(texts);
}

bool PullTransport::serve() {
  bool news = false;
  mailbox_->flush();
  for (int from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    take_records(from);
    Peer& other = peer(from);
    while (!other.offers.empty() && !other.wanted.empty()) {
      const Offer offer = std::move(other.offers.front());
      const std::shared_ptr<Received> received = std::move(other.wanted.front());
      other.offers.pop_front();
      other.wanted.pop_front();
      pull(from, offer, *received);
      news = true;
    }
  }
  return news;
}

void PullTransport::take_records(int from) {
  std::string& bytes = peer(from).incoming;
  mailbox_->receive(from, bytes);
  std::size_t done = 0;
  while (bytes.size() - done >= sizeof(std::uint32_t)) {
    std::string_view rest(bytes.data() + done, bytes.size() - done);
    const auto length = get<std::uint32_t>(rest);
    if (rest.size() < length) break;
    take_record(from, rest.substr(0, length));
    done += sizeof length + length;
  }
  bytes.erase(0, done);
}

void PullTransport::take_record(int from, std::string_view record) {
  Peer& other = peer(from);
  if (get<RecordKind>(record) == RecordKind::taken) {
    ++other.taken;
    const auto [messages, bytes] = other.unconfirmed.front();
    other.unconfirmed.pop_front();
    counters_.messages_sent += messages;
    counters_.bytes_sent += bytes;
    return;
  }
  Offer offer;
  offer.id = get<int>(record);
  offer.slot = get<int>(record);
  offer.views.resize(get<std::uint32_t>(record));
  for (TensorView& view : offer.views) view = get_view(record);
  offer.where = record;
  other.offers.push_back(std::move(offer));
}

void PullTransport::pull(int from, const Offer& offer, Received& received) {
  const PostedPair pair{from, rank(), received.id, offer.id, offer.views, received.views};
  if (const auto text = disagreement(pair); !text.empty()) fail_all(text);
  received.arrived = mover_->pull(from, offer.slot, offer.where, offer.views, received.views, received.wanted);
  received.done = true;
  std::string record;
  put(record, static_cast<std::uint32_t>(sizeof(RecordKind)));
  put(record, RecordKind::taken);
  mailbox_->send(from, record);
  counters_.messages_received += static_cast<std::int64_t>(received.views.size());
  counters_.bytes_received += total_bytes(received.views);
}

void PullTransport::wait(const std::function<std::optional<Missing>()>& missing) {
  const auto deadline = Clock::now() + options().timeout;
  auto elsewhere = Clock::time_point::max();  // when a peer that waits in an agreement has nothing more to say
  Patience patience;
  while (true) {
    check_group();
    if (serve()) patience.reset();
    auto lacking = missing();
    if (!lacking) return;
    // Who leaves has said all it had to before: what is not here now won't come.
    if (lacking->peer != rank() && rendezvous().has_left(lacking->peer)) {
      serve();
      lacking = missing();
      if (!lacking) return;
      fail_all(fmt::format("rank {} waits for rank {} {}, but rank {} has left the group", rank(), lacking->peer,
                           lacking->what, lacking->peer));
    }
    if (lacking->peer != rank() && rendezvous().waits_in_agreement(lacking->peer)) {
      elsewhere = std::min(elsewhere, Clock::now() + kElsewhere);
      if (Clock::now() >= elsewhere) fail_all(elsewhere_text(rendezvous(), lacking->peer, lacking->what));
    }
    if (Clock::now() >= deadline) fail_all(late_text(rendezvous(), lacking->peer, lacking->what));
    patience.wait();
  }
}

}  // namespace rotunda::process
