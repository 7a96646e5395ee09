#include "execute/step_clock.hpp"

namespace rotunda {
namespace {

using Clock = std::chrono::steady_clock;

class HostClock final : public StepClock {
 public:
  HostClock(Clock::time_point epoch, bool keeps_events) : epoch_(epoch), keeps_events_(keeps_events) {}

  [[nodiscard]] bool keeps_events() const override { return keeps_events_; }

  void begin() override { begin_ = Clock::now(); }

  void end(TraceEvent::Lane lane, const std::string& name, bool waits) override {
    const Clock::time_point end = Clock::now();
    if (waits) waited_ += std::chrono::duration<double>(end - begin_).count();
    if (keeps_events_) events_.push_back({lane, name, seconds(begin_), seconds(end)});
  }

  double resolve(std::vector<TraceEvent>* events) override {
    if (events != nullptr) events->insert(events->end(), events_.begin(), events_.end());
    events_.clear();
    return waited_;
  }

 private:
  [[nodiscard]] double seconds(Clock::time_point t) const { return std::chrono::duration<double>(t - epoch_).count(); }

  Clock::time_point epoch_, begin_;
  bool keeps_events_;
  std::vector<TraceEvent> events_;
  double waited_ = 0;
};

}  // namespace

std::unique_ptr<StepClock> host_clock(Clock::time_point epoch, bool keeps_events) {
  return std::make_unique<HostClock>(epoch, keeps_events);
}

}  // namespace rotunda
