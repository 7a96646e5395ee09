// What the command line asks for.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rotunda/plan.hpp"
#include "rotunda/problem.hpp"

namespace rotunda::cli {

enum class Command { demo, run, verify, bench, explain, plan, info };

/// Every flag of every command, checked. Empty strings and zeros stand for "not given".
struct Options {
  Command command = Command::info;
  std::string problem;  ///< as given: text, or @file.json
  std::string in, out;
  PlanOptions plan;
  std::optional<int> ranks;
  std::chrono::milliseconds timeout{60'000};
  std::uint64_t seed = 1;
  std::string trace, json, svg;
  bool quiet = false;
  bool all_ranks = false;  ///< explain: every rank's program
  bool graph = false;      ///< bench: replays of CUDA graphs
  bool calibrate = false;  ///< info: measure the machine first
  int repeat = 20;
  std::vector<std::string> baselines;
  std::string python, cluster;
  std::string command_line;           ///< for records
  std::vector<std::string> warnings;  ///< flags that were given and change nothing
  /// This process is one rank of a job on a transport between processes, which has as many ranks as the job.
  std::optional<ProcessGroup> process;

  [[nodiscard]] int ranks_or_default() const { return ranks.value_or(4); }
  /// Whether this process prints and writes the results.
  [[nodiscard]] bool is_first() const { return !process || process->rank == 0; }
};

/// What parsing the arguments came to: options to run, or a text to print and leave with status 0.
struct Parsed {
  std::optional<Options> options;
  std::string text;
};

/// Parses the arguments after the program's name. @throws Error bad_input (usage)
[[nodiscard]] Parsed parse_arguments(const std::vector<std::string>& arguments);

/// The problem of --problem, or nothing where the flag was not given. @throws Error bad_input, unsupported
[[nodiscard]] std::optional<Problem> problem_of(const Options& options);
/// The same, where the command can't do without. @throws Error bad_input
[[nodiscard]] Problem required_problem(const Options& options);

/// A whole number within bounds, or an error that names `flag`.
[[nodiscard]] std::int64_t whole_number(std::string_view flag, const std::string& text, std::int64_t least,
                                        std::int64_t most);
/// Seconds above 0, fractions allowed, at most a year.
[[nodiscard]] std::chrono::milliseconds seconds(std::string_view flag, const std::string& text);

/// ", did you mean --ranks?" for the name closest to a mistyped one; empty where none is close.
[[nodiscard]] std::string suggestion(const std::string& typed, const std::vector<std::string>& names);

/// Greatest number of ranks: threads of one process.
inline constexpr int kMaxRanks = 1024;

}  // namespace rotunda::cli
