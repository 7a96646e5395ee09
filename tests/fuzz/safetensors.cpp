// libFuzzer target: any bytes are a valid safetensors file or give one rotunda::Error, nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "cli/safetensors.hpp"
#include "rotunda/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto header = rotunda::cli::parse_safetensors(bytes, "fuzz");
    for (const auto& [name, entry] : header.tensors) {
      const auto end = static_cast<std::uint64_t>(header.data_begin) + static_cast<std::uint64_t>(entry.end);
      if (entry.begin < 0 || entry.begin > entry.end || end > size) std::abort();
    }
  } catch (const rotunda::Error& error) {
    if (error.kind() != rotunda::ErrorKind::bad_input) std::abort();
  }
  return 0;
}
