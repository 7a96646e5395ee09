#include "cli/timing.hpp"

#include <algorithm>

namespace rotunda::cli {
namespace {

struct Samples {
  std::vector<double> forward, backward, both;
};

void run_once(Session& session, bool grad, Samples* samples) {
  const double forward = session.forward();
  const double backward = grad ? session.backward() : 0;
  const double both = grad ? session.both() : 0;
  if (samples == nullptr) return;
  samples->forward.push_back(forward);
  if (grad) samples->backward.push_back(backward);
  if (grad) samples->both.push_back(both);
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
  for (int i = 0; i < warm_up + repeat; ++i) {
    for (std::size_t s = 0; s < sessions.size(); ++s) {
      run_once(*sessions[s], grad, i < warm_up ? nullptr : &samples[s]);
    }
    progress(static_cast<double>(i + 1) / (warm_up + repeat));
  }
  std::vector<Times> times;
  for (const Samples& each : samples) times.push_back({median(each.forward), median(each.backward), median(each.both)});
  return times;
}

}  // namespace rotunda::cli
