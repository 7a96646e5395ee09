// Pulls between ranks that are threads of this process, to test what is said between processes without a device.
#pragma once

#include <mutex>

#include "base/copy.hpp"
#include "transport/process/mover.hpp"
#include "transport/process/records.hpp"

namespace rotunda::testing {

class HostMover final : public process::Mover {
 public:
  [[nodiscard]] int slots() const override { return 100; }
  std::string offer(int, int, std::span<const TensorView> views) override {
    std::string where;
    for (const TensorView& view : views) process::put(where, view.data);
    pass();
    return where;
  }
  process::Mark pull(int, int, std::string_view where, std::span<const TensorView> from, std::span<const TensorView> to,
                     const process::Mark&) override {
    pass();
    for (std::size_t i = 0; i < from.size(); ++i) {
      TensorView source = from[i];
      source.data = process::get<void*>(where);
      rotunda::copy(source, to[i]);
    }
    pass();
    return nullptr;
  }
  void wait_taken(int, int) override { pass(); }
  process::Mark copy(std::span<const TensorView> from, std::span<const TensorView> to, const process::Mark&) override {
    for (std::size_t i = 0; i < from.size(); ++i) rotunda::copy(from[i], to[i]);
    return nullptr;
  }

 private:
  /// The ranks' order, for checkers of threads: they don't know that two mappings of shared memory are one.
  static void pass() {
    static std::mutex mutex;
    const std::scoped_lock lock(mutex);
  }
};

}  // namespace rotunda::testing
