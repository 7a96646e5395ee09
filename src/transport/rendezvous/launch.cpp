#include "transport/rendezvous/launch.hpp"

#include <unistd.h>

#include <charconv>

#include "base/environment.hpp"
#include "base/fail.hpp"
#include "base/fnv.hpp"

namespace rotunda {
namespace {

/// The variables in which a launcher says who a process is. A launcher counts where `rank` and a size are set.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;     ///< a number or name of the job, alike in all its processes; or nullptr
  const char* needed;  ///< must be set too; or nullptr
};

// torchrun's come first: a job that Slurm starts may start torchrun itself. SLURM_PROCID is set in a batch script too,
// which is not a rank: only a step has its own number of tasks.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", nullptr},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", nullptr},
    {"mpirun (MVAPICH)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", nullptr, nullptr},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID", "SLURM_STEP_ID"},
    {"mpirun (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr, nullptr},
};

constexpr int kMostRanks = 1 << 20;
// Ports that a job's number is spread over where nobody names one: below those that systems hand out themselves.
constexpr int kFirstPort = 20'000, kPorts = 10'000;

int number(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    fail(ErrorKind::bad_input, "{} is '{}', allowed are whole numbers from {} to {}", name, text, least, most);
  }
  return value;
}

std::optional<int> number_of(const Environment& environment, const char* name, int least, int most) {
  const auto text = name == nullptr ? std::nullopt : environment(name);
  if (!text) return std::nullopt;
  return number(name, *text, least, most);
}

/// A path for the job on this host. Users don't meet in it, and the length of names doesn't matter.
std::string unix_address(const std::string& job) {
  return fmt::format("unix:/tmp/rotunda-{}-{:016x}.sock", ::getuid(), fnv1a(job));
}

std::string job_of(const Environment& environment, const Launcher& launcher, long parent) {
  std::string job = fmt::format("{} {}", launcher.name, parent);
  if (launcher.job != nullptr) {
    if (const auto id = environment(launcher.job)) job = fmt::format("{} {}", launcher.name, *id);
  }
  for (const char* part : {"SLURM_STEP_ID", "MASTER_PORT"}) {
    if (const auto id = environment(part)) job += " " + *id;
  }
  return job;
}

/// Whether all ranks are on this host, as far as the launcher says.
bool one_host(const Environment& environment, const Launcher& launcher, int size) {
  if (size == 1) return true;
  if (const auto local = number_of(environment, launcher.local_size, 1, kMostRanks)) return *local == size;
  for (const char* nodes : {"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    if (const auto count = number_of(environment, nodes, 1, kMostRanks)) return *count == 1;
  }
  return false;
}

std::string address_of(const Environment& environment, const Launcher& launcher, int size, long parent) {
  const auto host = environment("MASTER_ADDR");
  if (host && host->starts_with("unix:")) return *host;
  const bool here = one_host(environment, launcher, size);
  // torchrun's own store holds MASTER_PORT in most jobs: a socket of ours on one host, else the port after it.
  const bool store = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  const auto port = number_of(environment, "MASTER_PORT", 1, 65'534);
  if (host && port && !(store && here)) return fmt::format("{}:{}", *host, *port + (store ? 1 : 0));
  const std::string job = job_of(environment, launcher, parent);
  if (here) return unix_address(job);
  for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto nodes = environment(list)) {
      return fmt::format("{}:{}", first_host(*nodes), kFirstPort + static_cast<int>(fnv1a(job) % kPorts));
    }
  }
  fail(ErrorKind::bad_input,
       "{} has started this process as one of {} on several hosts, and says nowhere where rank 0 is: set MASTER_ADDR "
       "and MASTER_PORT to its host and a free port",
       launcher.name, size);
}

}  // namespace

std::string first_host(const std::string& node_list) {
  const std::size_t bracket = node_list.find('[');
  const std::size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const std::size_t end = node_list.find_first_of("-,]", bracket);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1);
}

std::optional<ProcessGroup> find_process_group(const Environment& environment, long parent) {
  for (const Launcher& launcher : kLaunchers) {
    const auto rank_text = environment(launcher.rank);
    if (!rank_text || !environment(launcher.size)) continue;
    if (launcher.needed != nullptr && !environment(launcher.needed)) continue;
    ProcessGroup group;
    group.launcher = launcher.name;
    group.size = *number_of(environment, launcher.size, 1, kMostRanks);
    group.rank = number(launcher.rank, *rank_text, 0, group.size - 1);
    group.local_rank = number_of(environment, launcher.local_rank, 0, kMostRanks).value_or(group.rank);
    group.address = address_of(environment, launcher, group.size, parent);
    if (group.address == environment("MASTER_ADDR")) group.launcher = "rotunda";  // no other names a Unix socket
    return group;
  }
  return std::nullopt;
}

std::optional<ProcessGroup> find_process_group() {
  return find_process_group(environment, ::getppid());
}

}  // namespace rotunda
