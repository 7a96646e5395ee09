// Agreement: every rank says what it was asked for and what it planned; all compare before anything moves.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fail.hpp"
#include "plan/selection.hpp"
#include "problem/keys.hpp"
#include "rotunda/plan.hpp"
#include "transport/registry.hpp"

namespace rotunda {

namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

/// The problem's keys, and the options.
Fields fields(const Problem& problem, const PlanOptions& options) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const auto name = [](const auto& value) { return std::string(value ? to_string(*value) : "auto"); };
  const auto or_auto = [](const std::string& value) { return value.empty() ? std::string("auto") : value; };
  Fields result;
  for (const Key& key : problem_keys()) result.emplace_back(key.name, key.print(problem).text);
  const Fields asked = {
      {"schedule", name(options.schedule)},
      {"backward_schedule", options.backward_schedule || options.mixes ? name(options.backward_schedule) : "schedule"},
      {"inner", number(options.inner)},
      {"head_groups", number(options.head_groups)},
      {"shard", name(options.shard)},
      {"chunk_size", number(options.chunk_size)},
      {"shard_for", options.shard_for},
      {"kernel", or_auto(options.kernel)},
      {"kernel_scratch", number(options.kernel_scratch)},
      {"transport", or_auto(options.transport)},
      {"device", name(options.device)},
      {"machine", options.machine ? to_text(*options.machine) : "auto"},
  };
  result.insert(result.end(), asked.begin(), asked.end());
  return result;
}

/// What a rank tells the others.
struct Statement {
  Fields fields;
  Machine machine;  ///< that it planned for
  std::string plan_hash;
  std::string error;  ///< why it can't plan, or empty
  ErrorKind kind = ErrorKind::internal;
};

nlohmann::json json_of(const Machine& machine) {
  nlohmann::json json;
  for_fields(machine, [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

Machine machine_from(const nlohmann::json& json) {
  Machine machine;
  for_fields(machine, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  return machine;
}

std::string write(const Statement& statement) {
  return nlohmann::json{{"fields", statement.fields},
                        {"machine", json_of(statement.machine)},
                        {"hash", statement.plan_hash},
                        {"error", statement.error},
                        {"kind", static_cast<int>(statement.kind)}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Statement read(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {json.at("fields").get<Fields>(), machine_from(json.at("machine")), json.at("hash").get<std::string>(),
          json.at("error").get<std::string>(), static_cast<ErrorKind>(json.at("kind").get<int>())};
}

/// The first rank that says what most ranks say; the lowest where there is no majority.
std::size_t spokesman(const std::vector<std::string>& values) {
  std::map<std::string, std::pair<int, std::size_t>> votes;  // count, first rank
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    auto& vote = votes.try_emplace(values[rank], 0, rank).first->second;
    ++vote.first;
  }
  std::pair<int, std::size_t> best{0, 0};
  for (const auto& [value, vote] : votes) {
    const bool more = vote.first > best.first || (vote.first == best.first && vote.second < best.second);
    if (more) best = vote;
  }
  return best.second;
}

/// Throws where the ranks do not say the same of `field`.
void compare(const std::string& field, const std::vector<std::string>& values) {
  const std::size_t with = spokesman(values);
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    if (values[rank] == values[with]) continue;
    fail(ErrorKind::bad_input,
         "ranks disagree before anything moved: rank {} has {}={} where rank {} has {}={}; every rank of a group must "
         "describe the same problem and options",
         rank, field, values[rank], with, field, values[with]);
  }
}

/// The options with the transport's name, and the device that its messages lie on.
PlanOptions on_device_of(const PlanOptions& options, const Transport& transport) {
  PlanOptions result = options;
  const Device device = transport.device();
  if (options.device.value_or(device.kind) != device.kind) {
    fail(ErrorKind::bad_input, "device {} was asked for, and the transport is on {}", to_string(*options.device),
         to_string(device));
  }
  result.device = device.kind;
  const bool named = find_transport(transport.name()) != nullptr;
  if (options.transport.empty() && named) result.transport = transport.name();
  result.devices.clear();
  if (device.is_cuda()) result.devices = {device.index};
  return result;
}

}  // namespace

std::shared_ptr<const Plan> agree_on_plan(const Problem& problem, const PlanOptions& options, Transport& transport) {
  Problem normal = problem;
  Statement mine;
  std::shared_ptr<const Plan> plan;
  try {
    normalize(normal);
    mine.fields = fields(normal, options);
    plan = cached_plan(normal, on_device_of(options, transport), transport.rank(), transport.size());
    mine.machine = plan->machine;
    mine.plan_hash = fmt::format("{:016x}", plan->hash);
  } catch (const Error& error) {
    mine.error = error.what();
    mine.kind = error.kind();
    if (mine.fields.empty()) mine.fields = fields(normal, options);
  }
  std::vector<Statement> all;
  for (const std::string& text : transport.all_gather_text(write(mine))) all.push_back(read(text));

  const auto column = [&](auto value) {
    std::vector<std::string> values;
    values.reserve(all.size());
    for (const Statement& statement : all) values.push_back(value(statement));
    return values;
  };
  for (std::size_t i = 0; i < mine.fields.size(); ++i) {
    compare(mine.fields[i].first, column([&](const Statement& s) { return s.fields.at(i).second; }));
  }
  if (!mine.error.empty()) throw Error(mine.kind, mine.error);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].error.empty()) fail(all[rank].kind, "rank {} can't plan: {}", rank, all[rank].error);
  }
  const Machine& first = all.front().machine;
  if (std::any_of(all.begin(), all.end(), [&](const Statement& s) { return s.machine != first; })) {
    PlanOptions alike = options;  // every rank sees this, so all agree anew
    alike.machine = first;
    return agree_on_plan(problem, alike, transport);
  }
  compare("plan", column([](const Statement& s) { return s.plan_hash; }));
  return plan;
}

}  // namespace rotunda
