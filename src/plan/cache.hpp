// Caches of plans and of the choices that they share between ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "plan/selection.hpp"

namespace rotunda {

/// A bounded, thread-safe map from text to values that are made once: threads that ask for a key in the making wait for
/// it. The value least recently asked for goes first. A value whose making throws is not kept; all who wait get the
/// error.
template <class Value>
class Memo {
 public:
  explicit Memo(std::size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<const Value> get(const std::string& key, const std::function<std::shared_ptr<const Value>()>& make) {
    std::promise<std::shared_ptr<const Value>> promise;
    std::shared_future<std::shared_ptr<const Value>> future;
    bool mine = false;
    {
      const std::scoped_lock lock(mutex_);
      if (const auto found = index_.find(key); found != index_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        future = found->second->second;
      } else {
        mine = true;
        future = promise.get_future().share();
        entries_.emplace_front(key, future);
        index_[key] = entries_.begin();
        if (entries_.size() > capacity_) {
          index_.erase(entries_.back().first);
          entries_.pop_back();
        }
      }
    }
    if (mine) {
      try {
        promise.set_value(make());
      } catch (...) {
        promise.set_exception(std::current_exception());
        const std::scoped_lock lock(mutex_);
        if (const auto found = index_.find(key); found != index_.end()) {
          entries_.erase(found->second);
          index_.erase(found);
        }
      }
    }
    return future.get();
  }

  [[nodiscard]] std::size_t size() const {
    const std::scoped_lock lock(mutex_);
    return entries_.size();
  }

 private:
  using Entry = std::pair<std::string, std::shared_future<std::shared_ptr<const Value>>>;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently asked for first
  std::unordered_map<std::string, typename std::list<Entry>::iterator> index_;
};

/// choose_schedule through a cache: the ranks of a process choose once.
[[nodiscard]] std::shared_ptr<const Choice> cached_choice(const Problem& problem, const PlanOptions& options, int ranks,
                                                          const Kernel& kernel, const Device& device,
                                                          const Machine& machine);

}  // namespace rotunda
