#include <exception>
#include <mutex>
#include <thread>

#include "base/fail.hpp"
#include "rotunda/transport.hpp"
#include "transport/membership.hpp"

namespace rotunda {
namespace {

/// How the bodies of a run ended; the first of each kind counts.
struct Outcome {
  std::mutex mutex;
  std::exception_ptr error, echo, death;

  static void keep_first(std::exception_ptr& place, const std::exception_ptr& error) {
    if (!place) place = error;
  }
};

/// The handler of a body that threw: tells the group, and keeps the error.
void record(Outcome& outcome, Transport& transport) {
  const std::exception_ptr current = std::current_exception();
  std::exception_ptr* place = &outcome.error;
  std::exception_ptr kept = current;
  try {
    std::rethrow_exception(current);
  } catch (const RankDied&) {
    // Nothing is said to the others: they have to notice that the rank has left.
    place = &outcome.death;
    kept = std::make_exception_ptr(
        Error(ErrorKind::transport, fmt::format("rank {} ended before its work was done", transport.rank())));
  } catch (const AbortEcho&) {
    place = &outcome.echo;
  } catch (const std::exception& error) {
    transport.abort(error.what());
  } catch (...) {
    transport.abort("an exception of an unknown type");
  }
  const std::scoped_lock lock(outcome.mutex);
  Outcome::keep_first(*place, kept);
}

void run_one(Outcome& outcome, Transport& transport, const std::function<void(Transport&)>& body) {
  try {
    body(transport);
  } catch (...) {
    record(outcome, transport);
  }
  if (auto* member = dynamic_cast<Membership*>(&transport)) member->leave();
}

}  // namespace

void run_ranks(std::vector<std::unique_ptr<Transport>>& group, const std::function<void(Transport&)>& body) {
  Outcome outcome;
  {
    std::vector<std::jthread> threads;  // joins at the end of the block
    threads.reserve(group.size());
    try {
      for (auto& transport : group) {
        threads.emplace_back([&outcome, &body, &end = *transport] { run_one(outcome, end, body); });
      }
    } catch (const std::exception& error) {  // the system has no more threads
      group[threads.size()]->abort(error.what());
      const std::scoped_lock lock(outcome.mutex);
      outcome.error = std::current_exception();
    }
  }
  for (auto& transport : group) {
    if (auto* member = dynamic_cast<Membership*>(transport.get())) member->rejoin();
  }
  for (const auto& error : {outcome.error, outcome.echo, outcome.death}) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace rotunda
