#include "cli/timing.hpp"

#include <algorithm>

namespace rotunda::cli {
namespace {

struct Samples {
  std::vector<double> forward, backward, both;
};

void append(std::vector<double>& to, const std::vector<double>& from, std::size_t skip) {
  for (std::size_t i = skip; i < from.size(); ++i) to.push_back(from[i]);
}

/// One turn of a session. On a CUDA device a turn is several runs back to back, of which the first, which starts on an
/// idle device, does not count: what remains is the steady time.
void take_turn(Session& session, bool grad, Samples& samples) {
  const bool cuda = session.plan().device.is_cuda();
  const int times = cuda ? 6 : 1;
  const std::size_t skip = cuda ? 1 : 0;
  append(samples.forward, session.forward(times), skip);
  if (!grad) return;
  append(samples.backward, session.backward(times), skip);
  append(samples.both, session.both(times), skip);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<Times> time_by_turns(const std::vector<Session*>& sessions, bool grad, int repeat,
                                 const std::function<void(double)>& progress) {
  constexpr int warm_up = 2;
  std::vector<Samples> samples(sessions.size());
  for (Session* session : sessions) {
    for (int i = 0; i < warm_up; ++i) {
      Samples unrecorded;
      take_turn(*session, grad, unrecorded);
    }
  }
  std::size_t done = 0;
  while (done < static_cast<std::size_t>(repeat)) {
    for (std::size_t s = 0; s < sessions.size(); ++s) take_turn(*sessions[s], grad, samples[s]);
    done = std::min_element(samples.begin(), samples.end(), [](const Samples& a, const Samples& b) {
             return a.forward.size() < b.forward.size();
           })->forward.size();
    progress(std::min(1.0, static_cast<double>(done) / repeat));
  }
  std::vector<Times> times;
  for (const Samples& each : samples) times.push_back({median(each.forward), median(each.backward), median(each.both)});
  return times;
}

}  // namespace rotunda::cli
