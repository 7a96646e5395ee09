// What torchrun, mpirun, Slurm or the CLI itself tell a process about the job that it is part of.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rotunda/transport.hpp"

namespace rotunda {

/// A variable's value; nothing where it is unset or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The job's place of this process, or nothing where no launcher has said any. `parent` names the process that started
/// this one: what tells jobs on a host apart where the launcher gives no number.
/// @throws Error bad_input for values that make no sense, and where several hosts lack an address
[[nodiscard]] std::optional<ProcessGroup> find_process_group(const Environment& environment, long parent);

/// The first host of a Slurm node list: "node[03-05,9],other" → "node03".
[[nodiscard]] std::string first_host(const std::string& node_list);

}  // namespace rotunda
