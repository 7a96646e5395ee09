// Slice lists as JSON, inline or in a file.
#pragma once

#include <string>
#include <vector>

#include "problem/value.hpp"
#include "rotunda/problem.hpp"

namespace rotunda {

/// A slice list: "@file.json", or a JSON array, inline or as a word of the text form. @throws Error bad_input
[[nodiscard]] std::vector<Slice> read_slices(const Value& value);
/// How messages call the list that a value is: "slices", or "slices=@file.json: slices".
[[nodiscard]] std::string slices_name(const Value& value);
/// Compact JSON without blanks.
[[nodiscard]] std::string print_slice(const Slice& slice);
[[nodiscard]] std::string print_slices(const std::vector<Slice>& slices);

}  // namespace rotunda
