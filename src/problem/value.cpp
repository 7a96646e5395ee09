#include "problem/value.hpp"

namespace rotunda {

std::string printable(std::string_view text, std::size_t limit) {
  const bool cut = text.size() > limit;
  if (cut) {
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0U) == 0x80U) --limit;  // not inside a character
    text = text.substr(0, limit);
  }
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20U || c == 0x7f) c = '?';
  }
  return cut ? result + "…" : result;
}

std::string shown(const Value& value) {
  if (value.kind == Value::Kind::string) return printable('"' + value.text + '"');
  if (!value.is_array() && !value.is_object()) return printable(value.text);
  if (value.is_object()) return "{…}";
  std::string list;
  for (const Value& item : value.items) {
    if (list.size() > 80) break;
    list += (list.empty() ? "" : ",") + shown(item);
  }
  return printable("[" + list + "]");
}

}  // namespace rotunda
