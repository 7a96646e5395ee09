#include "cli/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace rotunda::cli {

Table::Table(std::vector<std::string> header, std::size_t left_columns) : left_columns_(left_columns) {
  rows_.push_back(std::move(header));
}

void Table::add(std::vector<std::string> row) {
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<std::size_t> width(rows_.front().size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i != 0) line += "  ";
      line += i < left_columns_ ? fmt::format("{:<{}}", row[i], width[i]) : fmt::format("{:>{}}", row[i], width[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{} {}", figure(value), units[unit]);
}

std::string figure(double value) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{}", value);
  const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(value))));
  if (magnitude < -4) return fmt::format("{:.2e}", value);
  return fmt::format("{:.{}f}", value, std::clamp(2 - magnitude, 0, 6));
}

std::string grouped(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (auto at = static_cast<std::int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string count_text(double count) {
  return count < 0x1p53 ? grouped(static_cast<std::int64_t>(count)) : fmt::format("{:.3e}", count);
}

std::string flops_text(double flops) {
  constexpr std::array prefixes{"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  for (; flops >= 1000 && prefix + 1 < prefixes.size(); ++prefix) flops /= 1000;
  return fmt::format("{} {}", figure(flops), prefixes[prefix]);
}

}  // namespace rotunda::cli
