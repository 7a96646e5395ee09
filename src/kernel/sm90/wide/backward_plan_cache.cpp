#include "kernel/sm90/wide/backward_plan_cache.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

namespace rotunda::sm90::wide {
namespace {

constexpr std::size_t kKept = 32, kBytesKept = 64 << 20;

struct Entry {
  BackwardShape shape;
  std::shared_ptr<const BackwardPlan> plan;
};

}  // namespace

std::shared_ptr<const BackwardPlan> plan_of(const BackwardShape& shape) {
  static std::mutex mutex;
  static std::list<Entry> recent;  // the last used first
  {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(recent.begin(), recent.end(), [&](const Entry& e) { return e.shape == shape; });
    if (found != recent.end()) {
      recent.splice(recent.begin(), recent, found);
      return found->plan;
    }
  }
  auto plan = std::make_shared<const BackwardPlan>(plan_backward(shape));
  const std::lock_guard lock(mutex);
  recent.push_front({shape, plan});
  std::size_t plans = 0, bytes = 0;
  const auto kept = [&](const Entry& entry) {
    bytes += entry.plan->lists.size() + entry.shape.slices.size() * sizeof(Slice);
    return ++plans == 1 || (plans <= kKept && bytes <= kBytesKept);
  };
  recent.erase(std::find_if_not(recent.begin(), recent.end(), kept), recent.end());
  return plan;
}

}  // namespace rotunda::sm90::wide
