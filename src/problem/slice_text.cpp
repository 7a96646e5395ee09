#include "problem/slice_text.hpp"

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/fail.hpp"
#include "problem/keys.hpp"

namespace rotunda {
namespace {

struct Field {
  std::string_view name;
  std::int64_t Slice::*member;
  bool edge = false;  // null is infinity
};

constexpr auto kFields = std::to_array<Field>({
    {"batch", &Slice::batch},
    {"q_begin", &Slice::q_begin},
    {"q_len", &Slice::q_len},
    {"k_begin", &Slice::k_begin},
    {"k_len", &Slice::k_len},
    {"q_pos", &Slice::q_pos},
    {"k_pos", &Slice::k_pos},
    {"left", &Slice::left, true},
    {"right", &Slice::right, true},
});

constexpr std::string_view kFieldList = "batch, q_begin, q_len, k_begin, k_len, q_pos, k_pos, left, right";

const Field* find_field(std::string_view name) {
  for (const Field& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

/// `name`: such as "slices[3]".
Slice read_slice(const Value& value, const std::string& name) {
  if (!value.is_object()) {
    fail(ErrorKind::bad_input, "problem: {}={}: a slice is an object with {}", name, shown(value), kFieldList);
  }
  Slice slice;
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const Field* const field = find_field(value.names[i]);
    if (field == nullptr) {
      fail(ErrorKind::bad_input, "problem: {}: {} is unknown, a slice has {}", name, printable(value.names[i]),
           kFieldList);
    }
    const bool infinite = field->edge && value.items[i].kind == Value::Kind::null;
    slice.*field->member = infinite ? kInfinity : read_integer(fmt::format("{}.{}", name, field->name), value.items[i]);
  }
  // No member is given twice, so the count tells that one is missing.
  if (value.items.size() != kFields.size()) {
    fail(ErrorKind::bad_input, "problem: {} has {} of {} members, all are needed: {} (null is infinity)", name,
         value.items.size(), kFields.size(), kFieldList);
  }
  return slice;
}

std::string read_file(const std::string& path) {
  constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 28;  // 256 MiB, over a million slices
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    fail(ErrorKind::bad_input, "problem: slices=@{}: that is a folder, allowed is a file", printable(path));
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    fail(ErrorKind::bad_input, "problem: slices=@{}: there is no such file", printable(path));
  }
  if (std::filesystem::file_size(path, error) > kMaxBytes) {
    fail(ErrorKind::bad_input, "problem: slices=@{}: the file is larger than 256 MiB", printable(path));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) fail(ErrorKind::bad_input, "problem: slices=@{}: the file cannot be read", printable(path));
  return text;
}

bool is_file(const Value& value) {
  const bool text = value.kind == Value::Kind::word || value.kind == Value::Kind::string;
  return text && value.text.starts_with('@');
}

std::vector<Slice> read_array(const Value& array, const std::string& name) {
  std::vector<Slice> slices;
  for (const Value& item : array.items) slices.push_back(read_slice(item, element_name(name, slices.size())));
  return slices;
}

}  // namespace

std::string slices_name(const Value& value) {
  return is_file(value) ? fmt::format("slices={}: slices", printable(value.text)) : "slices";
}

std::vector<Slice> read_slices(const Value& value) {
  if (is_file(value)) {
    const std::string path = value.text.substr(1);
    const Value content = parse_json(read_file(path), fmt::format("problem: slices=@{}", printable(path)));
    if (!content.is_array()) reject("slices", printable(value.text), "the file holds no JSON array");
    return read_array(content, slices_name(value));
  }
  if (value.kind == Value::Kind::word && value.text.starts_with('[')) {
    return read_array(parse_json(value.text, "problem: slices"), "slices");
  }
  if (!value.is_array()) reject("slices", shown(value));
  return read_array(value, "slices");
}

std::string print_slice(const Slice& slice) {
  std::string text;
  for (const Field& field : kFields) {
    const std::int64_t number = slice.*field.member;
    const std::string value = field.edge && number == kInfinity ? "null" : std::to_string(number);
    text += fmt::format("{}\"{}\":{}", text.empty() ? "{" : ",", field.name, value);
  }
  return text + "}";
}

std::string print_slices(const std::vector<Slice>& slices) {
  std::string text = "[";
  for (const Slice& slice : slices) {
    if (text.size() > 1) text += ',';
    text += print_slice(slice);
  }
  return text + "]";
}

}  // namespace rotunda
