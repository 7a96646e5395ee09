// Shards: which rank owns which tokens. Host only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rotunda/problem.hpp"

namespace rotunda {

enum class ShardKind { contiguous, dual_chunk, dual_chunk_doc, striped, balanced };
inline constexpr std::array kShardKinds{ShardKind::contiguous, ShardKind::dual_chunk, ShardKind::dual_chunk_doc,
                                        ShardKind::striped, ShardKind::balanced};

[[nodiscard]] const char* to_string(ShardKind kind) noexcept;
/// @throws Error bad_input listing the allowed names
[[nodiscard]] ShardKind parse_shard_kind(std::string_view name);

/// `len` tokens that lie in consecutive local rows of one rank: token, token + stride, token + 2·stride, …
/// where stride is the map's.
struct Run {
  std::int64_t token = 0, len = 0;

  bool operator==(const Run&) const = default;
};

/// Token → (rank, local row) for one side (queries or keys) of a problem. A token is a row of the whole buffer
/// ([0, s) of every batch entry alike for dense layouts, [0, t) for thd). Local rows are in ascending token order.
class TokenMap {
 public:
  TokenMap() = default;
  /// runs[rank], ascending; together they cover [0, tokens) once. @throws Error internal otherwise
  TokenMap(std::int64_t tokens, std::int64_t stride, std::vector<std::vector<Run>> runs);

  [[nodiscard]] int ranks() const { return static_cast<int>(runs_.size()); }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }
  [[nodiscard]] const std::vector<Run>& runs(int rank) const { return runs_[static_cast<std::size_t>(rank)]; }
  /// Rows that a rank owns.
  [[nodiscard]] std::int64_t rows(int rank) const { return rows_[static_cast<std::size_t>(rank)]; }
  /// Tokens of a rank in local row order: its position ids within the buffer.
  [[nodiscard]] std::vector<std::int64_t> tokens_of(int rank) const;

  bool operator==(const TokenMap&) const = default;

 private:
  std::int64_t tokens_ = 0, stride_ = 1;
  std::vector<std::vector<Run>> runs_;
  std::vector<std::int64_t> rows_;
};

/// The maps of both sides. For self-attention (s_q = s_k and the same documents) they are the same map.
struct Shard {
  ShardKind kind = ShardKind::contiguous;
  std::int64_t chunk_size = 0;  ///< tokens a chunk (balanced only)
  TokenMap q, k;

  bool operator==(const Shard&) const = default;
};

/// Who owns what. chunk_size (balanced only): tokens a chunk, 0 chooses one. @throws Error bad_input
[[nodiscard]] Shard make_shard(const Problem& problem, ShardKind kind, int ranks, std::int64_t chunk_size = 0);

/// Position of each local query row within its document (what a model wants as position ids), by local row.
[[nodiscard]] std::vector<std::int64_t> position_ids(const Problem& problem, const TokenMap& map, int rank);

/// Copies a rank's rows of a whole tensor into a local one, and back. Views are [batch, row, head, dim] with equal
/// batch, heads, dim and dtype; whole has map.tokens() rows, local has map.rows(rank). @throws Error bad_input
void scatter(const TokenMap& map, int rank, const TensorView& whole, const TensorView& local);
void gather(const TokenMap& map, int rank, const TensorView& local, const TensorView& whole);

}  // namespace rotunda
