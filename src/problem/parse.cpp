#include <algorithm>

#include "base/fail.hpp"
#include "problem/keys.hpp"

namespace rotunda {
namespace {

struct Entry {
  std::string key;
  Value value;
};

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

std::string_view without_leading_blanks(std::string_view text) {
  text.remove_prefix(static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_blank) - text.begin()));
  return text;
}

// Length of the JSON array that text starts with: blanks may stand in it, and brackets in its strings.
std::size_t array_length(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\') {
        ++i;  // what is escaped ends no string
      } else if (text[i] == '"') {
        in_string = false;
      }
    } else if (text[i] == '"') {
      in_string = true;
    } else if (text[i] == '[') {
      ++depth;
    } else if (text[i] == ']' && --depth == 0) {
      return i + 1;
    }
  }
  return text.size();  // never closed: the JSON parser says so
}

std::size_t word_length(std::string_view text) {
  return static_cast<std::size_t>(std::find_if(text.begin(), text.end(), is_blank) - text.begin());
}

std::vector<Entry> text_entries(std::string_view text) {
  std::vector<Entry> entries;
  for (text = without_leading_blanks(text); !text.empty(); text = without_leading_blanks(text)) {
    const std::string_view word = text.substr(0, word_length(text));
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == std::string_view::npos) {
      fail(ErrorKind::bad_input, "problem: '{}' is not KEY=VALUE", printable(word));
    }
    const std::string_view rest = text.substr(equals + 1);
    const std::size_t length = rest.starts_with('[') ? array_length(rest) : word_length(rest);
    if (length < rest.size() && !is_blank(rest[length])) {
      fail(ErrorKind::bad_input, "problem: {}: a blank is missing after the array, before '{}'",
           printable(word.substr(0, equals)), printable(rest.substr(length)));
    }
    entries.push_back(
        {std::string(word.substr(0, equals)), {Value::Kind::word, std::string(rest.substr(0, length)), {}, {}}});
    text = rest.substr(length);
  }
  return entries;
}

std::vector<Entry> json_entries(std::string_view text) {
  Value object = parse_json(text, "problem");
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < object.items.size(); ++i) {
    entries.push_back({std::move(object.names[i]), std::move(object.items[i])});
  }
  return entries;
}

std::string key_list() {
  std::string list;
  for (const Key& key : problem_keys()) list += (list.empty() ? "" : ", ") + std::string(key.name);
  return list;
}

// Adds to a list of sentences.
void append(std::string& list, const std::string& sentence) {
  list += (list.empty() ? "" : "; ") + sentence;
}

std::string unknown_key(const Entry& entry) {
  const std::string given = printable(entry.key) + "=" + shown(entry.value);
  const std::string_view closest = closest_key(entry.key);
  if (!closest.empty()) return fmt::format("{}: unknown key, did you mean {}?", given, closest);
  return fmt::format("{}: unknown key, the keys are {}", given, key_list());
}

// Every key is known and given once, and none is refused; all that is wrong with names is told at once.
void check_names(const std::vector<Entry>& entries) {
  std::string refusals, unknown;
  std::vector<std::string_view> seen;
  for (const Entry& entry : entries) {
    const std::string_view reason = refused(entry.key, entry.value);
    if (std::find(seen.begin(), seen.end(), entry.key) != seen.end()) {
      reject(entry.key, shown(entry.value), "the key is given twice");
    }
    seen.push_back(entry.key);
    if (!reason.empty()) {
      append(refusals, fmt::format("{}={}: {}", entry.key, shown(entry.value), reason));
    } else if (find_key(entry.key) == nullptr) {
      append(unknown, unknown_key(entry));
    }
  }
  if (!unknown.empty()) {
    if (!refusals.empty()) append(unknown, "and not supported: " + refusals);
    fail(ErrorKind::bad_input, "problem: {}", unknown);
  }
  if (!refusals.empty()) fail(ErrorKind::unsupported, "problem: not supported: {}", refusals);
}

std::string_view instead_in_thd(std::string_view key) {
  if (key == "b") return "layout=thd takes the number of sequences from cu_q";
  if (key == "s_q" || key == "s_k") return "layout=thd has its lengths in cu_q and cu_k";
  return "layout=thd has its visible lengths in used_q and used_k";
}

// Keys that may not stand beside each other. Values that contradict each other are normalize's business.
void check_company(const Draft& draft, const std::vector<Entry>& entries) {
  const bool packed = draft.problem.layout == Layout::thd;
  for (const Entry& entry : entries) {
    const Key& key = *find_key(entry.key);
    if (packed && key.layouts == KeyLayouts::dense) reject(key.name, shown(entry.value), instead_in_thd(key.name));
    if (!packed && key.layouts == KeyLayouts::thd) {
      reject(key.name, shown(entry.value),
             fmt::format("only for layout=thd, layout={} takes b, s_q, s_k, lens_q and lens_k",
                         to_string(draft.problem.layout)));
    }
    if (draft.has("slices") && !key.beside_slices) {
      reject(key.name, shown(entry.value), "slices say the whole mask, so this key may not stand beside them");
    }
  }
  if (draft.bottom_right_mask && draft.has("align") && draft.problem.align == Align::top_left) {
    reject("align", "top_left", "contradicts mask=causal_bottom_right, which is mask=causal align=bottom_right");
  }
}

void check_required(const Draft& draft) {
  const auto require = [&](std::string_view key) {
    if (draft.has(key)) return;
    fail(ErrorKind::bad_input, "problem: {} is missing, allowed is {}", key, find_key(key)->allowed);
  };
  require("h_q");
  require("d");
  if (draft.problem.layout != Layout::thd) require("s_q");
  if (draft.problem.layout == Layout::thd && !draft.has("slices")) require("cu_q");
}

// In a Problem an empty list means that the key was not given.
void check_empty_lists(const Draft& draft) {
  const Problem& p = draft.problem;
  const auto check = [&](std::string_view key, const std::vector<std::int64_t>& list, bool may_be_empty) {
    if (draft.has(key) && list.empty() && !may_be_empty) reject(key, "[]");
  };
  check("cu_q", p.cu_q, false);
  check("cu_k", p.cu_k, false);
  check("lens_q", p.lens_q, p.b == 0);
  check("lens_k", p.lens_k, p.b == 0);
  check("used_q", p.used_q, p.cu_q.size() <= 1);
  check("used_k", p.used_k, p.cu_q.size() <= 1);
}

}  // namespace

Problem parse_problem(std::string_view text) {
  text = without_leading_blanks(text);
  if (text.empty())
    fail(ErrorKind::bad_input, "problem: the text is empty, it needs at least s_q (or cu_q), h_q and d");
  if (text.starts_with('[')) {
    fail(ErrorKind::bad_input,
         "problem: {}: the JSON is an array, allowed is an object such as {{\"s_q\": 1024, \"h_q\": 8, \"d\": 64}}",
         printable(text));
  }
  const std::vector<Entry> entries = text.starts_with('{') ? json_entries(text) : text_entries(text);
  check_names(entries);
  Draft draft;
  for (const Entry& entry : entries) {
    const Key& key = *find_key(entry.key);
    key.read(draft, key, entry.value);
    draft.given.push_back(key.name);
  }
  check_company(draft, entries);
  check_required(draft);
  check_empty_lists(draft);
  if (draft.bottom_right_mask) draft.problem.align = Align::bottom_right;
  normalize(draft.problem, draft.slices_name);
  return draft.problem;
}

}  // namespace rotunda
