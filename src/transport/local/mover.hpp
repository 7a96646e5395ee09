// How the messages of a local group move: at once in host memory, or in stream order between CUDA devices.
#pragma once

#include <memory>
#include <span>

#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::local {

/// A point in a rank's work that others may wait for. Host memory needs none: what has been posted is done.
using Mark = std::shared_ptr<void>;

/// One rank's means of moving messages, used by that rank's thread alone.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual void use_stream(Stream) {}
  /// The rank's work so far.
  virtual Mark mark() { return nullptr; }
  /// to[i] = from[i], once the work before both marks is done. Returns when that has been arranged; the mark is the
  /// arrival.
  virtual Mark copy(int peer, std::span<const TensorView> from, std::span<const TensorView> to, const Mark& offered,
                    const Mark& wanted) = 0;
  /// The rank's work from now on comes after the mark.
  virtual void wait(const Mark&) {}
  /// Returns when the mark has been reached on the device.
  virtual void settle(const Mark&) noexcept {}
};

[[nodiscard]] std::unique_ptr<Mover> host_mover();
/// For a rank on `device` whose peers are on `peers`. @throws Error device
[[nodiscard]] std::unique_ptr<Mover> cuda_mover(const Device& device, std::span<const int> peers);

}  // namespace rotunda::local
