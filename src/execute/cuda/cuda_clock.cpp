#include <utility>

#include "base/cuda/check.hpp"
#include "base/cuda/event.hpp"
#include "execute/step_clock.hpp"

namespace rotunda {
namespace {

using Clock = std::chrono::steady_clock;

class CudaClock final : public StepClock {
 public:
  CudaClock(const Device& device, Stream stream, Clock::time_point epoch)
      : device_(device), stream_(stream), start_(record()), start_seconds_(seconds_since(epoch)) {}

  [[nodiscard]] bool keeps_events() const override { return true; }

  void begin() override { begin_ = record(); }

  void end(TraceEvent::Lane lane, const std::string& name, bool waits) override {
    intervals_.emplace_back(lane, name, std::move(begin_), record(), waits);
  }

  double resolve(std::vector<TraceEvent>* events) override {
    double waited = 0;
    for (Interval& interval : intervals_) {
      const double from = start_seconds_ + interval.begin.seconds_after(start_);
      const double to = start_seconds_ + interval.end.seconds_after(start_);
      if (interval.waits) waited += to - from;
      if (events != nullptr) events->push_back({interval.lane, interval.name, from, to});
    }
    intervals_.clear();
    return waited;
  }

 private:
  struct Interval {
    Interval(TraceEvent::Lane the_lane, std::string the_name, cuda::Event the_begin, cuda::Event the_end, bool waiting)
        : lane(the_lane),
          name(std::move(the_name)),
          begin(std::move(the_begin)),
          end(std::move(the_end)),
          waits(waiting) {}

    TraceEvent::Lane lane;
    std::string name;
    cuda::Event begin, end;
    bool waits;
  };

  [[nodiscard]] cuda::Event record() const {
    cuda::Event event(device_.index, cuda::Event::Use::timing);
    event.record(stream_);
    return event;
  }
  /// The host's time at the start event: an idle stream reaches it at once.
  [[nodiscard]] double seconds_since(Clock::time_point epoch) const {
    return std::chrono::duration<double>(Clock::now() - epoch).count();
  }

  Device device_;
  Stream stream_;
  cuda::Event start_;
  double start_seconds_;
  cuda::Event begin_;
  std::vector<Interval> intervals_;
};

}  // namespace

std::unique_ptr<StepClock> cuda_clock(const Device& device, Stream stream, Clock::time_point epoch) {
  return std::make_unique<CudaClock>(device, stream, epoch);
}

}  // namespace rotunda
