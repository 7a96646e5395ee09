// Values of a problem's keys before they have a type: words of the text form, or JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rotunda {

/// One value as it was written. Scalars keep their text, so that 64.0 is not taken for 64 and messages can show it.
struct Value {
  enum class Kind { word, null, boolean, number, string, array, object };
  Kind kind = Kind::word;          ///< word: the text form's, which has no types
  std::string text;                ///< scalars
  std::vector<Value> items;        ///< array: the items; object: the members' values
  std::vector<std::string> names;  ///< object: the members' names, in the same order

  [[nodiscard]] bool is_array() const { return kind == Kind::array; }
  [[nodiscard]] bool is_object() const { return kind == Kind::object; }
};

/// Reads JSON that is at most three containers deep and names no member twice. `where` starts the message.
/// @throws Error bad_input
[[nodiscard]] Value parse_json(std::string_view text, std::string_view where);

/// A user's text for a message: without control characters, cut after `limit` bytes.
[[nodiscard]] std::string printable(std::string_view text, std::size_t limit = 80);

/// A value for a message.
[[nodiscard]] std::string shown(const Value& value);

}  // namespace rotunda
