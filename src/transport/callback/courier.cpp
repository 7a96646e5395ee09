#include "transport/callback/courier.hpp"

#include <algorithm>
#include <chrono>
#include <span>

#include "base/fail.hpp"
#include "transport/disagreement.hpp"

namespace rotunda::callback {
namespace {

/// How long a destructor waits for the host program after it has been told to stop.
constexpr auto kPatience = std::chrono::seconds(2);

}  // namespace

struct Courier::State {
  State(int the_rank, std::shared_ptr<HostExchange> the_exchange) : rank(the_rank), exchange(std::move(the_exchange)) {}

  const int rank;
  const std::shared_ptr<HostExchange> exchange;

  mutable std::mutex mutex;
  std::condition_variable work, news;
  std::deque<Errand> errands;
  bool busy = false, stopping = false, ended = false;
  std::optional<std::string> error;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [this] { return stopping || !errands.empty(); });
      if (stopping) break;
      const Errand errand = std::move(errands.front());
      errands.pop_front();
      busy = true;
      lock.unlock();
      std::optional<std::string> problem;
      try {
        run(errand);
      } catch (const std::exception& exception) {
        problem = exception.what();
      } catch (...) {
        problem = "an exception of an unknown type";
      }
      lock.lock();
      busy = false;
      if (problem && !error) error = problem;
      if (error) errands.clear();
      news.notify_all();
    }
    ended = true;
    news.notify_all();
  }

  void run(const Errand& errand) {
    for (const auto& parcel : errand.receives) {
      parcel->label_ticket = exchange->receive(parcel->peer, std::as_writable_bytes(std::span(parcel->label)));
    }
    for (const auto& parcel : errand.receives) {
      parcel->awaited = true;
      exchange->wait(parcel->label_ticket);
      parcel->awaited = false;
      parcel->difference = difference(*parcel);
      if (!parcel->difference.empty()) {
        finish(*parcel);
        return;  // the group ends here
      }
      if (parcel->bytes.bytes() > 0) parcel->ticket = exchange->receive(parcel->peer, span_of(parcel->bytes));
    }
    for (const auto& parcel : errand.receives) {
      if (parcel->bytes.bytes() > 0) exchange->wait(parcel->ticket);
      finish(*parcel);
    }
    for (const auto& parcel : errand.sends) {
      exchange->wait(parcel->label_ticket);
      if (parcel->bytes.bytes() > 0) exchange->wait(parcel->ticket);
      finish(*parcel);
    }
  }

  static std::span<std::byte> span_of(const HostBuffer& buffer) {
    return {buffer.data(), static_cast<std::size_t>(buffer.bytes())};
  }

  void finish(Parcel& parcel) {
    const std::scoped_lock lock(mutex);
    parcel.done = true;
    news.notify_all();
  }

  [[nodiscard]] std::string difference(const Parcel& parcel) const {
    const Label said = read_label(parcel.label);
    if (said.id == parcel.id && said.messages == parcel.views.size() && said.hash == hash_of(parcel.views)) return {};
    std::vector<TensorView> source = said.views;
    source.resize(said.messages);
    // What the label has no room for is taken to be the same.
    for (std::size_t i = said.views.size(); i < std::min(source.size(), parcel.views.size()); ++i) {
      source[i] = parcel.views[i];
    }
    auto text = disagreement({parcel.peer, rank, said.id, parcel.id, source, parcel.views});
    if (!text.empty()) return text;
    return fmt::format(
        "exchange {} differs between rank {} and rank {}: a message after the first {} has another shape or "
        "dtype on either side",
        parcel.id, parcel.peer, rank, said.views.size());
  }
};

Courier::Courier(int rank, std::shared_ptr<HostExchange> exchange)
    : state_(std::make_shared<State>(rank, std::move(exchange))), thread_([state = state_] { state->serve(); }) {}

Courier::~Courier() {
  bool busy = false;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
    busy = state_->busy;
    state_->work.notify_all();
  }
  if (busy) stop();
  std::unique_lock lock(state_->mutex);
  const bool ended = state_->news.wait_for(lock, kPatience, [this] { return state_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Courier::run(const Errand& errand) {
  for (const auto& parcel : errand.sends) {
    parcel->label_ticket = state_->exchange->send(parcel->peer, std::as_bytes(std::span(parcel->label)));
    if (parcel->bytes.bytes() > 0) {
      parcel->ticket = state_->exchange->send(parcel->peer, State::span_of(parcel->bytes));
    }
  }
  const std::scoped_lock lock(state_->mutex);
  state_->errands.push_back(errand);
  state_->work.notify_all();
}

bool Courier::wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->news.wait_until(lock, deadline, done);
}

std::optional<std::string> Courier::error() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->error;
}

void Courier::wake() {
  const std::scoped_lock lock(state_->mutex);
  state_->news.notify_all();
}

void Courier::stop() noexcept {
  state_->exchange->stop();
}

}  // namespace rotunda::callback
