// The one table of keys: parsing (text and JSON), printing, messages and hints all read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "problem/value.hpp"
#include "rotunda/problem.hpp"

namespace rotunda {

/// A problem while it is being read: what was given, beside what it says.
struct Draft {
  Problem problem;
  std::string slices_name = "slices";   ///< in messages: with the file they come from
  bool bottom_right_mask = false;       ///< mask=causal_bottom_right was given
  std::vector<std::string_view> given;  ///< names of the keys read so far

  [[nodiscard]] bool has(std::string_view key) const;
};

enum class KeyLayouts { any, dense, thd };

/// A key's value in a problem.
struct Printed {
  std::string text;
  bool left_out = false;  ///< of to_text: the default, or said by another key
};

/// One key of the problem text.
struct Key {
  std::string_view name;
  std::string_view allowed;  ///< completes "allowed is …"
  KeyLayouts layouts;        ///< where it may be given
  bool beside_slices;        ///< may be given together with slices
  /// Reads a value into the draft. @throws Error bad_input
  void (*read)(Draft& draft, const Key& key, const Value& value);
  Printed (*print)(const Problem& problem);
};

/// All keys, in the order in which they are printed.
[[nodiscard]] std::span<const Key> problem_keys();
/// nullptr where there is none of that name.
[[nodiscard]] const Key* find_key(std::string_view name);

/// Why a key or a value that is known by name is refused as unsupported; empty for all others.
[[nodiscard]] std::string_view refused(std::string_view key, const Value& value);

/// The known key that `name` looks like a slip of; empty where none is near.
[[nodiscard]] std::string_view closest_key(std::string_view name);

/// As the public one; messages call the slices `slices_name`.
void normalize(Problem& problem, std::string_view slices_name);

/// Throws bad_input: "problem: KEY=VALUE: WHY"; without `why`, what the table allows.
[[noreturn]] void reject(std::string_view key, std::string_view value, std::string_view why = {});
[[noreturn]] void reject(std::string_view key, std::int64_t value, std::string_view why = {});

/// How messages call an element of a key's list: "cu_q[3]".
[[nodiscard]] std::string element_name(std::string_view key, std::size_t index);

/// A decimal integer. @throws Error bad_input naming `key`.
[[nodiscard]] std::int64_t read_integer(std::string_view key, const Value& value);
/// The same for an element of a key's list.
[[nodiscard]] std::int64_t read_element(const Key& key, std::size_t index, const Value& value);

}  // namespace rotunda
