// The lists that a program's steps hold: what a device that runs it needs in its own memory.
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>

#include "rotunda/schedule.hpp"

namespace rotunda {

/// Calls body(first element, bytes) for every list of slices or rows that is not empty.
template <class Body>
void for_each_list(const Program& program, Body&& body) {
  const auto visit = [&](const auto& list) {
    const auto bytes = static_cast<std::int64_t>(list.size() * sizeof(list[0]));
    if (bytes > 0) body(static_cast<const void*>(list.data()), bytes);
  };
  for (const Step& step : program.steps) {
    std::visit(
        [&](const auto& s) {
          if constexpr (requires { s.slices; }) visit(s.slices);
          if constexpr (requires { s.rows; }) visit(s.rows);
        },
        step);
  }
}

[[nodiscard]] inline std::int64_t list_bytes(const Program& program) {
  std::int64_t sum = 0;
  for_each_list(program, [&](const void*, std::int64_t bytes) { sum += bytes; });
  return sum;
}

}  // namespace rotunda
