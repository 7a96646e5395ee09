#include "base/fail.hpp"
#include "rotunda/shard.hpp"

namespace rotunda {

const char* to_string(ShardKind kind) noexcept {
  switch (kind) {
    case ShardKind::contiguous: return "contiguous";
    case ShardKind::dual_chunk: return "dual_chunk";
    case ShardKind::dual_chunk_doc: return "dual_chunk_doc";
    case ShardKind::striped: return "striped";
    case ShardKind::balanced: return "balanced";
  }
  return "?";
}

ShardKind parse_shard_kind(std::string_view name) {
  std::string allowed;
  for (const ShardKind kind : kShardKinds) {
    if (name == to_string(kind)) return kind;
    allowed += (allowed.empty() ? "" : ", ") + std::string(to_string(kind));
  }
  fail(ErrorKind::bad_input, "shard '{}': allowed are {}", name, allowed);
}

}  // namespace rotunda
