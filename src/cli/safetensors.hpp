// safetensors files: an own reader and writer that trust nothing.
//
// Layout of a file: 8 bytes little-endian header length n, n bytes of JSON, then the data. The JSON maps each name to
// {"dtype", "shape", "data_offsets": [begin, end]} (offsets within the data), and "__metadata__" to strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rotunda::cli {

/// One tensor of a file, as its header says. shape is outermost axis first.
struct TensorEntry {
  std::string dtype;  ///< the format's own code, such as "BF16"
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  ///< bytes within the data

  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  ///< bytes before the data
};

/// Reads and checks the header of a whole file in memory; `file` names it in messages. Afterwards every tensor lies
/// within the data, is as long as its shape says, and no byte belongs to two tensors or to none.
/// @throws Error bad_input
[[nodiscard]] SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

/// A file mapped read-only: tensors are read from the page cache, nothing is copied. Immovable.
class SafetensorsFile {
 public:
  /// @throws Error bad_input
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] std::span<const std::byte> bytes(const TensorEntry& entry) const;

 private:
  std::string path_;
  std::span<const std::byte> mapped_;
  SafetensorsHeader header_;
};

/// A tensor to be written; `bytes` is somebody else's memory.
struct TensorToWrite {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes a file under a temporary name beside `path` and renames it: readers see the old file or the whole new one.
/// Wide dtypes come first, then by name, so that every tensor is aligned. @throws Error bad_input
void write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata);

/// Bits of one element of a dtype code; 0 for an unknown one.
[[nodiscard]] int bits_of_code(std::string_view code);

/// "[2, 64, 4, 128]"
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace rotunda::cli
