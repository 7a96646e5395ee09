#include "schedule/builder.hpp"

#include <algorithm>
#include <utility>

namespace rotunda {
namespace {

constexpr std::int64_t kWorkspaceAlignment = 256;  // what GPU tensor copies and allocators want; ample for SIMD

}  // namespace

Region narrow_rows(Region region, std::int64_t row, std::int64_t rows) {
  region.row += row;
  region.rows = rows;
  return region;
}

Region narrow_heads(Region region, std::int64_t head, std::int64_t heads) {
  region.head += head;
  region.heads = heads;
  return region;
}

Region Slots::next(Builder& builder, std::int64_t heads) {
  turn_ = 1 - turn_;
  builder.await_sent(std::exchange(sent_[turn_], -1));
  Region region = narrow_heads(regions_[turn_], 0, heads);
  region.packed_heads = heads;
  return region;
}

Builder::Builder(const Problem& problem, const Shard& shard, const ScheduleOptions& options, int rank, bool backward)
    : problem_(problem),
      shard_(shard),
      options_(options),
      team_(problem, options, shard.q.ranks()),
      slices_(mask_slices(problem)) {
  program_.rank = rank;
  program_.ranks = shard.q.ranks();
  program_.backward = backward;
  find_visible_rows();
  if (team_.queries_in_place()) {
    q_segments_ = local_segments(shard.q, rank);
  } else {
    const RankRange members = team_.members(rank);
    const std::vector<RowRange> seeing = seeing_query_tokens(slices_);
    std::vector<std::vector<RowRange>> rows;
    for (int member = members.begin; member < members.end(); ++member) {
      rows.push_back(rows_of_tokens(seeing, shard.q, member));
    }
    q_segments_ = gathered_segments(shard.q, members.begin, rows);
  }
  own_slices_ = slices_of(slices_, q_segments_);
}

void Builder::find_visible_rows() {
  const auto team = static_cast<std::size_t>(rank() / team_.inner());
  if (shard_.q.stride() == 1) {
    const Segments queries = whole_segments(shard_.q, 0, ranks());
    const auto tokens = visible_key_tokens(slices_, queries, ranks(), team_.inner());
    for (int owner = 0; owner < ranks(); ++owner) {
      rows_needed_.push_back(rows_of_tokens(tokens[team], shard_.k, owner));
    }
    for (const auto& seen : tokens) rows_wanted_.push_back(rows_of_tokens(seen, shard_.k, rank()));
    return;
  }
  const auto queries_of = [&](int member) {
    const RankRange members = team_.members(member);
    return whole_segments(shard_.q, members.begin, members.count);
  };
  const Segments queries = queries_of(rank());
  for (int owner = 0; owner < ranks(); ++owner) {
    rows_needed_.push_back(visible_key_rows(slices_, queries, shard_.k, owner));
  }
  for (int first = 0; first < ranks(); first += team_.inner()) {
    rows_wanted_.push_back(visible_key_rows(slices_, queries_of(first), shard_.k, rank()));
  }
}

Item Builder::item(int of_rank, std::size_t index) const {
  const int stages = team_.stages();
  const auto number = static_cast<int>(index);
  // Backward, remote keys first: their gradients leave while the rank's own are computed.
  const int stage = (number + (program_.backward ? 1 : 0)) % stages;
  return team_.item(of_rank, number / stages, stage);
}

std::vector<Taker> Builder::takers(std::size_t index) const {
  std::vector<Taker> result;
  const RankRange ranks = team_.takers(rank(), item(rank(), index).stage);
  for (int taker = ranks.begin; taker < ranks.end(); ++taker) {
    const Item theirs = item(taker, index);
    if (taker == rank() || theirs.q.count == 0) continue;
    const auto team = static_cast<std::size_t>(taker / team_.inner());
    result.push_back({taker, theirs.kv, gathered_segments(shard_.k, rank(), {&rows_wanted_[team], 1})});
  }
  return result;
}

bool Builder::every_query_row_is_gathered() const {
  std::int64_t rows = 0;
  for (const Segment& segment : q_segments_.list) rows += segment.owner == rank() ? segment.len : 0;
  return rows == shard_.q.rows(rank());
}

bool Builder::every_key_row_is_gathered() const {
  std::int64_t rows = 0;
  for (const RowRange& range : rows_wanted_[static_cast<std::size_t>(rank() / team_.inner())]) rows += range.len;
  return rows == shard_.k.rows(rank());
}

std::vector<RowSpan> Builder::real_local_rows() const {
  return spans_in_rows(real_query_rows(problem_), local_segments(shard_.q, rank()));
}

std::vector<RowSpan> Builder::real_attended_rows() const {
  return spans_in_rows(real_query_rows(problem_), q_segments_);
}

int Builder::add_buffer(Buffer buffer) {
  program_.buffers.push_back(std::move(buffer));
  return static_cast<int>(program_.buffers.size()) - 1;
}

namespace {

Region whole(const Buffer& buffer, int index) {
  return {index, 0, buffer.rows, 0, buffer.heads};
}

Buffer user_buffer(const Problem& p, Binding binding, std::int64_t rows_q, std::int64_t rows_k) {
  const std::string name = to_string(binding);
  switch (binding) {
    case Binding::q:
    case Binding::dq: return {name, binding, p.dtype, p.batches(), rows_q, p.h_q, p.d};
    case Binding::k:
    case Binding::dk: return {name, binding, p.dtype, p.batches(), rows_k, p.h_kv, p.d};
    case Binding::v:
    case Binding::dv: return {name, binding, p.dtype, p.batches(), rows_k, p.h_kv, p.d_v};
    case Binding::out:
    case Binding::dout: return {name, binding, p.dtype, p.batches(), rows_q, p.h_q, p.d_v};
    case Binding::lse: return {name, binding, DType::fp32, p.batches(), rows_q, p.h_q, 1};
    case Binding::sink:
    case Binding::dsink:
    case Binding::max_logit:
    case Binding::workspace: break;
  }
  return {name, binding, DType::fp32, 1, 1, p.h_q, 1};
}

}  // namespace

Region Builder::bound(Binding binding) {
  const auto [it, added] = bound_.try_emplace(binding, -1);
  if (added) it->second = add_buffer(user_buffer(problem_, binding, shard_.q.rows(rank()), shard_.k.rows(rank())));
  return whole(program_.buffers[static_cast<std::size_t>(it->second)], it->second);
}

Region Builder::workspace(const std::string& name, DType dtype, std::int64_t rows, std::int64_t heads,
                          std::int64_t dim) {
  const Layout layout = dim == 1 ? Layout::bhsd : Layout::bshd;
  const int index = add_buffer({name, Binding::workspace, dtype, problem_.batches(), rows, heads, dim, 0, layout});
  return whole(program_.buffers[static_cast<std::size_t>(index)], index);
}

std::array<Region, 2> Builder::workspace_pair(const std::string& name, DType dtype, std::int64_t rows,
                                              std::int64_t heads, std::int64_t dim) {
  const Region first = workspace(name + "0", dtype, rows, heads, dim);
  if (team_.groups() * team_.stages() == 1) return {first, first};
  return {first, workspace(name + "1", dtype, rows, heads, dim)};
}

Region Builder::row_statistics(const std::string& name, std::int64_t rows) {
  const int index = add_buffer({name, Binding::workspace, DType::fp32, 1, rows, problem_.h_q, 1});
  return whole(program_.buffers[static_cast<std::size_t>(index)], index);
}

void Builder::bind_sink() {
  if (problem_.sink == Sink::learnable) bound(Binding::sink);
}

int Builder::post(const std::string& label, Transfers transfers) {
  const int id = next_id_++;
  const auto empty = [&](const Transfer& t) {
    const Buffer& buffer = program_.buffers[static_cast<std::size_t>(t.region.buffer)];
    return buffer.batch * t.region.rows * t.region.heads * buffer.dim == 0;
  };
  std::erase_if(transfers.sends, empty);
  std::erase_if(transfers.receives, empty);
  if (transfers.sends.empty() && transfers.receives.empty()) return -1;
  const int index = static_cast<int>(program_.exchanges.size());
  program_.exchanges.push_back({id, label, std::move(transfers.sends), std::move(transfers.receives)});
  add(Post{index});
  return index;
}

void Builder::await(int exchange) {
  if (exchange >= 0 && !program_.exchanges[static_cast<std::size_t>(exchange)].receives.empty()) add(Await{exchange});
}

void Builder::await_sent(int exchange) {
  if (exchange >= 0 && !program_.exchanges[static_cast<std::size_t>(exchange)].sends.empty()) add(AwaitSent{exchange});
}

void Builder::transfer_keys(std::size_t index, const Stage& stage, Region k, Region v, Transfers& transfers) {
  const Region own_k = bound(Binding::k);
  const Region own_v = bound(Binding::v);
  for (const Taker& taker : takers(index)) {
    for (const Segment& segment : taker.rows.list) {
      for (const Region own : {own_k, own_v}) {
        const Region part = narrow_heads(narrow_rows(own, segment.owner_row, segment.len), taker.kv);
        transfers.sends.push_back({taker.rank, part});
      }
    }
  }
  if (stage.in_place) return;
  for (const Segment& segment : stage.keys.list) {
    for (const auto& [own, gathered] : {std::pair{own_k, k}, std::pair{own_v, v}}) {
      const Region to = narrow_rows(gathered, segment.row, segment.len);
      if (segment.owner == rank()) {
        add(Convert{narrow_heads(narrow_rows(own, segment.owner_row, segment.len), stage.item.kv), to});
      } else {
        transfers.receives.push_back({segment.owner, to});
      }
    }
  }
}

void Builder::move_queries(std::size_t index, const std::vector<QueryTensor>& tensors, Direction direction,
                           Transfers& transfers) {
  const bool gathers = direction == Direction::to_gathered;
  for (const Segment& segment : q_segments_.list) {
    for (const QueryTensor& tensor : tensors) {
      const Region gathered = narrow_rows(tensor.gathered, segment.row, segment.len);
      if (segment.owner != rank()) {
        (gathers ? transfers.receives : transfers.sends).push_back({segment.owner, gathered});
        continue;
      }
      move_own_queries(index, {narrow_rows(tensor.user, segment.owner_row, segment.len), gathered}, direction,
                       transfers);
    }
  }
}

void Builder::move_own_queries(std::size_t index, const QueryTensor& rows, Direction direction, Transfers& transfers) {
  const bool gathers = direction == Direction::to_gathered;
  const RankRange members = team_.members(rank());
  for (int member = members.begin; member < members.end(); ++member) {
    const Region part = narrow_heads(rows.user, item(member, index).q);
    if (member != rank()) {
      (gathers ? transfers.sends : transfers.receives).push_back({member, part});
    } else if (part.heads > 0) {
      add(gathers ? Convert{part, rows.gathered} : Convert{rows.gathered, part});
    }
  }
}

Program Builder::finish() {
  // Every send must have left before the caller may touch its tensors.
  std::vector<bool> awaited(program_.exchanges.size());
  for (const Step& step : program_.steps) {
    if (const auto* sent = std::get_if<AwaitSent>(&step)) awaited[static_cast<std::size_t>(sent->exchange)] = true;
  }
  for (std::size_t i = 0; i < awaited.size(); ++i) {
    if (!awaited[i]) await_sent(static_cast<int>(i));
  }
  for (Buffer& buffer : program_.buffers) {
    if (buffer.binding != Binding::workspace) continue;
    buffer.offset = program_.workspace_bytes;
    program_.workspace_bytes += (buffer.bytes() + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  }
  return std::move(program_);
}

Program make_program(const Problem& problem, const Shard& shard, const ScheduleOptions& options, int rank,
                     bool backward) {
  Builder builder(problem, shard, options, rank, backward);
  if (backward) {
    build_backward(builder);
  } else {
    build_forward(builder);
  }
  return builder.finish();
}

}  // namespace rotunda
