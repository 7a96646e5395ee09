#include "cli/session.hpp"

#include <algorithm>

#include "cli/session_runner.hpp"

namespace rotunda::cli {
namespace {

std::unique_ptr<Runner> make_runner(const SessionSetup& setup, const Tensors& inputs) {
  if (setup.graph) return run_graphs(setup, inputs);
  return setup.process ? run_one_process(setup, inputs) : run_threads(setup, inputs);
}

}  // namespace

Session::Session(const SessionSetup& setup, const Tensors& inputs) : runner_(make_runner(setup, inputs)) {}

Session::~Session() = default;

double Session::forward() {
  return forward(1).front();
}
double Session::backward() {
  return backward(1).front();
}
double Session::both() {
  return both(1).front();
}
std::vector<double> Session::forward(int times) {
  return runner_->run({true, false, times});
}
std::vector<double> Session::backward(int times) {
  return runner_->run({false, true, times});
}
std::vector<double> Session::both(int times) {
  return runner_->run({true, true, times});
}

const std::vector<RankReport>& Session::reports() const {
  return runner_->reports();
}

void Session::gather(const Tensors& outputs) const {
  runner_->gather(outputs);
}

std::string Session::from_first(const std::string& text) {
  return runner_->from_first(text);
}

std::int64_t peak_workspace_bytes(const std::vector<RankReport>& reports) {
  std::int64_t most = 0;
  for (const RankReport& report : reports) {
    most = std::max({most, report.forward.workspace_bytes, report.backward.workspace_bytes});
  }
  return most;
}

std::int64_t bytes_moved(const std::vector<RankReport>& reports) {
  std::int64_t sum = 0;
  for (const RankReport& report : reports) sum += report.forward.bytes_sent + report.backward.bytes_sent;
  return sum;
}

double exposed_ms(const std::vector<RankReport>& reports) {
  double most = 0;
  for (const RankReport& report : reports) {
    most = std::max(most, report.forward.exposed_seconds + report.backward.exposed_seconds);
  }
  return 1e3 * most;
}

}  // namespace rotunda::cli
