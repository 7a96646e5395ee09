// What each of a rank's items attends, and which of its rows are left for that.
#include <algorithm>
#include <utility>

#include "schedule/builder.hpp"

namespace rotunda {
namespace {

/// Of each head group, the stages with slices are active; where there is none, the own one (it writes zeros).
void mark_active(std::vector<Stage>& stages, std::size_t a_group) {
  for (std::size_t begin = 0; begin < stages.size(); begin += a_group) {
    std::vector<Stage*> active;
    for (std::size_t i = begin; i < begin + a_group; ++i) {
      if (!stages[i].slices.empty()) active.push_back(&stages[i]);
    }
    for (std::size_t i = begin; i < begin + a_group && active.empty(); ++i) {
      if (stages[i].item.stage == 0 && stages[i].item.q.count > 0) active.push_back(&stages[i]);
    }
    for (Stage* stage : active) stage->active = true;
    if (!active.empty()) active.front()->first = active.back()->last = true;
  }
}

}  // namespace

std::vector<Stage> Builder::stages() const {
  std::vector<Stage> result;
  const auto items = static_cast<std::size_t>(team_.groups() * team_.stages());
  for (std::size_t i = 0; i < items; ++i) {
    Stage stage;
    stage.item = item(rank(), i);
    const Item& item = stage.item;
    stage.in_place = team_.own_keys_in_place() && item.stage == 0;
    stage.q = {0, q_segments_.rows()};
    // What is seen depends on no head: the same stage of the group before has it.
    const auto a_group = static_cast<std::size_t>(team_.stages());
    if (item.group > 0 && item.q.count > 0 && result[result.size() - a_group].item.q.count > 0) {
      const Stage& same = result[result.size() - a_group];
      stage.keys = same.keys;
      stage.k = same.k;
      stage.slices = same.slices;
      result.push_back(std::move(stage));
      continue;
    }
    if (stage.in_place) {
      stage.keys = local_segments(shard_.k, rank());
    } else if (item.q.count > 0) {
      const std::span needed(rows_needed_);
      stage.keys = gathered_segments(
          shard_.k, item.owners.begin,
          needed.subspan(static_cast<std::size_t>(item.owners.begin), static_cast<std::size_t>(item.owners.count)));
    }
    stage.k = {0, stage.keys.rows()};
    if (item.q.count > 0) stage.slices = intersect(own_slices_, q_segments_, stage.keys);
    result.push_back(std::move(stage));
  }
  if (team_.own_keys_in_place()) split_own_rows(result);
  mark_active(result, static_cast<std::size_t>(team_.stages()));
  return result;
}

void Builder::split_own_rows(std::vector<Stage>& stages) const {
  // With a sink no forward call has the last word, so nothing can be finished at once.
  if (!program_.backward && problem_.sink != Sink::none) return;
  const auto group_end = stages.begin() + team_.stages();
  std::vector<RowRange> open_q, open_k;
  Part own;
  for (auto stage = stages.begin(); stage != group_end; ++stage) {
    if (stage->in_place) {
      own = {stage->q, stage->k, stage->slices};
    } else {
      for (const Slice& slice : stage->slices) open_q.push_back({slice.q_begin, slice.q_len});
    }
  }
  for (int other = 0; program_.backward && other < ranks(); ++other) {  // forward, it is all one to keys who reads them
    if (other == rank()) continue;
    const auto& wanted = rows_wanted_[static_cast<std::size_t>(other)];
    open_k.insert(open_k.end(), wanted.begin(), wanted.end());
  }
  const Parts parts = split_parts(std::move(own), open_q, open_k);
  if (parts.closed.empty()) return;
  const std::vector<std::vector<RowRange>> open_keys(1, std::vector{parts.open.k});
  for (Stage& stage : stages) {
    stage.q = parts.open.q;
    for (Slice& slice : stage.slices) slice.q_begin -= stage.q.begin;
    if (!stage.in_place) continue;
    stage.k = parts.open.k;
    stage.keys = gathered_segments(shard_.k, rank(), open_keys);
    stage.slices = parts.open.slices;
  }
  // They hide the first keys that come from elsewhere. Without any, they stand before the own open part: backward,
  // gradients may be on their way.
  for (auto begin = stages.begin(); begin != stages.end(); begin += team_.stages()) {
    const auto end = begin + team_.stages();
    auto stage = std::find_if(begin, end, [](const Stage& s) { return !s.in_place && s.k.len > 0; });
    if (stage == end) stage = std::find_if(begin, end, [](const Stage& s) { return s.in_place; });
    stage->closed = parts.closed;
  }
}

}  // namespace rotunda
