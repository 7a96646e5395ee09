// Ranks as threads of this process on CUDA devices, whose work is captured into CUDA graphs once and then replayed.
#include <map>
#include <utility>

#include "cli/session_runner.hpp"
#include "rotunda/graph.hpp"

namespace rotunda::cli {
namespace {

class Graphs final : public Runner {
 public:
  Graphs(const SessionSetup& setup, const Tensors& inputs) : setup_(setup), group_(make_group(setup)) {
    works_.resize(group_.size());
    reports_.resize(group_.size());
    const auto born = SessionClock::now();
    run_ranks(group_, [&](Transport& transport) {
      auto& work = works_[static_cast<std::size_t>(transport.rank())];
      work = std::make_unique<RankWork>(setup_, transport, inputs, born);
      // What a capture can't make is made now.
      (void)work->perform({true, setup_.problem.grad, 1});
    });
    report();
    stream_ = OwnedStream(device());
  }

  std::vector<double> run(const Task& task) override {
    GroupGraph& graph = graph_of(task);
    std::vector<Moment> moments;
    moments.emplace_back(device(), stream_.get());
    for (int i = 0; i < task.times; ++i) {
      graph.replay(stream_.get());
      moments.emplace_back(device(), stream_.get());
    }
    synchronize(device(), stream_.get());
    std::vector<double> seconds;
    for (std::size_t i = 1; i < moments.size(); ++i) seconds.push_back(moments[i].seconds_after(moments[i - 1]));
    return seconds;
  }

  void gather(const Tensors& outputs) override { gather_ranks(setup_.problem, works_, outputs); }
  [[nodiscard]] const std::vector<RankReport>& reports() const override { return reports_; }
  [[nodiscard]] std::string from_first(const std::string& text) override { return text; }

 private:
  /// Of rank 0, whose stream the graphs begin and end on.
  [[nodiscard]] Device device() const { return group_.front()->device(); }

  void report() {
    for (std::size_t rank = 0; rank < works_.size(); ++rank) reports_[rank] = works_[rank]->report();
  }

  GroupGraph& graph_of(const Task& task) {
    const std::pair key(task.forward, task.backward);
    const auto found = graphs_.find(key);
    if (found != graphs_.end()) return found->second;
    GroupGraph graph(group_, [&](Transport& transport, Stream stream) {
      works_[static_cast<std::size_t>(transport.rank())]->enqueue(task, stream);
    });
    report();
    return graphs_.emplace(key, std::move(graph)).first->second;
  }

  const SessionSetup setup_;
  std::vector<std::unique_ptr<Transport>> group_;
  std::vector<std::unique_ptr<RankWork>> works_;  ///< before their transports
  std::vector<RankReport> reports_;
  OwnedStream stream_;
  std::map<std::pair<bool, bool>, GroupGraph> graphs_;  ///< before what they use
};

}  // namespace

std::unique_ptr<Runner> run_graphs(const SessionSetup& setup, const Tensors& inputs) {
  return std::make_unique<Graphs>(setup, inputs);
}

}  // namespace rotunda::cli
