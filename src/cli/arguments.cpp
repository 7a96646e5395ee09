// The grammar of the command line, in CLI11's terms. Every value comes as text and is checked here, so that all
// messages name the flag, the value and what is allowed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "base/fail.hpp"
#include "cli/build_info.hpp"
#include "cli/cluster.hpp"
#include "cli/options.hpp"

namespace rotunda::cli {
namespace {

struct Flag {
  const char* name;
  const char* value;  ///< placeholder; nullptr for a switch
  const char* help;
};

constexpr Flag kProblem{"--problem", "TEXT",
                        "One attention call, such as \"s_q=1024 h_q=8 h_kv=2 d=64 mask=causal grad=1\", or @file.json; "
                        "all keys: docs/problem.md"};
constexpr Flag kIn{"--in", "FILE", "Inputs q, k, v (dout, sink), a safetensors file"};
constexpr Flag kOut{"--out", "FILE", "Outputs out, lse (max_logit, dq, dk, dv, dsink), a safetensors file"};
constexpr Flag kSvg{"--svg", "FILE", "Draw who computes what, when, and what travels"};
constexpr Flag kJson{"--json", "FILE", "Append the record to the array in FILE"};
constexpr Flag kTrace{"--trace", "FILE", "Chrome trace of the run, for ui.perfetto.dev"};
constexpr Flag kQuiet{"--quiet", nullptr, "Print errors only"};
constexpr Flag kRanks{"--ranks", "N", "Ranks that share the work (default 4; plan: 1, 2, 4 and 8)"};
constexpr Flag kThreads{"--threads", "N", "Threads of each rank (default: cores / ranks, at least 1)"};
constexpr Flag kTimeout{"--timeout", "SECONDS",
                        "A peer silent for so long is an error (default: ROTUNDA_TIMEOUT, or 60)"};
constexpr Flag kSeed{"--seed", "N", "Seed of random inputs (default 1)"};

constexpr Flag kPlanFlags[] = {
    kRanks,
    {"--schedule", "NAME", "auto, p2p, all_gather, a2a or a2a_p2p"},
    {"--backward-schedule", "NAME", "The same for backward (default: the forward's; auto: any, by predicted time)"},
    {"--inner", "N", "a2a_p2p: ranks of an a2a group, a divisor of the ranks (default: the plan's choice)"},
    {"--shard", "NAME", "auto, contiguous, dual_chunk, dual_chunk_doc, striped or balanced"},
    {"--chunk-size", "N", "Balanced shards: tokens a chunk (default: the plan's choice)"},
    {"--kernel", "NAME", "auto (never reference) or a kernel that `rotunda info` lists"},
    {"--kernel-scratch", "MIB", "What sm90's backward may take for P and dS (default: 280 up to 16k keys)"},
    {"--transport", "NAME", "auto or a transport that `rotunda info` lists"},
    {"--device", "NAME", "auto, cpu or cuda"},
    {"--devices", "LIST", "CUDA devices of the ranks, such as 0,1; ranks may share one"},
    kThreads,
    kTimeout,
    kSeed,
    kTrace,
    kJson,
    kQuiet,
};

struct CommandInfo {
  Command command;
  const char* name;
  const char* help;
  bool plan_flags;
  std::vector<Flag> flags;
};

const std::vector<CommandInfo>& commands() {
  static const std::vector<CommandInfo> list{
      {Command::demo,
       "demo",
       "The tour: a language model's Q, K, V on 4 ranks, every schedule against float64",
       true,
       {kIn,
        {"--svg", "FILE", "Where to draw (default rotunda_demo.svg)"},
        {"--trace", "FILE", "Where to write the Chrome trace (default rotunda_demo.trace.json)"}}},
      {Command::run, "run", "Attention over the tensors of a file", true, {kProblem, kIn, kOut}},
      {Command::verify,
       "verify",
       "Check against the float64 oracle: error over naive error, at most 2; exit status 1 "
       "where a tensor fails",
       true,
       {kProblem, kIn}},
      {Command::bench,
       "bench",
       "Verify once, then time: medians in milliseconds",
       true,
       {kProblem,
        kIn,
        {"--repeat", "N", "Timed repeats, at least 20 (default 20)"},
        {"--baseline", "LIST",
         "Compare with ideal, ideal_same_kernel, a peer of bench/peers, or other schedules (p2p, p2p/a2a), "
         "comma-separated"},
        {"--graph", nullptr, "Time replays of CUDA graphs: ranks as threads, on CUDA devices"},
        {"--python", "PATH", "Python for peers that are Python scripts"}}},
      {Command::explain,
       "explain",
       "What runs where, step by step, and why",
       true,
       {kProblem,
        kSvg,
        {"--all", nullptr, "Every rank's program, however many ranks"},
        {"--cluster", "NAME", cluster_help()}}},
      {Command::plan,
       "plan",
       "FLOPs, bytes, memory and time of schedules and rank counts, without tensors",
       true,
       {kProblem, {"--cluster", "NAME", cluster_help()}}},
      {Command::info,
       "info",
       "Version, kernels, transports, devices, calibration, environment",
       false,
       {kQuiet,
        {"--calibrate", nullptr,
         "Measure this machine first and keep the figures in ROTUNDA_CACHE, for auto and plan to go by (seconds)"}}},
  };
  return list;
}

using Values = std::map<std::string, std::string>;

/// A common flag that a command can do nothing with.
struct Idle {
  Command command;
  const char* flag;
  const char* reason;
  const char* unless = nullptr;  ///< it has a meaning beside this flag
  const char* where = nullptr;   ///< it has none beside this one
};

constexpr Idle kIdle[] = {
    {Command::demo, "--seed", "the inputs are those of files"},
    {Command::run, "--seed", "the inputs are those of --in"},
    {Command::verify, "--seed", "the inputs are those of --in", nullptr, "--in"},
    {Command::bench, "--python", "it is for the peers that --baseline names", "--baseline"},
    {Command::explain, "--seed", "there are no inputs"},
    {Command::explain, "--timeout", "nothing runs, so nothing waits"},
    {Command::plan, "--kernel-scratch", "its figures are of schedules, whatever a kernel takes"},
    {Command::plan, "--seed", "there are no inputs"},
    {Command::plan, "--timeout", "nothing runs, so nothing waits"},
};

/// Says which flags change nothing. @throws Error unsupported for one that promises a file
std::vector<std::string> idle_flags(Command command, const Values& values) {
  if (command == Command::plan && values.contains("--trace")) {
    fail(ErrorKind::unsupported,
         "--trace: plan compares schedules and follows none; the time line predicted for one is drawn by rotunda "
         "explain --trace");
  }
  std::vector<std::string> warnings;
  for (const Idle& idle : kIdle) {
    if (idle.command != command || !values.contains(idle.flag)) continue;
    if (idle.unless != nullptr && values.contains(idle.unless)) continue;
    if (idle.where != nullptr && !values.contains(idle.where)) continue;
    warnings.push_back(fmt::format("{} changes nothing here: {}", idle.flag, idle.reason));
  }
  return warnings;
}

std::vector<Flag> flags_of(const CommandInfo& info) {
  std::vector<Flag> flags = info.flags;
  if (!info.plan_flags) return flags;
  for (const Flag& flag : kPlanFlags) {  // a command may describe one in its own words
    const auto named = [&](const Flag& own) { return std::string_view(own.name) == flag.name; };
    if (std::none_of(info.flags.begin(), info.flags.end(), named)) flags.push_back(flag);
  }
  return flags;
}

void add_command(CLI::App& app, const CommandInfo& info, Values& values) {
  CLI::App* sub = app.add_subcommand(info.name, info.help);
  for (const Flag& flag : flags_of(info)) {
    if (flag.value == nullptr) {
      sub->add_flag_callback(
          flag.name, [&values, flag] { values[flag.name] = "1"; }, flag.help);
    } else {
      sub->add_option_function<std::string>(
             flag.name, [&values, flag](const std::string& text) { values[flag.name] = text; }, flag.help)
          ->type_name(flag.value);
    }
  }
}

/// The first argument that is no flag of the command, with the closest one.
[[noreturn]] void refuse_usage(const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  std::vector<std::string> names;
  const CommandInfo* info = nullptr;
  for (const CommandInfo& each : commands()) {
    if (!arguments.empty() && arguments[0] == each.name) info = &each;
    names.emplace_back(each.name);
  }
  if (info == nullptr) {
    if (arguments.empty()) fail(ErrorKind::bad_input, "no command given, allowed are {}", fmt::join(names, ", "));
    fail(ErrorKind::bad_input, "unknown command {}, allowed are {}{}", arguments[0], fmt::join(names, ", "),
         suggestion(arguments[0], names));
  }
  std::vector<std::string> flags{"--help"};
  for (const Flag& flag : flags_of(*info)) flags.emplace_back(flag.name);
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.starts_with("--") && std::find(flags.begin(), flags.end(), name) == flags.end()) {
      fail(ErrorKind::bad_input, "unknown option {} of {}{}; see rotunda {} --help", name, info->name,
           suggestion(name, flags), info->name);
    }
  }
  std::string what = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    what = what.substr(0, what.find(':')) + " takes one value, and stands once";
  }
  std::replace(what.begin(), what.end(), '\n', ' ');
  fail(ErrorKind::bad_input, "{}; see rotunda {} --help", what, info->name);
}

template <class Enum, class Parse>
void read_name(const Values& values, const char* flag, std::optional<Enum>& to, Parse parse) {
  const auto found = values.find(flag);
  if (found == values.end() || found->second == "auto") return;
  try {
    to = parse(found->second);
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", flag, error.what());
  }
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts{""};
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// auto is read_name's, and among what is allowed.
ShardKind parse_shard(const std::string& name) {
  try {
    return parse_shard_kind(name);
  } catch (const Error& error) {
    fail(error.kind(), "{}, auto", error.what());
  }
}

Device::Kind parse_device_kind(const std::string& name) {
  for (const auto kind : {Device::Kind::cpu, Device::Kind::cuda}) {
    if (name == to_string(kind)) return kind;
  }
  fail(ErrorKind::bad_input, "--device is '{}', allowed are auto, cpu, cuda", name);
}

void read_devices(const Values& values, Options& options) {
  const auto device = values.find("--device");
  if (device != values.end() && device->second != "auto") options.plan.device = parse_device_kind(device->second);
  const auto devices = values.find("--devices");
  if (devices == values.end()) return;
  for (const std::string& part : split(devices->second)) {
    options.plan.devices.push_back(static_cast<int>(whole_number("--devices", part, 0, kMaxRanks)));
  }
  if (options.plan.device == Device::Kind::cpu) {
    fail(ErrorKind::bad_input, "--devices names CUDA devices, but --device is cpu");
  }
  options.plan.device = Device::Kind::cuda;
}

void read_plan(const Values& values, Options& options) {
  PlanOptions& plan = options.plan;
  read_name(values, "--schedule", plan.schedule, parse_schedule_kind);
  read_name(values, "--backward-schedule", plan.backward_schedule, parse_schedule_kind);
  const auto backward = values.find("--backward-schedule");
  plan.mixes = backward != values.end() && backward->second == "auto";
  read_name(values, "--shard", plan.shard, parse_shard);
  const auto number = [&](const char* flag, auto& to, std::int64_t least, std::int64_t most) {
    const auto found = values.find(flag);
    if (found != values.end()) {
      to = static_cast<std::decay_t<decltype(to)>>(whole_number(flag, found->second, least, most));
    }
  };
  int ranks = 0;
  number("--ranks", ranks, 1, kMaxRanks);
  if (ranks != 0) options.ranks = ranks;
  number("--inner", plan.inner, 1, kMaxRanks);
  number("--chunk-size", plan.chunk_size, 1, std::int64_t{1} << 40);
  number("--kernel-scratch", plan.kernel_scratch, 1, std::int64_t{1} << 20);
  plan.kernel_scratch <<= 20;  // MiB
  number("--threads", plan.threads, 1, 4096);
  number("--seed", options.seed, 0, INT64_MAX);
  number("--repeat", options.repeat, 20, 1'000'000);
  const auto name = [&](const char* flag, std::string& to) {
    const auto found = values.find(flag);
    if (found == values.end() || found->second == "auto") return;
    if (found->second.empty()) fail(ErrorKind::bad_input, "{} is empty", flag);
    to = found->second;
  };
  name("--kernel", plan.kernel);
  name("--transport", plan.transport);
}

Options to_options(Command command, const Values& values) {
  Options options;
  options.command = command;
  const auto text = [&](const char* flag, std::string& to) {
    const auto found = values.find(flag);
    if (found == values.end()) return;
    if (found->second.empty()) fail(ErrorKind::bad_input, "{} is empty", flag);
    to = found->second;
  };
  text("--problem", options.problem);
  text("--in", options.in);
  text("--out", options.out);
  text("--trace", options.trace);
  text("--json", options.json);
  text("--svg", options.svg);
  if (command == Command::demo && options.svg.empty()) options.svg = "rotunda_demo.svg";
  if (command == Command::demo && options.trace.empty()) options.trace = "rotunda_demo.trace.json";
  text("--python", options.python);
  text("--cluster", options.cluster);
  options.quiet = values.contains("--quiet");
  options.all_ranks = values.contains("--all");
  options.graph = values.contains("--graph");
  options.calibrate = values.contains("--calibrate");
  options.warnings = idle_flags(command, values);
  if (values.contains("--baseline")) options.baselines = split(values.at("--baseline"));
  const char* from_environment = std::getenv("ROTUNDA_TIMEOUT");
  if (values.contains("--timeout")) {
    options.timeout = seconds("--timeout", values.at("--timeout"));
  } else if (command != Command::info && from_environment != nullptr && *from_environment != '\0') {
    options.timeout = seconds("ROTUNDA_TIMEOUT", from_environment);
  }
  read_plan(values, options);
  read_devices(values, options);
  return options;
}

}  // namespace

Parsed parse_arguments(const std::vector<std::string>& arguments) {
  CLI::App app("Exact attention, forward and backward, over sequences split across ranks.", "rotunda");
  app.set_version_flag("--version", version_text());
  app.footer(
      "Exit status: 0 done, 1 verification failed, 2 bad usage or input, 3 unsupported, 4 transport or peer failure,\n"
      "5 device failure, 70 internal. More: docs/cli.md and docs/problem.md.");
  app.require_subcommand(1);
  app.get_formatter()->column_width(32);
  Values values;
  for (const CommandInfo& info : commands()) add_command(app, info, values);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // the order that CLI11 takes
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return {std::nullopt, chosen.empty() ? app.help() : chosen.front()->help("rotunda")};
  } catch (const CLI::CallForVersion& version) {
    return {std::nullopt, std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    refuse_usage(arguments, error);
  }
  for (const CommandInfo& info : commands()) {
    if (app.got_subcommand(info.name)) return {to_options(info.command, values), ""};
  }
  fail(ErrorKind::internal, "the command line was parsed to no command");
}

}  // namespace rotunda::cli
