// Pulls between ranks that are threads of this process, to test what is said between processes without a device.
#pragma once

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
    return where;
  }
  process::Mark pull(int, int, std::string_view where, std::span<const TensorView> from, std::span<const TensorView> to,
                     const process::Mark&) override {
    for (std::size_t i = 0; i < from.size(); ++i) {
      TensorView source = from[i];
      source.data = process::get<void*>(where);
      rotunda::copy(source, to[i]);
    }
    return nullptr;
  }
  process::Mark copy(std::span<const TensorView> from, std::span<const TensorView> to, const process::Mark&) override {
    for (std::size_t i = 0; i < from.size(); ++i) rotunda::copy(from[i], to[i]);
    return nullptr;
  }
};

}  // namespace rotunda::testing
