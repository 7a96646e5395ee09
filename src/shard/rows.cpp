// What a rank does with its map: positions of its rows, and rows in and out of whole tensors.
#include <algorithm>

#include "base/copy.hpp"
#include "base/fail.hpp"
#include "rotunda/shard.hpp"

namespace rotunda {
namespace {

void check_rank(const char* verb, const TokenMap& map, int rank) {
  if (rank < 0 || rank >= map.ranks()) {
    fail(ErrorKind::bad_input, "{}: rank {} of a map of {}", verb, rank, counted(map.ranks(), "rank"));
  }
}

void check_views(const char* verb, const TokenMap& map, int rank, const TensorView& whole, const TensorView& local) {
  check_rank(verb, map, rank);
  if (whole.rows() != map.tokens()) {
    fail(ErrorKind::bad_input, "{}: the whole tensor is {}, its rows must be the map's {} tokens", verb,
         describe(whole), map.tokens());
  }
  TensorView wanted = whole;
  wanted.shape[1] = map.rows(rank);
  if (local.shape != wanted.shape || local.dtype != wanted.dtype) {
    fail(ErrorKind::bad_input, "{}: the local tensor of rank {} is {}, it must be {}", verb, rank, describe(local),
         describe(wanted));
  }
  for (const TensorView& view : {whole, local}) {
    if (view.data == nullptr && !view.empty()) fail(ErrorKind::bad_input, "{}: {} has no memory", verb, describe(view));
  }
}

/// Calls body(rows of whole, rows of local) for each run.
template <class Body>
void for_runs(const TokenMap& map, int rank, const TensorView& whole, const TensorView& local, const Body& body) {
  std::int64_t row = 0;
  for (const Run& run : map.runs(rank)) {
    TensorView rows = whole.narrow_rows(run.token, run.len);
    rows.stride[1] *= map.stride();
    body(rows, local.narrow_rows(row, run.len));
    row += run.len;
  }
}

}  // namespace

std::vector<std::int64_t> position_ids(const Problem& problem, const TokenMap& map, int rank) {
  check_rank("position_ids", map, rank);
  const auto offsets = document_offsets(problem, Side::query);
  std::vector<std::int64_t> positions = map.tokens_of(rank);
  auto document = offsets.begin();
  for (auto& position : positions) {  // tokens ascend, so documents do
    document = std::upper_bound(document, offsets.end(), position) - 1;
    position -= *document;
  }
  return positions;
}

void scatter(const TokenMap& map, int rank, const TensorView& whole, const TensorView& local) {
  check_views("scatter", map, rank, whole, local);
  for_runs(map, rank, whole, local, [](const TensorView& from, const TensorView& to) { copy(from, to); });
}

void gather(const TokenMap& map, int rank, const TensorView& local, const TensorView& whole) {
  check_views("gather", map, rank, whole, local);
  for_runs(map, rank, whole, local, [](const TensorView& to, const TensorView& from) { copy(from, to); });
}

}  // namespace rotunda
