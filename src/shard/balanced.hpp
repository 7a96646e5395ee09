// Balanced shards: equal tokens, equal pairs, documents whole where they can be.
#pragma once

#include <cstdint>

#include "rotunda/shard.hpp"

namespace rotunda {

/// Tokens a chunk where the caller leaves it to us: tokens / (8·ranks), rounded up; from 64 on to a multiple of 64.
[[nodiscard]] std::int64_t default_chunk_size(std::int64_t tokens, int ranks);

/// Chunks are at most chunk_size tokens and lie within a document. In this order:
///   1. ranks have the same number of tokens to within chunk_size (a hard rule, for queries and for keys);
///   2. the visible pairs of the ranks' query rows are equal: the costliest rank at most 2 % above the mean where that
///      can be had;
///   3. as few documents as possible are split between ranks.
/// Self-attention gives both sides the same map. Otherwise the keys are mapped likewise (a key's cost is the number of
/// rows that see it; chunk_size 0 chooses for each side), a whole document's keys going where its queries are if they
/// fit. Deterministic. O((documents + chunks)·ranks·log(documents)).
[[nodiscard]] Shard balanced_shard(const Problem& problem, int ranks, std::int64_t chunk_size);

}  // namespace rotunda
