// Plain tables and figures for terminals.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rotunda::cli {

/// Columns as wide as their widest cell, two blanks apart; the first `left_columns` flush left, the rest flush right.
class Table {
 public:
  Table(std::vector<std::string> header, std::size_t left_columns);
  void add(std::vector<std::string> row);
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::size_t left_columns_;
};

/// "812 B", "1.50 MiB"
[[nodiscard]] std::string bytes_text(std::int64_t bytes);
/// Three significant digits: "0.0123", "12.3", "1230"
[[nodiscard]] std::string figure(double value);
/// "1,048,576"
[[nodiscard]] std::string grouped(std::int64_t value);
/// A count of any size: grouped where it is exact, else four digits and an exponent.
[[nodiscard]] std::string count_text(double count);
/// FLOPs with a prefix: "1.23 G"
[[nodiscard]] std::string flops_text(double flops);

}  // namespace rotunda::cli
