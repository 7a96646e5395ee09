// Runs the programs of all ranks on labels instead of tensors: who has which token's row, and which pairs a result
// already holds. No kernels, no transports, no threads.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "rotunda/schedule.hpp"

namespace rotunda::testing {

/// When an exchange's data moves: as soon as both sides have posted, or not before the receiver awaits it. A program
/// that is right under both never overwrites what is on its way.
enum class Delivery { eager, lazy };

/// One row and head of a buffer.
struct Cell {
  enum class Kind { undefined, zero, input, result } kind = Kind::undefined;
  std::int64_t token = -1;
  int head = -1;               ///< global
  std::vector<int> seen;       ///< results: how often each (batch, other side's token[, head]) is in it
  std::shared_ptr<bool> used;  ///< received keys: whether anybody attended them
};

/// All ranks' programs of one direction.
class Simulation {
 public:
  Simulation(const Problem& problem, const Shard& shard, const ScheduleOptions& options, bool backward,
             Delivery delivery);

  /// Empty, or what went wrong: a deadlock, an undefined row read, messages that do not match.
  [[nodiscard]] std::string run();

  /// After run: how often the pair (query token i, key token j) of a batch entry and query head is in `out` or `dq` of
  /// the query's owner; and in `dk` (and `dv`) of the key's owner.
  [[nodiscard]] int in_query_result(std::int64_t batch, int head, std::int64_t i, std::int64_t j) const;
  [[nodiscard]] int in_key_result(std::int64_t batch, int head, std::int64_t i, std::int64_t j) const;
  /// Key rows that were received and never attended.
  [[nodiscard]] std::int64_t unused_rows() const;
  [[nodiscard]] const Program& program(int rank) const { return ranks_[static_cast<std::size_t>(rank)].program; }

 private:
  struct Rank {
    Program program;
    std::vector<std::vector<Cell>> cells;  ///< by buffer; row-major rows × heads
    std::size_t next = 0;                  ///< step
    std::map<int, bool> posted, received;  ///< by exchange id
  };

  bool step(Rank& rank);
  void deliver(Rank& to, int id);
  [[nodiscard]] bool peers_posted(const Rank& rank, int id) const;
  [[nodiscard]] bool peers_received(const Rank& rank, int id) const;
  void fail(const Rank& rank, const std::string& what);

  std::vector<Cell*> cells(Rank& rank, const Region& region);
  void attend(Rank& rank, const Attend& step);
  void attend(Rank& rank, const AttendBackward& step);
  template <class Pair>
  void for_pairs(const std::vector<Slice>& slices, const Region& q, int q_head, int kv_head, Pair&& pair);

  const Problem& problem_;
  const Shard& shard_;
  Delivery delivery_;
  std::vector<Rank> ranks_;
  std::string error_;
  std::vector<std::shared_ptr<bool>> received_rows_;
};

}  // namespace rotunda::testing
