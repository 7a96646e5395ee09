// What each of a rank's items attends, and which of its rows are left for that.
#include <algorithm>
#include <utility>

#include "schedule/builder.hpp"

namespace rotunda {
namespace {

/// Of each head group, the stages with slices are active; where there is none and nothing is closed, the own one (it
/// writes zeros).
void mark_active(std::vector<Stage>& stages, std::size_t a_group) {
  for (std::size_t begin = 0; begin < stages.size(); begin += a_group) {
    std::vector<Stage*> active;
    for (std::size_t i = begin; i < begin + a_group; ++i) {
      if (!stages[i].slices.empty()) active.push_back(&stages[i]);
    }
    for (std::size_t i = begin; i < begin + a_group && active.empty(); ++i) {
      const bool at_home = !stages[begin].closed.empty();
      if (stages[i].item.stage == 0 && stages[i].item.q.count > 0 && !at_home) active.push_back(&stages[i]);
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
    stage.own_k = {0, shard_.k.rows(rank())};
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
  if (team_.queries_in_place()) split_own_rows(result);
  mark_active(result, static_cast<std::size_t>(team_.stages()));
  return result;
}

/// Where nothing has to do with other ranks, a stage that would gather this rank's own keys leaves all to one closed
/// part.
Parts Builder::parts_of_own_rows(const std::vector<Stage>& stages) const {
  const auto a_group = stages.begin() + team_.stages();
  const auto in_place = std::find_if(stages.begin(), a_group, [](const Stage& stage) { return stage.in_place; });
  const Segments own_keys = local_segments(shard_.k, rank());
  Part own{{0, q_segments_.rows()}, {0, own_keys.rows()}, {}};
  own.slices = in_place != a_group ? in_place->slices : intersect(own_slices_, q_segments_, own_keys);
  std::vector<std::vector<RowRange>> others = rows_needed_;
  others[static_cast<std::size_t>(rank())].clear();
  std::vector<RowRange> open_q, open_k;
  for (const Slice& slice : intersect(own_slices_, q_segments_, gathered_segments(shard_.k, 0, others))) {
    open_q.push_back({slice.q_begin, slice.q_len});
  }
  for (int other = 0; program_.backward && other < ranks(); ++other) {  // forward, it is all one to keys who reads them
    if (other == rank()) continue;
    const auto& wanted = rows_wanted_[static_cast<std::size_t>(other)];
    open_k.insert(open_k.end(), wanted.begin(), wanted.end());
  }
  const bool at_home = open_q.empty() && open_k.empty() && !own.slices.empty();
  if (at_home && in_place == a_group) return {{}, {std::move(own)}};
  return split_parts(std::move(own), open_q, open_k);
}

/// The stage attends open rows alone: of its queries, and of the own keys among its keys.
void Builder::leave_open(Stage& stage, const Part& open) const {
  stage.own_k = open.k;
  stage.q = open.q;
  if (stage.item.q.count == 0) return;
  std::vector<std::vector<RowRange>> rows;
  const RankRange owners = open.q.len > 0 ? stage.item.owners : RankRange{};
  for (int owner = owners.begin; owner < owners.end(); ++owner) {
    rows.push_back(owner == rank() ? std::vector{open.k} : rows_needed_[static_cast<std::size_t>(owner)]);
  }
  stage.keys = gathered_segments(shard_.k, owners.begin, rows);
  stage.k = stage.in_place ? open.k : RowRange{0, stage.keys.rows()};
  const std::vector<std::vector<RowRange>> open_rows(1, std::vector{open.q});
  stage.slices = intersect(own_slices_, gathered_segments(shard_.q, rank(), open_rows), stage.keys);
}

void Builder::split_own_rows(std::vector<Stage>& stages) const {
  // With a sink no forward call has the last word, so nothing can be finished at once.
  if (!program_.backward && problem_.sink != Sink::none) return;
  Parts parts = parts_of_own_rows(stages);
  if (parts.closed.empty()) return;
  std::vector<Part> after;
  if (!program_.backward) {
    // One call over all rows. It stands before all others, whose results replace what it leaves in open rows.
    if (parts.closed.size() > 1) parts.closed = {joined(parts.closed, stages.front().q, stages.front().own_k)};
  } else if (parts.open.q.len > 0) {
    after.push_back(std::move(parts.closed.back()));
    parts.closed.pop_back();
  }
  for (auto begin = stages.begin(); begin != stages.end(); begin += team_.stages()) {
    const auto end = begin + team_.stages();
    for (auto stage = begin; stage != end; ++stage) leave_open(*stage, parts.open);
    begin->closed = parts.closed;
    std::prev(end)->closed_after = after;
  }
}

}  // namespace rotunda
