#include "cli/safetensors.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/fail.hpp"

namespace rotunda::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct Code {
  std::string_view name;
  int bits;
};
constexpr std::array kCodes{
    Code{"BOOL", 8},    Code{"U8", 8},   Code{"I8", 8},      Code{"F8_E5M2", 8}, Code{"F8_E4M3", 8},
    Code{"F8_E8M0", 8}, Code{"F4", 4},   Code{"F6_E2M3", 6}, Code{"F6_E3M2", 6}, Code{"I16", 16},
    Code{"U16", 16},    Code{"F16", 16}, Code{"BF16", 16},   Code{"I32", 32},    Code{"U32", 32},
    Code{"F32", 32},    Code{"I64", 64}, Code{"U64", 64},    Code{"F64", 64},    Code{"C64", 64},
};

/// A name as it may stand in a message: quoted, escaped, not endless.
std::string shown(const std::string& name) {
  constexpr std::size_t longest = 60;
  return name.size() <= longest ? json(name).dump() : json(name).dump(-1, ' ', true).substr(0, longest) + "…\"";
}

/// The file and the tensor that a message is about.
struct Where {
  std::string_view file;
  std::string tensor;

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::bad_input, "{}: {}: {}", file, tensor, fmt::format(text, std::forward<Args>(args)...));
  }
};

std::int64_t header_length(std::span<const std::byte> bytes, std::string_view file) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size < kLengthBytes) {
    fail(ErrorKind::bad_input, "{} is no safetensors file: it has {} bytes, its header length alone needs 8", file,
         size);
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    fail(ErrorKind::bad_input, "{} is no safetensors file: its header would have {} bytes, at most {} are allowed",
         file, length, kMaxHeaderBytes);
  }
  if (static_cast<std::int64_t>(length) > size - kLengthBytes) {
    fail(ErrorKind::bad_input, "{} is cut short: its header should have {} bytes, {} are there", file, length,
         size - kLengthBytes);
  }
  return static_cast<std::int64_t>(length);
}

/// Parses the header's JSON; a name or a field that stands twice is refused, where the JSON library keeps the last.
json parse_header(std::string_view text, std::string_view file) {
  std::string twice;
  std::array<std::set<std::string>, 2> seen;  // names, and the fields of the tensor at hand
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start && depth == 1) seen[1].clear();
    if (event == json::parse_event_t::key && (depth == 1 || depth == 2)) {
      auto name = value.get<std::string>();
      if (!seen[static_cast<std::size_t>(depth - 1)].insert(name).second && twice.empty()) twice = std::move(name);
    }
    return true;
  };
  json header;
  try {
    header = json::parse(text, watch);
  } catch (const json::exception&) {
    fail(ErrorKind::bad_input, "{}: its header of {} bytes is not valid JSON", file, text.size());
  }
  if (!twice.empty()) fail(ErrorKind::bad_input, "{}: its header names {} twice", file, shown(twice));
  if (!header.is_object()) {
    fail(ErrorKind::bad_input, "{}: its header is a JSON {}, not an object", file, header.type_name());
  }
  return header;
}

std::vector<std::int64_t> integers(const json& tensor, const char* field, const Where& where) {
  const auto found = tensor.find(field);
  if (found == tensor.end()) where.refuse("{} is missing", field);
  if (!found->is_array()) where.refuse("{} is a JSON {}, not an array of whole numbers", field, found->type_name());
  std::vector<std::int64_t> values;
  for (const json& value : *found) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
      where.refuse("{} holds {}, allowed are whole numbers from 0 to 2^63-1", field, value.dump().substr(0, 60));
    }
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

/// Bytes that a shape needs. @throws Error bad_input where that does not fit 64 bits
std::int64_t bytes_needed(const TensorEntry& entry, int bits, const Where& where) {
  std::int64_t count = 1;
  bool overflow = false;
  // Zeros first: [2^62, 2^62, 0] has no elements and does not overflow.
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) return 0;
  for (const std::int64_t extent : entry.shape) overflow |= __builtin_mul_overflow(count, extent, &count);
  overflow |= __builtin_mul_overflow(count, bits, &count);
  if (overflow) where.refuse("shape {} has more bytes than 64 bits can count", shape_text(entry.shape));
  if (count % 8 != 0) where.refuse("shape {} of {} does not fill whole bytes", shape_text(entry.shape), entry.dtype);
  return count / 8;
}

TensorEntry read_entry(const json& tensor, std::int64_t data_bytes, const Where& where) {
  if (!tensor.is_object()) where.refuse("its entry is a JSON {}, not an object", tensor.type_name());
  for (const auto& [field, value] : tensor.items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      where.refuse("unknown field {}, allowed are dtype, shape, data_offsets", shown(field));
    }
  }
  TensorEntry entry;
  const auto dtype = tensor.find("dtype");
  if (dtype == tensor.end()) where.refuse("dtype is missing");
  if (!dtype->is_string()) where.refuse("dtype is a JSON {}, not a string", dtype->type_name());
  entry.dtype = dtype->get<std::string>();
  const int bits = bits_of_code(entry.dtype);
  if (bits == 0) where.refuse("dtype {} is unknown", shown(entry.dtype));
  entry.shape = integers(tensor, "shape", where);
  const auto offsets = integers(tensor, "data_offsets", where);
  if (offsets.size() != 2) where.refuse("data_offsets has {} numbers, not 2", offsets.size());
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.begin > entry.end) where.refuse("data_offsets [{}, {}] run backwards", entry.begin, entry.end);
  if (entry.end > data_bytes) {
    where.refuse("its data end at byte {}, but the file holds {} bytes of data: it is cut short", entry.end,
                 data_bytes);
  }
  const std::int64_t needed = bytes_needed(entry, bits, where);
  if (needed != entry.end - entry.begin) {
    where.refuse("{}{} needs {} bytes, its data_offsets [{}, {}] span {}", entry.dtype, shape_text(entry.shape), needed,
                 entry.begin, entry.end, entry.end - entry.begin);
  }
  return entry;
}

void read_metadata(const json& metadata, SafetensorsHeader& header, std::string_view file) {
  if (!metadata.is_object()) {
    fail(ErrorKind::bad_input, "{}: its metadata is a JSON {}, not an object", file, metadata.type_name());
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      fail(ErrorKind::bad_input, "{}: metadata {} is a JSON {}, not a string", file, shown(key), value.type_name());
    }
    header.metadata[key] = value.get<std::string>();
  }
}

/// Every byte of the data belongs to one tensor.
void check_cover(const SafetensorsHeader& header, std::int64_t data_bytes, std::string_view file) {
  std::vector<std::pair<const TensorEntry*, const std::string*>> order;
  for (const auto& [name, entry] : header.tensors) {
    if (entry.begin != entry.end) order.emplace_back(&entry, &name);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first->begin < b.first->begin; });
  std::int64_t covered = 0;
  const std::string* before = nullptr;
  for (const auto& [entry, name] : order) {
    if (entry->begin < covered) {
      fail(ErrorKind::bad_input, "{}: tensors {} and {} overlap at byte {} of the data", file, shown(*before),
           shown(*name), entry->begin);
    }
    if (entry->begin > covered) break;
    covered = entry->end;
    before = name;
  }
  if (covered != data_bytes) {
    fail(ErrorKind::bad_input, "{}: the data from byte {} on belong to no tensor ({} bytes of data in all)", file,
         covered, data_bytes);
  }
}

}  // namespace

int bits_of_code(std::string_view code) {
  const auto found = std::find_if(kCodes.begin(), kCodes.end(), [&](const Code& c) { return c.name == code; });
  return found == kCodes.end() ? 0 : found->bits;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  const std::int64_t length = header_length(bytes, file);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  const json parsed = parse_header(text, file);
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  const std::int64_t data_bytes = static_cast<std::int64_t>(bytes.size()) - header.data_begin;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      read_metadata(value, header, file);
    } else {
      header.tensors[name] = read_entry(value, data_bytes, Where{file, "tensor " + shown(name)});
    }
  }
  check_cover(header, data_bytes, file);
  return header;
}

}  // namespace rotunda::cli
