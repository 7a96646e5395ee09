#include <algorithm>
#include <tuple>

#include "base/fail.hpp"
#include "rotunda/shard.hpp"

namespace rotunda {
namespace {

/// Throws unless the runs of all ranks cover every token of [0, tokens) once. Runs stay in one class of tokens modulo
/// the stride; within a class they must follow each other without a gap.
void check_cover(std::int64_t tokens, std::int64_t stride, const std::vector<std::vector<Run>>& runs) {
  std::vector<Run> all;
  for (const auto& list : runs) all.insert(all.end(), list.begin(), list.end());
  std::ranges::sort(all, [stride](const Run& a, const Run& b) {
    return std::tuple(a.token % stride, a.token) < std::tuple(b.token % stride, b.token);
  });
  std::int64_t covered = 0, residue = -1, next = 0;
  for (const Run& run : all) {
    if (run.token % stride != residue) {
      residue = run.token % stride;
      next = residue;
    }
    if (run.token != next) fail(ErrorKind::internal, "token map: a run starts at token {}, not at {}", run.token, next);
    next += run.len * stride;
    covered += run.len;
    if (next - stride >= tokens) fail(ErrorKind::internal, "token map: a run ends beyond token {}", tokens);
  }
  if (covered != tokens) fail(ErrorKind::internal, "token map: runs cover {} tokens of {}", covered, tokens);
}

}  // namespace

TokenMap::TokenMap(std::int64_t tokens, std::int64_t stride, std::vector<std::vector<Run>> runs)
    : tokens_(tokens), stride_(stride), runs_(std::move(runs)) {
  if (tokens < 0 || stride < 1) fail(ErrorKind::internal, "token map: {} tokens with stride {}", tokens, stride);
  for (const auto& list : runs_) {
    std::int64_t rows = 0, last = -1;
    for (const Run& run : list) {
      if (run.len < 1 || run.token <= last) {
        fail(ErrorKind::internal, "token map: run of {} tokens at {} follows token {}", run.len, run.token, last);
      }
      last = run.token + (run.len - 1) * stride;
      rows += run.len;
    }
    rows_.push_back(rows);
  }
  check_cover(tokens, stride, runs_);
}

std::vector<std::int64_t> TokenMap::tokens_of(int rank) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(static_cast<std::size_t>(rows(rank)));
  for (const Run& run : runs(rank)) {
    for (std::int64_t i = 0; i < run.len; ++i) tokens.push_back(run.token + i * stride_);
  }
  return tokens;
}

}  // namespace rotunda
