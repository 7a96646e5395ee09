#include "problem/keys.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/fail.hpp"
#include "problem/defaults.hpp"
#include "problem/slice_text.hpp"

namespace rotunda {

const char* to_string(Sink sink) noexcept {
  switch (sink) {
    case Sink::none: return "none";
    case Sink::zero: return "zero";
    case Sink::learnable: return "learnable";
  }
  return "?";
}

namespace {

using Kind = Value::Kind;
using List = std::vector<std::int64_t>;

const char* to_string(Align align) {
  return align == Align::top_left ? "top_left" : "bottom_right";
}

bool is_text(const Value& value) {
  return value.kind == Kind::word || value.kind == Kind::string;
}
bool is_number(const Value& value) {
  return value.kind == Kind::word || value.kind == Kind::number;
}

std::from_chars_result read_decimal(const Value& value, std::int64_t& number) {
  return std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
}

std::optional<std::int64_t> integer(const Value& value) {
  std::int64_t number = 0;
  const auto [rest, error] = read_decimal(value, number);
  const bool whole = rest == value.text.data() + value.text.size();
  return is_number(value) && whole && error == std::errc{} ? std::optional(number) : std::nullopt;
}

/// Why a value is no integer.
std::string no_integer(const Value& value, std::string_view allowed) {
  std::int64_t number = 0;
  const bool too_large = is_number(value) && read_decimal(value, number).ec == std::errc::result_out_of_range;
  return fmt::format("{}, allowed is {}", too_large ? "does not fit 64 bits" : "not an integer", allowed);
}

// --- Reading, one function for each kind of value ---

template <auto member, auto... choices>
void read_choice(Draft& draft, const Key& key, const Value& value) {
  const auto matches = [&](auto choice) {
    if (!is_text(value) || value.text != to_string(choice)) return false;
    draft.problem.*member = choice;
    return true;
  };
  if (!(matches(choices) || ...)) reject(key.name, shown(value));
}

void read_mask(Draft& draft, const Key& key, const Value& value) {
  const bool text = is_text(value);
  draft.bottom_right_mask = text && value.text == "causal_bottom_right";
  if (draft.bottom_right_mask || (text && value.text == "causal")) {
    draft.problem.mask = Mask::causal;
  } else if (!text || value.text != "none") {
    reject(key.name, shown(value));
  }
}

template <std::int64_t Problem::*member, std::int64_t least = 0>
void read_count(Draft& draft, const Key& key, const Value& value) {
  const std::int64_t number = read_integer(key.name, value);
  if (number < least) reject(key.name, number);
  draft.problem.*member = number;
}

template <int Problem::*member>
void read_int(Draft& draft, const Key& key, const Value& value) {
  const std::int64_t number = read_integer(key.name, value);
  if (number < 1 || number > std::numeric_limits<int>::max()) reject(key.name, number);
  draft.problem.*member = static_cast<int>(number);
}

template <bool Problem::*member>
void read_flag(Draft& draft, const Key& key, const Value& value) {
  if (is_number(value) && (value.text == "0" || value.text == "1")) {
    draft.problem.*member = value.text == "1";
  } else if (value.kind == Kind::boolean) {
    draft.problem.*member = value.text == "true";
  } else {
    reject(key.name, shown(value));
  }
}

void read_scale(Draft& draft, const Key& key, const Value& value) {
  const char* const end = value.text.data() + value.text.size();
  double scale = 0;
  const auto [rest, error] = std::from_chars(value.text.data(), end, scale);
  const bool read = is_number(value) && error == std::errc{} && rest == end;
  if (!read || !is_scale(scale)) reject(key.name, shown(value));
  draft.problem.scale = scale;
}

// The items of a JSON array, or of "a,b,c".
std::vector<Value> items(const Value& value) {
  if (value.is_array()) return value.items;
  std::vector<Value> words;
  if (value.text.empty()) return words;
  for (std::size_t begin = 0, comma = 0; comma != std::string::npos; begin = comma + 1) {
    comma = value.text.find(',', begin);
    words.push_back({Kind::word, value.text.substr(begin, comma - begin), {}, {}});
  }
  return words;
}

template <List Problem::*member>
void read_list(Draft& draft, const Key& key, const Value& value) {
  if (value.kind != Kind::word && !value.is_array()) reject(key.name, shown(value));
  List& list = draft.problem.*member;
  for (const Value& item : items(value)) list.push_back(read_element(key, list.size(), item));
}

void read_window(Draft& draft, const Key& key, const Value& value) {
  if (!is_text(value) && !value.is_array()) reject(key.name, shown(value));
  const std::vector<Value> edges = items(value);
  if (edges.size() != 2) reject(key.name, shown(value));
  const auto read_edge = [&](std::size_t index) {
    const Value& edge = edges[index];
    if (edge.kind == Kind::null || (is_text(edge) && edge.text == "inf")) return kInfinity;
    const std::int64_t number = read_element(key, index, edge);
    if (number < 0) reject(key.name, shown(value));
    return number;
  };
  draft.problem.window = {read_edge(0), read_edge(1)};
}

void read_slice_list(Draft& draft, const Key&, const Value& value) {
  draft.slices_name = slices_name(value);
  draft.problem.slices = read_slices(value);
}

// --- Printing ---

Printed printed(std::string text, bool left_out = false) {
  return {std::move(text), left_out};
}

Printed print_flag(bool told) {
  return {told ? "1" : "0", !told};
}

Printed print_number(std::int64_t number, std::int64_t left_out) {
  return {std::to_string(number), number == left_out};
}

Printed print_list(const List& list, const List& left_out) {
  return {fmt::format("{}", fmt::join(list, ",")), list.empty() || list == left_out};
}

Printed print_mask(const Problem& p) {
  if (p.mask == Mask::none) return {"none", p.slices.has_value()};
  return {p.align == Align::bottom_right ? "causal_bottom_right" : "causal"};
}

Printed print_align(const Problem& p) {
  return {to_string(p.align), p.mask == Mask::causal || p.align == Align::top_left};
}

Printed print_window(const Problem& p) {
  const bool right_open = p.mask == Mask::causal || p.window.right == kInfinity;  // causal pins the right edge itself
  const auto edge = [](std::int64_t value) { return value == kInfinity ? "inf" : std::to_string(value); };
  return {edge(p.window.left) + "," + edge(p.window.right), p.window.left == kInfinity && right_open};
}

Printed print_used_q(const Problem& p) {
  return print_list(p.used_q, p.slices ? p.used_q : full_lengths(p.cu_q));
}

Printed print_used_k(const Problem& p) {
  const bool cu_k_left_out = p.cu_k == p.cu_q;
  return print_list(p.used_k, p.slices ? p.used_k : cu_k_left_out ? p.used_q : full_lengths(p.cu_k));
}

Printed print_scale(const Problem& p) {
  return {fmt::format("{}", p.scale), p.scale == 0 || p.scale == default_scale(p.d)};
}

bool is_thd(const Problem& p) {
  return p.layout == Layout::thd;
}

// --- The table ---

constexpr std::string_view kCount = "an integer of at least 0";
constexpr std::string_view kHeadDim = "an integer from 1 to 512";
constexpr std::string_view kLengths = "b lengths, each from 0 to the rows of a batch entry";
constexpr std::string_view kOffsets = "ascending offsets that start at 0, one more than there are sequences";
constexpr std::string_view kUsed = "a length for each sequence, from 0 to the rows between its offsets";
constexpr std::string_view kFlag = "0 or 1";
constexpr auto kAny = KeyLayouts::any;
constexpr auto kDense = KeyLayouts::dense;
constexpr auto kThd = KeyLayouts::thd;

// One key a line, or two.
// clang-format off
const auto kKeys = std::to_array<Key>({
    {"dtype", "bf16, fp16 or fp32", kAny, true, read_choice<&Problem::dtype, DType::bf16, DType::fp16, DType::fp32>,
     [](const Problem& p) { return printed(to_string(p.dtype), p.dtype == DType::bf16); }},
    {"layout", "bshd, sbhd, bhsd or thd", kAny, true,
     read_choice<&Problem::layout, Layout::bshd, Layout::sbhd, Layout::bhsd, Layout::thd>,
     [](const Problem& p) { return printed(to_string(p.layout), p.layout == Layout::bshd); }},
    {"b", kCount, kDense, true, read_count<&Problem::b>,
     [](const Problem& p) { return print_number(p.b, is_thd(p) ? p.b : 1); }},
    {"s_q", kCount, kDense, true, read_count<&Problem::s_q>,
     [](const Problem& p) { return printed(std::to_string(p.s_q), is_thd(p)); }},
    {"s_k", kCount, kDense, true, read_count<&Problem::s_k>,
     [](const Problem& p) { return print_number(p.s_k, is_thd(p) || p.s_k < 0 ? p.s_k : p.s_q); }},
    {"h_q", "an integer of at least 1 that h_kv divides", kAny, true, read_int<&Problem::h_q>,
     [](const Problem& p) { return printed(std::to_string(p.h_q)); }},
    {"h_kv", "an integer of at least 1 that divides h_q", kAny, true, read_int<&Problem::h_kv>,
     [](const Problem& p) { return print_number(p.h_kv, p.h_kv == 0 ? 0 : p.h_q); }},
    {"d", kHeadDim, kAny, true, read_int<&Problem::d>, [](const Problem& p) { return printed(std::to_string(p.d)); }},
    {"d_v", kHeadDim, kAny, true, read_int<&Problem::d_v>,
     [](const Problem& p) { return print_number(p.d_v, p.d_v == 0 ? 0 : p.d); }},
    {"mask", "none, causal or causal_bottom_right", kAny, false, read_mask, print_mask},
    {"window", "L,R, each an integer from 0 to 2^63-1 or inf", kAny, false, read_window, print_window},
    {"align", "top_left or bottom_right", kAny, false,
     read_choice<&Problem::align, Align::top_left, Align::bottom_right>, print_align},
    {"prefix", kCount, kAny, false, read_count<&Problem::prefix>,
     [](const Problem& p) { return print_number(p.prefix, 0); }},
    {"chunk", "an integer of at least 1 (without the key there are no chunks)", kAny, false,
     read_count<&Problem::chunk, 1>, [](const Problem& p) { return print_number(p.chunk, 0); }},
    {"slices", "@file.json or a JSON array of slices", kAny, true, read_slice_list,
     [](const Problem& p) { return printed(p.slices ? print_slices(*p.slices) : "none", !p.slices); }},
    {"lens_q", kLengths, kDense, false, read_list<&Problem::lens_q>,
     [](const Problem& p) { return print_list(p.lens_q, {}); }},
    {"lens_k", kLengths, kDense, false, read_list<&Problem::lens_k>,
     [](const Problem& p) { return print_list(p.lens_k, {}); }},
    {"cu_q", kOffsets, kThd, true, read_list<&Problem::cu_q>, [](const Problem& p) { return print_list(p.cu_q, {}); }},
    {"cu_k", kOffsets, kThd, true, read_list<&Problem::cu_k>,
     [](const Problem& p) { return print_list(p.cu_k, p.cu_q); }},
    {"used_q", kUsed, kThd, false, read_list<&Problem::used_q>, print_used_q},
    {"used_k", kUsed, kThd, false, read_list<&Problem::used_k>, print_used_k},
    {"scale", "a finite number above 0, at most 3.4e38", kAny, true, read_scale, print_scale},
    {"sink", "none, zero or learnable", kAny, true,
     read_choice<&Problem::sink, Sink::none, Sink::zero, Sink::learnable>,
     [](const Problem& p) { return printed(to_string(p.sink), p.sink == Sink::none); }},
    {"max_logit", kFlag, kAny, true, read_flag<&Problem::max_logit>,
     [](const Problem& p) { return print_flag(p.max_logit); }},
    {"deterministic", kFlag, kAny, true, read_flag<&Problem::deterministic>,
     [](const Problem& p) { return print_flag(p.deterministic); }},
    {"grad", kFlag, kAny, true, read_flag<&Problem::grad>, [](const Problem& p) { return print_flag(p.grad); }},
});
// clang-format on

// --- Refusals ---

struct Refused {
  std::string_view name, reason;
};

constexpr auto kRefused = std::to_array<Refused>({
    {"dropout", "attention is exact here, without dropout"},
    {"bias", "additive biases of the logits are not served"},
    {"alibi", "biases of the logits by distance are not served"},
    {"softcap", "capped logits are not served"},
    {"block_table", "paged keys and values are not served, only packed (layout=thd) and dense ones"},
    {"block_tables", "paged keys and values are not served, only packed (layout=thd) and dense ones"},
});

// Single insertions, deletions, changes and swaps of neighbours that lead from one name to the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0U);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({change, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

bool Draft::has(std::string_view key) const {
  return std::find(given.begin(), given.end(), key) != given.end();
}

std::span<const Key> problem_keys() {
  return kKeys;
}

const Key* find_key(std::string_view name) {
  const auto found = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& key) { return key.name == name; });
  return found == kKeys.end() ? nullptr : &*found;
}

std::string_view refused(std::string_view key, const Value& value) {
  for (const Refused& entry : kRefused) {
    if (entry.name == key) return entry.reason;
  }
  if (key == "dtype" && is_text(value) && value.text.starts_with("fp8")) return "8-bit tensors are not served";
  return {};
}

std::string_view closest_key(std::string_view name) {
  constexpr std::size_t kLongestName = 32;  // no key is near anything longer
  if (name.size() > kLongestName) return {};
  std::string_view closest;
  std::size_t least = name.size() <= 4 ? 2 : 3;  // fewer edits than this is a slip
  least = std::min(least, name.size());          // and some of the name must be right
  for (const Key& key : kKeys) {
    const std::size_t distance = edit_distance(name, key.name);
    // Of equally close ones the longest: names are rather abbreviated (dv, h_k) than lengthened.
    if (distance < least || (distance == least && !closest.empty() && key.name.size() > closest.size())) {
      least = distance;
      closest = key.name;
    }
  }
  return closest;
}

void reject(std::string_view key, std::string_view value, std::string_view why) {
  const Key* const known = find_key(key);
  if (why.empty() && known != nullptr) {
    fail(ErrorKind::bad_input, "problem: {}={}: allowed is {}", key, value, known->allowed);
  }
  fail(ErrorKind::bad_input, "problem: {}={}: {}", key, value, why);
}

void reject(std::string_view key, std::int64_t value, std::string_view why) {
  reject(key, std::to_string(value), why);
}

std::string element_name(std::string_view key, std::size_t index) {
  return fmt::format("{}[{}]", key, index);
}

std::int64_t read_integer(std::string_view key, const Value& value) {
  if (const auto number = integer(value)) return *number;
  const Key* const known = find_key(key);
  reject(key, shown(value), no_integer(value, known != nullptr ? known->allowed : "an integer of 64 bits"));
}

std::int64_t read_element(const Key& key, std::size_t index, const Value& value) {
  if (const auto number = integer(value)) return *number;
  reject(element_name(key.name, index), shown(value), no_integer(value, key.allowed));
}

}  // namespace rotunda
