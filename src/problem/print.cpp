#include "problem/keys.hpp"

namespace rotunda {

std::string to_text(const Problem& problem) {
  std::string text;
  for (const Key& key : problem_keys()) {
    const std::string value = key.print(problem);
    if (value.empty()) continue;
    if (!text.empty()) text += ' ';
    text.append(key.name).append("=").append(value);
  }
  return text;
}

std::uint64_t hash(const Problem& problem) {
  std::uint64_t state = 0xcbf29ce484222325U;  // FNV-1a, 64 bits: offset basis and prime
  for (const char c : to_text(problem)) {
    state ^= static_cast<unsigned char>(c);
    state *= 0x100000001b3U;
  }
  return state;
}

}  // namespace rotunda
