#include "cli/simulate.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/fail.hpp"
#include "cli/table.hpp"

namespace rotunda::cli {
namespace {

using Tokens = std::vector<std::int64_t>;  // by row; -1: nothing yet

constexpr double kMostBufferRows = 0x1p27;  // of all ranks: 1 GiB of tokens

/// Consecutive rows whose tokens lie in one cell.
struct CellRun {
  std::int64_t begin, end;
  int cell;
};

std::vector<CellRun> cell_runs(const Tokens& tokens, std::int64_t total, int cells) {
  std::vector<CellRun> runs;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(tokens.size()); ++row) {
    const std::int64_t token = tokens[static_cast<std::size_t>(row)];
    const int cell = token < 0 ? -1 : cell_of(token, total, cells);
    if (runs.empty() || runs.back().cell != cell) runs.push_back({row, row, cell});
    runs.back().end = row + 1;
  }
  return runs;
}

/// A buffer that holds every token: one run a cell.
std::vector<CellRun> whole_axis(std::int64_t tokens, int cells) {
  std::vector<CellRun> runs;
  for (std::int64_t begin = 0; begin < tokens;) {
    const int cell = cell_of(begin, tokens, cells);
    std::int64_t last = begin, end = tokens;  // the last of the cell, and one beyond it
    while (end - last > 1) {
      const std::int64_t middle = last + (end - last) / 2;
      (cell_of(middle, tokens, cells) == cell ? last : end) = middle;
    }
    runs.push_back({begin, end, cell});
    begin = end;
  }
  return runs;
}

/// Calls mark(q cell, k cell) for the cells with a visible pair of one slice, where token_of(row) is the token of a
/// query row. Long axes are sampled: every step-th row.
template <class TokenOf, class Mark>
void visit_cells(const Slice& slice, TokenOf&& token_of, const std::vector<CellRun>& keys, const Simulation& axes,
                 std::int64_t q_tokens, Mark&& mark) {
  const std::int64_t step = std::max<std::int64_t>(1, q_tokens / (std::int64_t{16} * std::max(1, axes.rows)));
  for (std::int64_t i = 0; i < slice.q_len; i += step) {
    const std::int64_t token = token_of(slice.q_begin + i);
    if (token < 0) continue;
    const std::int64_t diagonal = slice.q_pos + i - slice.k_pos;
    std::int64_t low = slice.left == kInfinity ? 0 : std::max<std::int64_t>(0, diagonal - slice.left);
    std::int64_t high = slice.right == kInfinity ? slice.k_len : std::min(slice.k_len, diagonal + slice.right + 1);
    low += slice.k_begin;
    high += slice.k_begin;
    auto run = std::partition_point(keys.begin(), keys.end(), [&](const CellRun& r) { return r.end <= low; });
    for (; run != keys.end() && run->begin < high; ++run) {
      if (run->cell >= 0) mark(cell_of(token, q_tokens, axes.rows), run->cell);
    }
  }
}

std::int64_t slice_pairs(const std::vector<Slice>& slices) {
  std::int64_t sum = 0;
  for (const Slice& slice : slices) sum += visible_pairs(slice);
  return sum;
}

class Simulator {
 public:
  Simulator(const Problem& problem, const Shard& shard, const std::vector<Program>& programs, const Machine& machine,
            Simulation& result)
      : problem_(problem), shard_(shard), programs_(programs), machine_(machine), result_(result) {
    for (const Program& program : programs) ranks_.push_back(make_rank(program));
  }

  /// Ranks take turns; each goes on until it waits for a message that was not posted yet.
  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        while (ranks_[r].next < programs_[r].steps.size() && perform(r)) moved = true;
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next != programs_[r].steps.size()) {
        fail(ErrorKind::internal, "the dry run stopped: rank {} waits at step {} of {}", r, ranks_[r].next,
             programs_[r].steps.size());
      }
      result_.seconds = std::max(result_.seconds, ranks_[r].now);
    }
  }

 private:
  struct Rank {
    std::vector<Tokens> tokens;  // by buffer
    std::size_t next = 0;
    double now = 0, link_free = 0;
    int attends = 0;
    std::map<int, double> posted;
  };
  using Key = std::tuple<int, int, int>;  // exchange, from, to

  Rank make_rank(const Program& program) const {
    Rank rank;
    for (const Buffer& buffer : program.buffers) {
      const bool query = buffer.binding == Binding::q || buffer.binding == Binding::dout;
      const bool key = buffer.binding == Binding::k || buffer.binding == Binding::v;
      Tokens tokens(static_cast<std::size_t>(buffer.rows), -1);
      if (query) tokens = shard_.q.tokens_of(program.rank);
      if (key) tokens = shard_.k.tokens_of(program.rank);
      rank.tokens.push_back(std::move(tokens));
    }
    return rank;
  }

  static Tokens part(const Rank& rank, const Region& region) {
    const Tokens& all = rank.tokens[static_cast<std::size_t>(region.buffer)];
    return Tokens(all.begin() + region.row, all.begin() + region.row + region.rows);
  }

  static void put(Rank& rank, const Region& region, const Tokens& tokens) {
    Tokens& all = rank.tokens[static_cast<std::size_t>(region.buffer)];
    const auto count = static_cast<std::int64_t>(tokens.size());
    std::copy_n(tokens.begin(), std::min(count, region.rows), all.begin() + region.row);
  }

  static double bytes(const Program& program, const std::vector<Transfer>& transfers) {
    double sum = 0;
    for (const Transfer& transfer : transfers) sum += static_cast<double>(program.bytes(transfer.region));
    return sum;
  }

  /// False: the step has to wait for another rank's post.
  bool perform(std::size_t r) {
    Rank& rank = ranks_[r];
    const Step& step = programs_[r].steps[rank.next];
    if (const auto* post = std::get_if<Post>(&step)) {
      send(r, programs_[r].exchange(post->exchange));
    } else if (const auto* await = std::get_if<Await>(&step)) {
      if (!receive(r, programs_[r].exchange(await->exchange))) return false;
    } else if (const auto* convert = std::get_if<Convert>(&step)) {
      put(rank, convert->to, part(rank, convert->from));
    } else if (const auto* attend = std::get_if<Attend>(&step)) {
      compute(r, *attend, 1.0);
    } else if (const auto* back = std::get_if<AttendBackward>(&step)) {
      compute(r, *back, kBackwardFlops);
    }
    ++rank.next;
    return true;
  }

  void send(std::size_t r, const Exchange& exchange) {
    Rank& rank = ranks_[r];
    rank.posted[exchange.id] = rank.now;
    for (const Transfer& transfer : exchange.sends) {
      mail_[{exchange.id, static_cast<int>(r), transfer.peer}].push_back(part(rank, transfer.region));
    }
  }

  bool receive(std::size_t r, const Exchange& exchange) {
    Rank& rank = ranks_[r];
    double begin = machine_.overlaps ? rank.posted[exchange.id] : rank.now;
    for (const Transfer& transfer : exchange.receives) {
      const Rank& peer = ranks_[static_cast<std::size_t>(transfer.peer)];
      const auto posted = peer.posted.find(exchange.id);
      if (posted == peer.posted.end()) return false;
      begin = std::max(begin, posted->second);
    }
    if (exchange.receives.empty()) return true;
    std::map<int, std::size_t> taken;
    for (const Transfer& transfer : exchange.receives) {
      const auto& box = mail_[{exchange.id, transfer.peer, static_cast<int>(r)}];
      const std::size_t index = taken[transfer.peer]++;
      if (index < box.size()) put(rank, transfer.region, box[index]);
    }
    begin = std::max(begin, rank.link_free);
    const double end = begin + bytes(programs_[r], exchange.receives) / machine_.bytes_per_second +
                       static_cast<double>(exchange.receives.size()) * machine_.seconds_per_message;
    rank.link_free = end;
    rank.now = std::max(rank.now, end);
    const int sender = taken.size() == 1 ? taken.begin()->first : -1;
    result_.ranks[r].intervals.push_back({false, begin, end, exchange.label, 0, sender});
    return true;
  }

  template <class AttendStep>
  void compute(std::size_t r, const AttendStep& step, double weight) {
    Rank& rank = ranks_[r];
    RankView& view = result_.ranks[r];
    const std::int64_t pairs = slice_pairs(step.slices) * step.q.heads;
    const double flops = weight * flops_per_pair(problem_) * static_cast<double>(pairs);
    const double end = rank.now + flops / machine_.flops_per_second;
    view.pairs += pairs;
    if (pairs > 0) {
      ++rank.attends;
      view.intervals.push_back({true, rank.now, end, label(step.q_head, step.q.heads, pairs), rank.attends, -1});
      const Tokens q = part(rank, step.q);
      const auto keys = cell_runs(part(rank, step.k), shard_.k.tokens(), result_.columns);
      for (const Slice& slice : step.slices) {
        if (slice.batch != result_.batch) continue;
        const auto token_of = [&](std::int64_t row) { return q[static_cast<std::size_t>(row)]; };
        visit_cells(slice, token_of, keys, result_, shard_.q.tokens(), [&](int row, int column) {
          int& cell = view.cells[result_.cell(row, column)];
          if (cell == 0) cell = rank.attends;
        });
      }
    }
    rank.now = end;
  }

  static std::string label(int head, std::int64_t heads, std::int64_t pairs) {
    return fmt::format("heads {} to {}: {} pairs", head, head + heads - 1, pairs);
  }

  const Problem& problem_;
  const Shard& shard_;
  const std::vector<Program>& programs_;
  const Machine& machine_;
  Simulation& result_;
  std::vector<Rank> ranks_;
  std::map<Key, std::vector<Tokens>> mail_;
};

}  // namespace

Simulation simulate(const Problem& problem, const Shard& shard, const std::vector<Program>& programs,
                    const Machine& machine, int cells) {
  double buffer_rows = 0;
  for (const Program& program : programs) {
    for (const Buffer& buffer : program.buffers) buffer_rows += static_cast<double>(buffer.rows);
  }
  if (buffer_rows > kMostBufferRows) {
    fail(ErrorKind::unsupported, "a picture follows every token, here {} rows of buffers; allowed: {}",
         count_text(buffer_rows), count_text(kMostBufferRows));
  }
  Simulation result;
  result.rows = static_cast<int>(std::min<std::int64_t>(cells, shard.q.tokens()));
  result.columns = static_cast<int>(std::min<std::int64_t>(cells, shard.k.tokens()));
  const auto slices = mask_slices(problem);
  result.batch = slices.empty() ? 0 : slices.front().batch;
  const auto size = static_cast<std::size_t>(result.rows) * static_cast<std::size_t>(result.columns);
  result.ranks.resize(programs.size());
  for (RankView& view : result.ranks) view.cells.assign(size, 0);
  Simulator(problem, shard, programs, machine, result).run();
  return result;
}

Simulation simulate(const std::vector<std::shared_ptr<const Plan>>& plans, bool backward, const Machine& machine,
                    int cells) {
  std::vector<Program> programs;
  for (const auto& plan : plans) programs.push_back(backward ? *plan->backward : plan->forward);
  return simulate(plans.front()->problem, plans.front()->shard, programs, machine, cells);
}

std::vector<int> mask_cells(const Problem& problem, const Simulation& axes) {
  std::vector<int> cells(static_cast<std::size_t>(axes.rows) * static_cast<std::size_t>(axes.columns), 0);
  const auto keys = whole_axis(problem.s_k, axes.columns);
  for (const Slice& slice : mask_slices(problem)) {
    if (slice.batch != axes.batch) continue;
    visit_cells(
        slice, [](std::int64_t row) { return row; }, keys, axes, problem.s_q,
        [&](int row, int column) { cells[axes.cell(row, column)] = 1; });
  }
  return cells;
}

}  // namespace rotunda::cli
