// Comparing results in tests.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "rotunda/oracle.hpp"
#include "support/random_tensors.hpp"

namespace rotunda::testing {

/// Empty, or the tensors that miss the bar.
[[nodiscard]] inline std::string misses(const Problem& problem, const OracleResult& want, const Tensors& got) {
  std::string text;
  for (const Grade& g : grade(problem, want, got)) {
    if (g.passed()) continue;
    text += fmt::format("{}: ratio {:.3g} (error {:.3g}, naive {:.3g}), misplaced {}\n", g.tensor, g.ratio, g.error,
                        g.naive_error, g.misplaced);
  }
  return text;
}

/// The outputs of a problem by name, those that it asks for.
[[nodiscard]] inline std::vector<std::pair<std::string, TensorView>> outputs(const Tensors& t) {
  std::vector<std::pair<std::string, TensorView>> all = {{"out", t.out},    {"lse", t.lse}, {"max_logit", t.max_logit},
                                                         {"dq", t.dq},      {"dk", t.dk},   {"dv", t.dv},
                                                         {"dsink", t.dsink}};
  std::erase_if(all, [](const auto& entry) { return entry.second.data == nullptr; });
  return all;
}

/// Empty, or the first tensor with an element of other bits (NaN equals NaN).
[[nodiscard]] inline std::string differing_bits(const Tensors& a, const Tensors& b) {
  const auto left = outputs(a);
  const auto right = outputs(b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto x = to_vector(left[i].second);
    const auto y = to_vector(right.at(i).second);
    for (std::size_t j = 0; j < x.size(); ++j) {
      const bool same = x[j] == y.at(j) || (std::isnan(x[j]) && std::isnan(y[j]));
      if (!same || std::signbit(x[j]) != std::signbit(y[j])) {
        return fmt::format("{} element {}: {} and {}", left[i].first, j, x[j], y[j]);
      }
    }
  }
  return "";
}

/// Root mean square of the difference to exact answers in the order of to_vector.
[[nodiscard]] inline double rms_error(const TensorView& got, const std::vector<double>& want) {
  const auto values = to_vector(got);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += (values[i] - want.at(i)) * (values[i] - want[i]);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace rotunda::testing
