// CUDA events for reuse.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/cuda/event.hpp"

namespace rotunda::cuda {

/// Making an event costs more than recording it. An event may go back while streams still wait for it, because a wait
/// holds what had been recorded when it was asked for. Thread-safe; held by std::shared_ptr.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(int device) : device_(device) {}

  [[nodiscard]] std::shared_ptr<Event> take() {
    auto self = shared_from_this();
    auto* event = new Event(pop());
    return {event, [self](Event* used) {
              self->give_back(std::move(*used));
              delete used;
            }};
  }

 private:
  Event pop() {
    {
      const std::scoped_lock lock(mutex_);
      if (!free_.empty()) {
        Event event = std::move(free_.back());
        free_.pop_back();
        return event;
      }
    }
    return {device_, Event::Use::order};
  }
  void give_back(Event&& event) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(event));
  }

  int device_;
  std::mutex mutex_;
  std::vector<Event> free_;
};

}  // namespace rotunda::cuda
