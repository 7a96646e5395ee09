// What the two sides of an exchange may say differently.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>

#include "rotunda/tensor.hpp"

namespace rotunda {

/// One direction of an exchange between two ranks, as both sides have posted it.
struct PostedPair {
  int from = 0, to = 0;
  int id = 0, other_id = 0;  ///< of the side that posted first, of the other
  std::span<const TensorView> source, target;
};

/// What the sides disagree about, or nothing.
[[nodiscard]] inline std::string disagreement(const PostedPair& pair) {
  const auto& [from, to, id, other_id, source, target] = pair;
  const auto between = fmt::format("between rank {} and rank {}", from, to);
  if (id != other_id) {
    return fmt::format("exchanges differ {}: one side posted exchange {}, the other exchange {}", between, id,
                       other_id);
  }
  if (source.size() != target.size()) {
    return fmt::format("exchange {} differs {}: rank {} sends {} messages, rank {} receives {}", id, between, from,
                       source.size(), to, target.size());
  }
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i].shape == target[i].shape && source[i].dtype == target[i].dtype) continue;
    return fmt::format("exchange {}, message {} differs {}: rank {} sends {}, rank {} receives {}", id, i, between,
                       from, describe(source[i]), to, describe(target[i]));
  }
  return {};
}

[[nodiscard]] inline std::int64_t total_bytes(std::span<const TensorView> views) {
  std::int64_t bytes = 0;
  for (const auto& view : views) bytes += view.bytes();
  return bytes;
}

}  // namespace rotunda
