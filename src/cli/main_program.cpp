#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <stdexcept>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/record.hpp"
#include "cli/terminal.hpp"
#include "rotunda/info.hpp"

namespace rotunda::cli {
namespace {

/// The command for records: quoted where a shell needs it, without --json.
std::string command_line(const std::vector<std::string>& arguments) {
  std::string line = "rotunda";
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--json") ++i;
    if (argument.starts_with("--json")) continue;
    const bool plain =
        !argument.empty() &&
        argument.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%") ==
            std::string::npos;
    std::string quoted = argument;
    for (std::size_t at = 0; (at = quoted.find('\'', at)) != std::string::npos; at += 4) quoted.replace(at, 1, "'\\''");
    line += plain ? " " + argument : " '" + quoted + "'";
  }
  return line;
}

int dispatch(const Options& options) {
  switch (options.command) {
    case Command::demo: return demo(options);
    case Command::run: return run(options);
    case Command::verify: return verify(options);
    case Command::bench: return bench(options);
    case Command::explain: return explain(options);
    case Command::plan: return plan(options);
    case Command::info: return info(options);
  }
  fail(ErrorKind::internal, "a command is missing from the table");
}

struct NamedFile {
  const char* flag;
  std::string path;
};

/// Files that are read, those that are there.
std::vector<NamedFile> inputs_of(const Options& options) {
  std::vector<NamedFile> inputs{{"--in", options.in}, {"--cluster", options.cluster}};
  if (options.problem.starts_with('@')) inputs.push_back({"--problem", options.problem.substr(1)});
  std::error_code none;
  std::erase_if(inputs, [&](const NamedFile& each) { return !std::filesystem::exists(each.path, none); });
  return inputs;
}

/// What can't be written, or would be written over what is read, is said before the work, not after it.
void check_outputs(const Options& options) {
  const std::vector<NamedFile> inputs = inputs_of(options);
  std::vector<NamedFile> outputs;
  for (const NamedFile& output : {NamedFile{"--out", options.out},
                                  {"--json", options.json},
                                  {"--trace", options.trace},
                                  {"--svg", options.svg}}) {
    if (output.path.empty()) continue;
    require_writable(output.path);
    for (const NamedFile& input : inputs) {
      if (!name_same_file(input.path, output.path)) continue;
      fail(ErrorKind::bad_input, "{} and {} both name {}, which would be written over; name another file to write",
           input.flag, output.flag, output.path);
    }
    for (const NamedFile& other : outputs) {
      if (!name_same_file(other.path, output.path)) continue;
      fail(ErrorKind::bad_input, "{} and {} both name {}; name two files", other.flag, output.flag, output.path);
    }
    outputs.push_back(output);
  }
  if (!options.json.empty()) (void)json_array(options.json);
}

std::string variable(const std::string& name) {
  for (const Variable& each : environment_variables()) {
    if (each.name == name) return each.value.value_or("");
  }
  return "";
}

/// Values of environment variables that mean nothing are told, and do nothing.
void warn_of_environment() {
  const std::string level = variable("ROTUNDA_LOG");
  const std::vector<std::string> levels{"", "error", "warn", "info", "debug"};
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) {
    warn(fmt::format("ROTUNDA_LOG is '{}', allowed are error, warn, info, debug; taken as warn", level));
  }
  const std::string disabled = variable("ROTUNDA_DISABLE");
  if (disabled.empty() || level == "error") return;
  std::vector<std::string> names;
  for (const Component& component : components()) names.push_back(component.name);
  std::istringstream list(disabled);
  for (std::string name; std::getline(list, name, ',');) {
    if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) continue;
    warn(fmt::format("ROTUNDA_DISABLE names '{}', allowed are {}; nothing is disabled by it", name,
                     fmt::join(names, ", ")));
  }
}

/// Whether an error only repeats what another process of the same launch says itself.
bool is_echo(const Options* options, const std::string& message) {
  if (options == nullptr || !options->process || options->process->launcher != "rotunda") return false;
  return message.starts_with("rank ") && message.find(" failed: ") < std::string("rank 1000000").size() &&
         !message.starts_with(fmt::format("rank {} failed: ", options->process->rank));
}

int report(ErrorKind kind, const char* message) {
  tell(fmt::format("rotunda: {}\n", legible(message)));
  return exit_status(kind);
}

}  // namespace

int main_program(const std::vector<std::string>& arguments) {
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);  // errors to report, not deaths
  Parsed parsed;
  try {
    parsed = parse_arguments(arguments);
    if (!parsed.options) {
      print(parsed.text);
      check_printed();
      return 0;
    }
    parsed.options->command_line = command_line(arguments);
    warn_of_environment();
    for (const std::string& warning : parsed.options->warnings) warn(warning);
    check_outputs(*parsed.options);
    if (needs_processes(*parsed.options)) {
      join_job(*parsed.options, find_process_group());
      if (!parsed.options->process) return start_processes(arguments, *parsed.options);
    }
    const int status = dispatch(*parsed.options);
    check_printed();
    return status;
  } catch (const Error& error) {
    if (is_echo(parsed.options ? &*parsed.options : nullptr, error.what())) return exit_status(error.kind());
    return report(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ErrorKind::unsupported, "out of memory: this takes more than the machine has");
  } catch (const std::length_error&) {
    return report(ErrorKind::unsupported, "out of memory: this takes more than any machine has");
  } catch (const std::exception& error) {
    return report(ErrorKind::internal, error.what());
  }
}

}  // namespace rotunda::cli
