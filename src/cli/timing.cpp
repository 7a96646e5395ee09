#include "cli/timing.hpp"

#include <algorithm>
#include <thread>

namespace rotunda::cli {
namespace {

struct Samples {
  std::vector<double> forward, backward, both;
};

void append(std::vector<double>& to, const std::vector<double>& from, std::size_t skip) {
  for (std::size_t i = skip; i < from.size(); ++i) to.push_back(from[i]);
}

using Method = std::vector<double> (Session::*)(int);

/// Seconds of each run; of several sessions at once, their mean.
std::vector<double> run(const Contestant& contestant, Method method, int times) {
  std::vector<std::vector<double>> seconds(contestant.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < contestant.size(); ++i) {
      threads.emplace_back([&, i] { seconds[i] = (contestant[i]->*method)(times); });
    }
    seconds[0] = (contestant[0]->*method)(times);
  }
  std::vector<double> mean = seconds[0];
  for (std::size_t run = 0; run < mean.size(); ++run) {
    for (std::size_t i = 1; i < seconds.size(); ++i) mean[run] += seconds[i].at(run);
    mean[run] /= static_cast<double>(seconds.size());
  }
  return mean;
}

/// One turn. On a CUDA device it is several runs back to back, of which the first, which starts on an idle device, does
/// not count.
void take_turn(const Contestant& contestant, bool grad, Samples& samples) {
  const bool cuda = contestant.front()->plan().device.is_cuda();
  const int times = cuda ? 6 : 1;
  const std::size_t skip = cuda ? 1 : 0;
  append(samples.forward, run(contestant, &Session::forward, times), skip);
  if (!grad) return;
  append(samples.backward, run(contestant, &Session::backward, times), skip);
  append(samples.both, run(contestant, &Session::both, times), skip);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<Times> time_by_turns(const std::vector<Contestant>& contestants, bool grad, int repeat,
                                 const std::function<void(double)>& progress) {
  constexpr int warm_up = 2;
  std::vector<Samples> samples(contestants.size());
  for (const Contestant& contestant : contestants) {
    for (int i = 0; i < warm_up; ++i) {
      Samples unrecorded;
      take_turn(contestant, grad, unrecorded);
    }
  }
  std::size_t done = 0;
  while (done < static_cast<std::size_t>(repeat)) {
    for (std::size_t c = 0; c < contestants.size(); ++c) take_turn(contestants[c], grad, samples[c]);
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
