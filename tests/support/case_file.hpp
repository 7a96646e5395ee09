// Cases of tests/cases/*.json: a problem text, the recipe of its inputs, rank counts and schedules.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rotunda/problem.hpp"
#include "rotunda/schedule.hpp"
#include "support/random_tensors.hpp"

namespace rotunda::testing {

struct CaseFile {
  std::string id;
  Problem problem;
  nlohmann::json inputs;
  std::vector<int> ranks;
  std::vector<ScheduleKind> schedules;
};

[[nodiscard]] inline CaseFile read_case(const std::string& id) {
  std::ifstream file(fmt::format("{}/tests/cases/{}.json", ROTUNDA_SOURCE_DIR, id));
  const nlohmann::json json = nlohmann::json::parse(file);
  CaseFile result{id, parse_problem(json.at("problem").get<std::string>()), json.at("inputs"), {}, {}};
  result.ranks = json.at("ranks").get<std::vector<int>>();
  for (const std::string name : json.at("schedules")) result.schedules.push_back(parse_schedule_kind(name));
  return result;
}

namespace case_file_detail {

inline double number(const nlohmann::json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

/// Writes a constant into [from, to) of packed rows, heads and dims.
inline void set(const TensorView& view, const nlohmann::json& change) {
  const auto inside = [&](const char* axis, std::int64_t index) {
    if (!change.contains(axis)) return true;
    const auto range = change.at(axis).get<std::vector<std::int64_t>>();
    return index >= range.at(0) && index < range.at(1);
  };
  const double value = number(change.at("value"));
  for_each_element(view, [&](auto b, auto row, auto head, auto dim) {
    const bool hit = inside("rows", b * view.rows() + row) && inside("heads", head) && inside("dims", dim);
    if (hit) write(view, b, row, head, dim, value);
  });
}

}  // namespace case_file_detail

/// The case's inputs. padding: instead of the case's own, if given.
[[nodiscard]] inline ProblemTensors make_tensors(const CaseFile& c, std::optional<double> padding = {}) {
  TensorOptions options;
  options.seed = c.inputs.value("seed", std::uint64_t{0});
  options.padding = padding;
  if (!padding && c.inputs.contains("padding")) {
    options.padding = case_file_detail::number(c.inputs.at("padding"));
  }
  if (c.inputs.contains("sink")) options.sink = c.inputs.at("sink").get<std::vector<float>>();
  ProblemTensors tensors(c.problem, options);
  const Tensors& views = tensors.views();
  const std::map<std::string, TensorView> named = {
      {"q", views.q}, {"k", views.k}, {"v", views.v}, {"dout", views.dout}};
  for (const nlohmann::json& change : c.inputs.value("set", nlohmann::json::array())) {
    case_file_detail::set(named.at(change.at("tensor").get<std::string>()), change);
  }
  return tensors;
}

}  // namespace rotunda::testing
