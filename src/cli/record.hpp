// Benchmark records, and JSON files that grow by a record at a time.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "cli/session.hpp"
#include "rotunda/oracle.hpp"

namespace rotunda::cli {

/// A baseline's time over ours: above 1 we are faster. 0 where it was not measured.
struct Ratios {
  double fwd = 0, bwd = 0, both = 0;
};

/// Medians in seconds, 0 where not measured.
struct Times {
  double forward = 0, backward = 0, both = 0;
};

struct Record {
  std::string name;
  std::string problem;
  int ranks = 1, gpus = 0;
  std::string schedule, backward_schedule, kernel, transport, device;
  std::map<std::string, std::string> versions;
  std::string command;
  Times times;
  double fwd_tflops = 0, bwd_tflops = 0;
  std::int64_t peak_bytes = 0;
  double exposed_ms = 0;
  std::map<std::string, double> err_ratio;
  std::map<std::string, std::int64_t> skipped;  ///< by tensor: elements not compared, for their true value is NaN
  std::string verified;                         ///< the problem that err_ratio belongs to, where it is not `problem`
  std::map<std::string, Ratios> baselines;
  bool graph = false;  ///< times are those of CUDA graphs
};

/// What a session did, without times.
[[nodiscard]] Record record_of(const std::string& name, const std::string& problem, const Options& options,
                               const std::vector<RankReport>& reports);
/// error ÷ naive error by tensor, and what was skipped.
void add_grades(Record& record, const std::vector<Grade>& grades);

/// The fields in the contract's order; figures that were not measured are null.
[[nodiscard]] nlohmann::ordered_json to_json(const Record& record);

[[nodiscard]] nlohmann::ordered_json to_json(const Cost& cost);

/// The array in `path`; empty where there is no file. @throws Error bad_input where it holds something else
[[nodiscard]] nlohmann::ordered_json json_array(const std::string& path);

/// Appends to the array in `path`, which is made if it is not there, and replaced as a whole. @throws Error bad_input
void append_json(const std::string& path, const std::vector<nlohmann::ordered_json>& values);

/// Of all query heads; backward takes kBackwardFlops times that.
[[nodiscard]] double forward_flops(const Problem& problem);

}  // namespace rotunda::cli
