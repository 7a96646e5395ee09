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

Slice read_slice(const Value& value, std::size_t index) {
  if (!value.is_object()) {
    fail(ErrorKind::bad_input, "problem: slices[{}]={}: a slice is an object with {}", index, shown(value), kFieldList);
  }
  Slice slice;
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const Field* const field = find_field(value.names[i]);
    if (field == nullptr) {
      fail(ErrorKind::bad_input, "problem: slices[{}]: {} is unknown, a slice has {}", index, printable(value.names[i]),
           kFieldList);
    }
    const bool infinite = field->edge && value.items[i].kind == Value::Kind::null;
    slice.*field->member =
        infinite ? kInfinity : read_integer(fmt::format("slices[{}].{}", index, field->name), value.items[i]);
  }
  // No member is given twice, so the count tells that one is missing.
  if (value.items.size() != kFields.size()) {
    fail(ErrorKind::bad_input, "problem: slices[{}] has {} of {} members, all are needed: {} (null is infinity)", index,
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

}  // namespace

std::vector<Slice> read_slices(const Value& value) {
  if (value.kind == Value::Kind::word || value.kind == Value::Kind::string) {
    const std::string& text = value.text;
    if (text.starts_with('@')) {
      const std::string path = text.substr(1);
      const Value content = parse_json(read_file(path), fmt::format("problem: slices=@{}", printable(path)));
      if (content.is_array()) return read_slices(content);
      reject("slices", printable(text), "the file holds no JSON array");
    }
    if (value.kind == Value::Kind::word && text.starts_with('['))
      return read_slices(parse_json(text, "problem: slices"));
  }
  if (!value.is_array()) reject("slices", shown(value));
  std::vector<Slice> slices;
  for (const Value& item : value.items) slices.push_back(read_slice(item, slices.size()));
  return slices;
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
