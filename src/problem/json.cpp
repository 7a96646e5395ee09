// JSON to Value, by nlohmann's event parser: its document type would round numbers and forget duplicate names.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fail.hpp"
#include "problem/value.hpp"

namespace rotunda {
namespace {

// An object of slices in an array in a problem is the deepest text there is.
constexpr std::size_t kMaxDepth = 3;
// Above the number of all keys; keeps the search for duplicates short.
constexpr std::size_t kMaxMembers = 64;

/// Receives nlohmann's events; the return values tell it to go on. Throws rotunda::Error itself.
class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  Value take() { return std::move(root_); }

  bool null() { return add(Value::Kind::null, "null"); }
  bool boolean(bool value) { return add(Value::Kind::boolean, value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { return add(Value::Kind::number, std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) { return add(Value::Kind::number, std::to_string(value)); }
  bool number_float(double, const std::string& text) { return add(Value::Kind::number, text); }
  bool string(const std::string& value) { return add(Value::Kind::string, value); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // never in text

  bool start_object(std::size_t) { return open(Value::Kind::object); }
  bool start_array(std::size_t) { return open(Value::Kind::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(const std::string& name) {
    auto& names = open_.back()->names;
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      fail(ErrorKind::bad_input, "{}: {} is given twice", where_, printable(name));
    }
    if (names.size() == kMaxMembers) {
      fail(ErrorKind::bad_input, "{}: an object has more than {} members", where_, kMaxMembers);
    }
    names.push_back(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) {
    std::string_view reason = error.what();  // "[json.exception.parse_error.101] parse error at …"
    if (const auto end = reason.find("] "); end != std::string_view::npos) reason.remove_prefix(end + 2);
    fail(ErrorKind::bad_input, "{}: not valid JSON: {}", where_, printable(reason, 200));
  }

 private:
  Value& place(Value::Kind kind) {
    Value& value = open_.empty() ? root_ : open_.back()->items.emplace_back();
    value.kind = kind;
    return value;
  }
  bool add(Value::Kind kind, std::string text) {
    place(kind).text = std::move(text);
    return true;
  }
  bool open(Value::Kind kind) {
    if (open_.size() == kMaxDepth) {
      fail(ErrorKind::bad_input, "{}: nested too deep, at most {} levels of {{}} and []", where_, kMaxDepth);
    }
    open_.push_back(&place(kind));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view where_;
  Value root_;
  // Only the innermost open value grows, so the addresses of those around it hold.
  std::vector<Value*> open_;
};

}  // namespace

Value parse_json(std::string_view text, std::string_view where) {
  Reader reader(where);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace rotunda
