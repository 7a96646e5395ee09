#include <algorithm>

#include "base/fail.hpp"
#include "rotunda/shard.hpp"
#include "shard/balanced.hpp"
#include "shard/runs.hpp"

namespace rotunda {
namespace {

/// The part `index` of [begin, begin + len) cut into `parts`, earlier ones a token longer where it does not divide.
Run part_of(std::int64_t begin, std::int64_t len, std::int64_t parts, std::int64_t index) {
  const std::int64_t longer = len % parts;
  return {begin + index * (len / parts) + std::min(index, longer), len / parts + (index < longer ? 1 : 0)};
}

//  contiguous, 4 ranks:  0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3
Runs contiguous(std::int64_t tokens, int ranks) {
  Runs runs(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const Run part = part_of(0, tokens, ranks, rank);
    append_run(runs[static_cast<std::size_t>(rank)], part.token, part.len);
  }
  return runs;
}

//  dual_chunk, 4 ranks:  0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0   of each document, or of the whole buffer as one
Runs dual_chunk(const std::vector<std::int64_t>& offsets, int ranks) {
  Runs runs(static_cast<std::size_t>(ranks));
  const int chunks = 2 * ranks;
  for (std::size_t document = 0; document + 1 < offsets.size(); ++document) {
    const std::int64_t begin = offsets[document], len = offsets[document + 1] - begin;
    for (int chunk = 0; chunk < chunks && len > 0; ++chunk) {
      const Run part = part_of(begin, len, chunks, chunk);
      append_run(runs[static_cast<std::size_t>(std::min(chunk, chunks - 1 - chunk))], part.token, part.len);
    }
  }
  return runs;
}

//  striped, 4 ranks:     0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3   one run a rank, the map's stride is the number of ranks
Runs striped(std::int64_t tokens, int ranks) {
  Runs runs(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks && rank < tokens; ++rank) {
    runs[static_cast<std::size_t>(rank)] = {{rank, (tokens - rank + ranks - 1) / ranks}};
  }
  return runs;
}

TokenMap map_of(ShardKind kind, const std::vector<std::int64_t>& offsets, int ranks) {
  const std::int64_t tokens = offsets.back();
  switch (kind) {
    case ShardKind::striped: return {tokens, ranks, striped(tokens, ranks)};
    case ShardKind::dual_chunk: return {tokens, 1, dual_chunk({0, tokens}, ranks)};
    case ShardKind::dual_chunk_doc: return {tokens, 1, dual_chunk(offsets, ranks)};
    case ShardKind::contiguous:
    case ShardKind::balanced: break;
  }
  return {tokens, 1, contiguous(tokens, ranks)};
}

}  // namespace

Shard make_shard(const Problem& problem, ShardKind kind, int ranks, std::int64_t chunk_size) {
  if (ranks < 1) fail(ErrorKind::bad_input, "ranks={}: allowed is at least 1", ranks);
  if (chunk_size < 0) fail(ErrorKind::bad_input, "chunk-size={}: allowed is at least 1, or 0 to choose", chunk_size);
  if (kind == ShardKind::balanced) return balanced_shard(problem, ranks, chunk_size);
  const auto q = document_offsets(problem, Side::query), k = document_offsets(problem, Side::key);
  Shard shard{kind, 0, map_of(kind, q, ranks), {}};
  shard.k = q == k ? shard.q : map_of(kind, k, ranks);
  return shard;
}

}  // namespace rotunda
