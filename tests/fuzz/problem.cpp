// Any bytes as a problem text: only rotunda::Error may come out, and what parses prints a text of the same problem.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "rotunda/problem.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.find('@') != std::string_view::npos) return 0;  // names a file of this machine
  rotunda::Problem problem;
  try {
    problem = rotunda::parse_problem(text);
  } catch (const rotunda::Error&) {
    return 0;
  }
  // Outside the try: an error here is a fault too.
  if (!(rotunda::parse_problem(rotunda::to_text(problem)) == problem)) std::abort();
  return 0;
}
