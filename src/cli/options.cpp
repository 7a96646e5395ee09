#include "cli/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"

namespace rotunda::cli {

std::int64_t whole_number(std::string_view flag, const std::string& text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty() || value < least || value > most) {
    fail(ErrorKind::bad_input, "{} is '{}', allowed are whole numbers from {} to {}", flag, text, least, most);
  }
  return value;
}

std::chrono::milliseconds seconds(std::string_view flag, const std::string& text) {
  constexpr double year = 365.0 * 24 * 3600;
  char* stop = nullptr;
  const double value = std::strtod(text.c_str(), &stop);
  if (text.empty() || *stop != '\0' || !(value > 0 && value <= year)) {
    fail(ErrorKind::bad_input, "{} is '{}', allowed are seconds above 0 and up to {:.0f}", flag, text, year);
  }
  return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(value * 1000)));
}

std::optional<Problem> problem_of(const Options& options) {
  if (options.problem.empty()) return std::nullopt;
  if (options.problem == "@") fail(ErrorKind::bad_input, "--problem is '@', without the file's name: @FILE reads FILE");
  if (options.problem.front() != '@') return parse_problem(options.problem);
  const std::string file = options.problem.substr(1);
  const std::string text = read_text(file);
  try {
    return parse_problem(text);
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", file, error.what());
  }
}

Problem required_problem(const Options& options) {
  auto problem = problem_of(options);
  if (!problem) {
    fail(ErrorKind::bad_input, "--problem is missing, such as --problem \"s_q=1024 h_q=8 d=64 mask=causal\"");
  }
  return *std::move(problem);
}

namespace {

/// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substitute, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(const std::string& typed, const std::vector<std::string>& names) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, typed.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t d = distance(typed, name);
    if (d < least) {
      least = d;
      best = name;
    }
  }
  return best.empty() ? "" : fmt::format(", did you mean {}?", best);
}

}  // namespace rotunda::cli
