#include "base/fnv.hpp"
#include "problem/keys.hpp"

namespace rotunda {

std::string to_text(const Problem& problem) {
  std::string text;
  for (const Key& key : problem_keys()) {
    const Printed value = key.print(problem);
    if (value.left_out) continue;
    if (!text.empty()) text += ' ';
    text.append(key.name).append("=").append(value.text);
  }
  return text;
}

std::uint64_t hash(const Problem& problem) {
  return fnv1a(to_text(problem));
}

}  // namespace rotunda
