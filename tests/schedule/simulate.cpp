#include "support/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rotunda::testing {
namespace {

const Exchange& exchange(const Program& program, int id) {
  return *std::find_if(program.exchanges.begin(), program.exchanges.end(),
                       [&](const Exchange& x) { return x.id == id; });
}

std::vector<Transfer> with_peer(const std::vector<Transfer>& transfers, int peer) {
  std::vector<Transfer> result;
  std::copy_if(transfers.begin(), transfers.end(), std::back_inserter(result),
               [&](const Transfer& t) { return t.peer == peer; });
  return result;
}

}  // namespace

Simulation::Simulation(const Problem& problem, const Shard& shard, const ScheduleOptions& options, bool backward,
                       Delivery delivery)
    : problem_(problem), shard_(shard), delivery_(delivery) {
  for (int r = 0; r < shard.q.ranks(); ++r) {
    Rank rank{make_program(problem, shard, options, r, backward), {}, 0, {}, {}};
    for (const Buffer& buffer : rank.program.buffers) {
      std::vector<Cell> cells(static_cast<std::size_t>(buffer.rows * buffer.heads));
      const bool query_side = buffer.binding == Binding::q || buffer.binding == Binding::dout ||
                              (backward && (buffer.binding == Binding::out || buffer.binding == Binding::lse));
      const bool key_side = buffer.binding == Binding::k || buffer.binding == Binding::v;
      const std::vector<std::int64_t> tokens = query_side ? shard.q.tokens_of(r)
                                               : key_side ? shard.k.tokens_of(r)
                                                          : std::vector<std::int64_t>{};
      for (std::size_t i = 0; i < cells.size() && !tokens.empty(); ++i) {
        const auto heads = static_cast<std::size_t>(buffer.heads);
        cells[i] = {Cell::Kind::input, tokens[i / heads], static_cast<int>(i % heads), {}, {}};
      }
      rank.cells.push_back(std::move(cells));
    }
    ranks_.push_back(std::move(rank));
  }
}

std::string Simulation::run() {
  for (bool moved = true; moved && error_.empty();) {
    moved = false;
    for (Rank& rank : ranks_) {
      while (error_.empty() && step(rank)) moved = true;
    }
  }
  for (const Rank& rank : ranks_) {
    if (error_.empty() && rank.next < rank.program.steps.size()) fail(rank, "waits for ever");
  }
  return error_;
}

void Simulation::fail(const Rank& rank, const std::string& what) {
  if (!error_.empty()) return;
  error_ = fmt::format("rank {} step {}: {}\n{}", rank.program.rank, rank.next, what, to_text(rank.program));
}

bool Simulation::peers_posted(const Rank& rank, int id) const {
  const auto& receives = exchange(rank.program, id).receives;
  return std::all_of(receives.begin(), receives.end(),
                     [&](const Transfer& t) { return ranks_[static_cast<std::size_t>(t.peer)].posted.contains(id); });
}

bool Simulation::peers_received(const Rank& rank, int id) const {
  const auto& sends = exchange(rank.program, id).sends;
  return std::all_of(sends.begin(), sends.end(),
                     [&](const Transfer& t) { return ranks_[static_cast<std::size_t>(t.peer)].received.contains(id); });
}

void Simulation::deliver(Rank& to, int id) {
  if (to.received.contains(id)) return;
  to.received[id] = true;
  std::vector<int> peers;
  for (const Transfer& t : exchange(to.program, id).receives) peers.push_back(t.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  for (const int peer : peers) {
    Rank& from = ranks_[static_cast<std::size_t>(peer)];
    const auto sends = with_peer(exchange(from.program, id).sends, to.program.rank);
    const auto receives = with_peer(exchange(to.program, id).receives, peer);
    if (sends.size() != receives.size()) {
      return fail(to, fmt::format("{} messages from {} instead of {}", sends.size(), peer, receives.size()));
    }
    for (std::size_t m = 0; m < sends.size(); ++m) {
      const auto source = cells(from, sends[m].region);
      const auto target = cells(to, receives[m].region);
      if (sends[m].region.rows != receives[m].region.rows || sends[m].region.heads != receives[m].region.heads) {
        return fail(to, fmt::format("message {} of exchange {} from {} has another shape", m, id, peer));
      }
      for (std::size_t i = 0; i < source.size(); ++i) {
        *target[i] = *source[i];
        if (source[i]->kind != Cell::Kind::input) continue;
        target[i]->used = std::make_shared<bool>(false);
        received_rows_.push_back(target[i]->used);
      }
    }
  }
}

std::vector<Cell*> Simulation::cells(Rank& rank, const Region& region) {
  std::vector<Cell*> result;
  if (!region) return result;
  const auto index = static_cast<std::size_t>(region.buffer);
  const std::int64_t heads = region.packed_heads > 0 ? region.packed_heads : rank.program.buffers[index].heads;
  for (std::int64_t row = region.row; row < region.row + region.rows; ++row) {
    for (std::int64_t head = region.head; head < region.head + region.heads; ++head) {
      result.push_back(&rank.cells[index].at(static_cast<std::size_t>(row * heads + head)));
    }
  }
  return result;
}

bool Simulation::step(Rank& rank) {
  if (rank.next == rank.program.steps.size()) return false;
  const Step& step = rank.program.steps[rank.next];
  const auto id_of = [&](int index) { return rank.program.exchange(index).id; };
  if (const auto* post = std::get_if<Post>(&step)) {
    rank.posted[id_of(post->exchange)] = true;
    // Eager: whoever can receive something now does.
    for (Rank& to : ranks_) {
      for (const auto& [id, posted] : to.posted) {
        if (delivery_ == Delivery::eager && peers_posted(to, id)) deliver(to, id);
      }
    }
  } else if (const auto* await = std::get_if<Await>(&step)) {
    const int id = id_of(await->exchange);
    if (!peers_posted(rank, id)) return false;
    deliver(rank, id);
  } else if (const auto* sent = std::get_if<AwaitSent>(&step)) {
    if (!peers_received(rank, id_of(sent->exchange))) return false;
  } else if (const auto* fill = std::get_if<Fill>(&step)) {
    for (Cell* cell : cells(rank, fill->to)) *cell = {Cell::Kind::zero, -1, -1, {}, {}};
  } else if (const auto* convert = std::get_if<Convert>(&step)) {
    const auto from = cells(rank, convert->from);
    const auto to = cells(rank, convert->to);
    if (from.size() != to.size()) fail(rank, "convert between regions of different shapes");
    for (std::size_t i = 0; i < from.size() && i < to.size(); ++i) *to[i] = *from[i];
  } else if (const auto* add = std::get_if<Add>(&step)) {
    const auto from = cells(rank, add->from);
    const auto to = cells(rank, add->to);
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i]->kind == Cell::Kind::undefined || to[i]->kind == Cell::Kind::undefined) fail(rank, "adds nothing");
      if (from[i]->kind != Cell::Kind::result) continue;
      if (to[i]->kind == Cell::Kind::zero) {
        *to[i] = *from[i];
      } else {
        for (std::size_t j = 0; j < to[i]->seen.size(); ++j) to[i]->seen[j] += from[i]->seen[j];
      }
    }
  } else if (const auto* delta = std::get_if<Delta>(&step)) {
    const auto from = cells(rank, delta->dout);
    const auto to = cells(rank, delta->delta);
    for (std::size_t i = 0; i < from.size(); ++i) *to[i] = *from[i];
  } else if (const auto* finish = std::get_if<Finish>(&step)) {
    const auto from = cells(rank, finish->acc);
    const auto to = cells(rank, finish->out);
    for (std::size_t i = 0; i < from.size(); ++i) *to[i] = *from[i];
  } else if (const auto* forward = std::get_if<Attend>(&step)) {
    attend(rank, *forward);
  } else if (const auto* backward = std::get_if<AttendBackward>(&step)) {
    attend(rank, *backward);
  }
  ++rank.next;
  return true;
}

template <class Pair>
void Simulation::for_pairs(const std::vector<Slice>& slices, const Region& q, int q_head, int kv_head, Pair&& pair) {
  const int group = problem_.h_q / problem_.h_kv;
  for (const Slice& s : slices) {
    for (std::int64_t i = 0; i < s.q_len; ++i) {
      for (std::int64_t j = 0; j < s.k_len; ++j) {
        const std::int64_t distance = (s.k_pos + j) - (s.q_pos + i);
        if (s.left != kInfinity && distance < -s.left) continue;
        if (s.right != kInfinity && distance > s.right) continue;
        for (int head = 0; head < q.heads; ++head) {
          pair(s.batch, s.q_begin + i, s.k_begin + j, head, (q_head + head) / group - kv_head);
        }
      }
    }
  }
}

void Simulation::attend(Rank& rank, const Attend& step) {
  const auto q = cells(rank, step.q);
  const auto k = cells(rank, step.k);
  const auto v = cells(rank, step.v);
  const auto acc = cells(rank, step.acc);
  const auto result = step.last ? cells(rank, step.out) : acc;
  const auto keys = static_cast<std::size_t>(problem_.batches() * problem_.s_k);
  std::vector<Cell> state(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    if (!step.init && acc[i]->kind != Cell::Kind::result) return fail(rank, "resumes a state that is none");
    state[i] = step.init ? Cell{Cell::Kind::result, q[i]->token, q[i]->head, std::vector<int>(keys), {}} : *acc[i];
    if (state[i].token != q[i]->token || state[i].head != q[i]->head) return fail(rank, "resumes another row's state");
  }
  for_pairs(step.slices, step.q, step.q_head, step.kv_head,
            [&](std::int64_t batch, std::int64_t row, std::int64_t key, int head, int kv) {
              const auto at_q = static_cast<std::size_t>(row * step.q.heads + head);
              const auto at_k = static_cast<std::size_t>(key * step.k.heads + kv);
              const bool right = q[at_q]->kind == Cell::Kind::input && k[at_k]->kind == Cell::Kind::input &&
                                 v[at_k]->kind == Cell::Kind::input && q[at_q]->head == step.q_head + head &&
                                 k[at_k]->head == step.kv_head + kv && k[at_k]->token == v[at_k]->token;
              if (!right) return fail(rank, "attends rows that are not what they should be");
              for (Cell* cell : {k[at_k], v[at_k]}) {
                if (cell->used) *cell->used = true;
              }
              if (q[at_q]->used) *q[at_q]->used = true;
              ++state[at_q].seen[static_cast<std::size_t>(batch * problem_.s_k + k[at_k]->token)];
            });
  for (std::size_t i = 0; i < state.size() && error_.empty(); ++i) {
    *result[i] = state[i];
    *cells(rank, step.lse)[i] = state[i];
  }
}

void Simulation::attend(Rank& rank, const AttendBackward& step) {
  const auto q = cells(rank, step.q);
  const auto k = cells(rank, step.k);
  const auto dq = cells(rank, step.dq);
  const auto dk = cells(rank, step.dk);
  const auto dv = cells(rank, step.dv);
  const auto keys = static_cast<std::size_t>(problem_.batches() * problem_.s_k);
  const auto queries = static_cast<std::size_t>(problem_.batches() * problem_.s_q * problem_.h_q);
  for (std::size_t i = 0; i < q.size(); ++i) {
    if (step.init_dq) *dq[i] = {Cell::Kind::result, q[i]->token, q[i]->head, std::vector<int>(keys), {}};
    if (dq[i]->kind != Cell::Kind::result || dq[i]->token != q[i]->token) return fail(rank, "adds to another row's dq");
  }
  for (std::size_t j = 0; j < k.size(); ++j) {
    const bool fresh = step.init_dkv || dk[j]->kind == Cell::Kind::zero;
    if (fresh) *dk[j] = {Cell::Kind::result, k[j]->token, k[j]->head, std::vector<int>(queries), {}};
    if (fresh) *dv[j] = *dk[j];
    if (dk[j]->kind != Cell::Kind::result || dk[j]->token != k[j]->token) return fail(rank, "adds to another row's dk");
  }
  const auto others = {cells(rank, step.v), cells(rank, step.dout), cells(rank, step.lse),
                       cells(rank, step.out ? step.out : step.delta)};
  for_pairs(
      step.slices, step.q, step.q_head, step.kv_head,
      [&](std::int64_t batch, std::int64_t row, std::int64_t key, int head, int kv) {
        const auto at_q = static_cast<std::size_t>(row * step.q.heads + head);
        const auto at_k = static_cast<std::size_t>(key * step.k.heads + kv);
        const Cell& query = *q[at_q];
        const Cell& row_k = *k[at_k];
        for (const auto& other : others) {
          const Cell& cell = *other[&other == others.begin() ? at_k : at_q];
          const Cell& with = &other == others.begin() ? row_k : query;
          const bool same = cell.kind != Cell::Kind::undefined && cell.token == with.token && cell.head == with.head;
          if (!same) return fail(rank, "attends rows that are not what they should be");
          if (cell.used) *cell.used = true;
        }
        if (query.head != step.q_head + head || row_k.head != step.kv_head + kv) {
          return fail(rank, "attends other heads than it says");
        }
        if (query.used) *query.used = true;
        if (row_k.used) *row_k.used = true;
        ++dq[at_q]->seen[static_cast<std::size_t>(batch * problem_.s_k + row_k.token)];
        const auto at = static_cast<std::size_t>((batch * problem_.s_q + query.token) * problem_.h_q + query.head);
        ++dk[at_k]->seen[at];
        ++dv[at_k]->seen[at];
      });
}

namespace {

struct Place {
  int rank = 0;
  std::int64_t row = 0;
};

Place place(const TokenMap& map, std::int64_t token) {
  for (int rank = 0; rank < map.ranks(); ++rank) {
    std::int64_t row = 0;
    for (const Run& run : map.runs(rank)) {
      const std::int64_t offset = token - run.token;
      if (offset >= 0 && offset % map.stride() == 0 && offset / map.stride() < run.len) {
        return {rank, row + offset / map.stride()};
      }
      row += run.len;
    }
  }
  return {};
}

int buffer_of(const Program& program, Binding binding) {
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    if (program.buffers[i].binding == binding) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

int Simulation::in_query_result(std::int64_t batch, int head, std::int64_t i, std::int64_t j) const {
  const Place at = place(shard_.q, i);
  const Rank& rank = ranks_[static_cast<std::size_t>(at.rank)];
  const int buffer = buffer_of(rank.program, rank.program.backward ? Binding::dq : Binding::out);
  const Cell& cell =
      rank.cells.at(static_cast<std::size_t>(buffer)).at(static_cast<std::size_t>(at.row * problem_.h_q + head));
  if (cell.kind == Cell::Kind::zero) return 0;
  if (cell.kind != Cell::Kind::result || cell.token != i || cell.head != head) return -1;
  return cell.seen.at(static_cast<std::size_t>(batch * problem_.s_k + j));
}

int Simulation::in_key_result(std::int64_t batch, int head, std::int64_t i, std::int64_t j) const {
  const Place at = place(shard_.k, j);
  const int kv = head / (problem_.h_q / problem_.h_kv);
  const Rank& rank = ranks_[static_cast<std::size_t>(at.rank)];
  int result = -1;
  for (const Binding binding : {Binding::dk, Binding::dv}) {
    const Cell& cell = rank.cells.at(static_cast<std::size_t>(buffer_of(rank.program, binding)))
                           .at(static_cast<std::size_t>(at.row * problem_.h_kv + kv));
    int count = 0;
    if (cell.kind != Cell::Kind::zero) {
      if (cell.kind != Cell::Kind::result || cell.token != j || cell.head != kv) return -1;
      count = cell.seen.at(static_cast<std::size_t>((batch * problem_.s_q + i) * problem_.h_q + head));
    }
    if (binding == Binding::dv && count != result) return -1;
    result = count;
  }
  return result;
}

std::int64_t Simulation::unused_rows() const {
  return std::count_if(received_rows_.begin(), received_rows_.end(), [](const auto& used) { return !*used; });
}

}  // namespace rotunda::testing
