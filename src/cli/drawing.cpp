#include "cli/drawing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/fail.hpp"
#include "cli/picture.hpp"
#include "cli/simulate.hpp"
#include "cli/svg.hpp"
#include "cli/table.hpp"

namespace rotunda::cli {
namespace {

using Plans = std::vector<std::shared_ptr<const Plan>>;

constexpr double kWidth = 1120, kMargin = 30, kInner = kWidth - 2 * kMargin;
constexpr double kLaneHeight = 15;
constexpr int kStripCells = 512, kPanelCells = 64;
constexpr std::size_t kMostRanks = 16;

/// Later steps are lighter.
double light_of(int order, int steps) {
  return steps <= 1 ? 0.0 : 0.72 * (order - 1) / (steps - 1);
}

int steps_of(const RankView& view) {
  int most = 1;
  for (const Interval& interval : view.intervals) most = std::max(most, interval.order);
  return most;
}

std::string shortened(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, most) + "…";
}

class Drawing {
 public:
  explicit Drawing(const Plans& plans) : plans_(plans), plan_(*plans.front()) {}

  std::string draw() {
    heading();
    tokens();
    direction(false);
    if (plan_.backward) direction(true);
    y_ += 22;
    svg_.text(
        kMargin, y_,
        fmt::format(
            "Times are predicted for machine {}: {}FLOP/s of attention and {}B/s of link a rank, {} µs a message.",
            plan_.machine.name, flops_text(plan_.machine.flops_per_second), flops_text(plan_.machine.bytes_per_second),
            figure(1e6 * plan_.machine.seconds_per_message)),
        11, "#666");
    return svg_.document();
  }

 private:
  [[nodiscard]] std::size_t drawn() const { return std::min(kMostRanks, plans_.size()); }

  void heading() {
    y_ = 40;
    svg_.bold(kMargin, y_, fmt::format("{} on {}", plan_.summary(), counted(plan_.ranks, "rank")), 19);
    y_ += 20;
    svg_.text(kMargin, y_, shortened(to_text(plan_.problem), 160), 12, "#555");
  }

  void tokens() {
    y_ += 34;
    svg_.bold(kMargin, y_, "Who holds which tokens");
    y_ += 12;
    const bool same = plan_.shard.q == plan_.shard.k;
    strip(same ? "" : "queries", plan_.shard.q, document_offsets(plan_.problem, Side::query));
    if (!same) strip("keys", plan_.shard.k, document_offsets(plan_.problem, Side::key));
    double x = kMargin;
    for (std::size_t r = 0; r < drawn(); ++r) {
      const int rank = static_cast<int>(r);
      const std::string words = fmt::format("rank {}: {} rows", rank, grouped(plan_.shard.q.rows(rank)));
      if (x + 130 > kMargin + kInner) {
        x = kMargin;
        y_ += 18;
      }
      svg_.rect(x, y_ + 6, 11, 11, rank_colour(rank));
      svg_.text(x + 16, y_ + 16, words, 11);
      x += 132;
    }
    y_ += 20;
  }

  void strip(const char* name, const TokenMap& map, const std::vector<std::int64_t>& documents) {
    if (map.tokens() == 0) return;
    const int cells = static_cast<int>(std::min<std::int64_t>(kStripCells, map.tokens()));
    colour_strip(owners(map, cells), kMargin, y_, kInner, 22, true);
    for (std::size_t i = 1; i + 1 < documents.size(); ++i) {
      const double x = kMargin + kInner * static_cast<double>(documents[i]) / static_cast<double>(map.tokens());
      svg_.line(x, y_ - 4, x, y_ + 26, "#000");
    }
    svg_.text(kMargin, y_ + 35, fmt::format("{}{}0", name, *name == '\0' ? "" : " "), 10, "#666");
    svg_.text(kMargin + kInner - 40, y_ + 35, grouped(map.tokens()), 10, "#666");
    y_ += 40;
  }

  /// A strip of cells in the ranks' colours, neighbours alike drawn as one.
  void colour_strip(const std::vector<int>& ranks, double x, double y, double w, double h, bool across) {
    const double size = w / static_cast<double>(ranks.size());
    for (std::size_t i = 0; i < ranks.size();) {
      std::size_t end = i;
      while (end < ranks.size() && ranks[end] == ranks[i]) ++end;
      const double at = size * static_cast<double>(i), length = size * static_cast<double>(end - i);
      if (across) svg_.rect(x + at, y, length, h, rank_colour(ranks[i]));
      if (!across) svg_.rect(x, y + at, h, length, rank_colour(ranks[i]));
      i = end;
    }
  }

  void direction(bool backward) {
    const Simulation simulation = simulate(plans_, backward, plan_.machine, kPanelCells);
    const char* name = backward ? "Backward" : "Forward";
    const ScheduleOptions& schedule = backward ? plan_.backward_schedule : plan_.forward_schedule;
    y_ += 36;
    svg_.bold(
        kMargin, y_,
        fmt::format(
            "{}, {}: who computes which pairs (queries down, keys across; darker is earlier, grey is other ranks')",
            name, to_string(schedule.kind)));
    y_ += 14;
    if (simulation.rows > 0 && simulation.columns > 0) panels(simulation);
    y_ += 30;
    svg_.bold(kMargin, y_,
              fmt::format("{}: when, and what travels ({} ms predicted)", name, figure(1e3 * simulation.seconds)));
    y_ += 12;
    lanes(simulation);
  }

  void panels(const Simulation& simulation) {
    constexpr double gap = 24, strip = 6;
    const std::size_t columns = std::min<std::size_t>(drawn(), drawn() <= 4 ? 4 : 8);
    const double size =
        std::min(230.0, (kInner - gap * static_cast<double>(columns - 1)) / static_cast<double>(columns)) - strip;
    const auto mask = mask_cells(plan_.problem, simulation);
    const auto q_owners = owners(plan_.shard.q, simulation.rows);
    const auto k_owners = owners(plan_.shard.k, simulation.columns);
    std::int64_t all = 0;
    for (const RankView& view : simulation.ranks) all += view.pairs;
    for (std::size_t r = 0; r < drawn(); ++r) {
      const double x = kMargin + static_cast<double>(r % columns) * (size + strip + gap);
      if (r != 0 && r % columns == 0) y_ += size + 44;
      const RankView& view = simulation.ranks[r];
      const double share = all == 0 ? 0 : 100.0 * static_cast<double>(view.pairs) / static_cast<double>(all);
      svg_.text(x + strip, y_ + 12, fmt::format("rank {}: {:.1f} % of the pairs", r, share), 12);
      const double top = y_ + 18;
      colour_strip(k_owners, x + strip, top, size, strip - 1, true);
      colour_strip(q_owners, x, top + strip, size, strip - 1, false);
      panel(simulation, static_cast<int>(r), mask, x + strip, top + strip, size);
    }
    y_ += size + 30;
  }

  void panel(const Simulation& simulation, int rank, const std::vector<int>& mask, double x, double y, double size) {
    const RankView& view = simulation.ranks[static_cast<std::size_t>(rank)];
    const int steps = steps_of(view);
    const double w = size / simulation.columns, h = size / simulation.rows;
    for (int row = 0; row < simulation.rows; ++row) {
      for (int column = 0; column < simulation.columns;) {
        // -1: nobody sees it, 0: somebody else computes it, else this rank's step
        const auto kind = [&](int c) {
          const auto at = simulation.cell(row, c);
          return view.cells[at] != 0 ? view.cells[at] : mask[at] - 1;
        };
        int end = column;
        while (end < simulation.columns && kind(end) == kind(column)) ++end;
        const int order = kind(column);
        if (order >= 0) {
          const std::string colour = order == 0 ? "#e9e9ec" : rank_colour(rank, light_of(order, steps));
          svg_.rect(x + w * column, y + h * row, w * (end - column) + 0.05, h + 0.05, colour);
        }
        column = end;
      }
    }
    svg_.frame(x, y, size, size);
  }

  void lanes(const Simulation& simulation) {
    constexpr double label = 64, height = kLaneHeight;
    const double width = kInner - label;
    const double scale = simulation.seconds > 0 ? width / simulation.seconds : 0;
    for (std::size_t r = 0; r < drawn(); ++r) {
      const RankView& view = simulation.ranks[r];
      const int steps = steps_of(view);
      svg_.text(kMargin, y_ + 20, fmt::format("rank {}", r), 12);
      svg_.rect(kMargin + label, y_, width, height, "#f4f4f6");
      svg_.rect(kMargin + label, y_ + height + 2, width, height - 4, "#f4f4f6");
      for (const Interval& interval : view.intervals) box(interval, static_cast<int>(r), steps, scale, kMargin + label);
      y_ += 2 * height + 6;
    }
    svg_.text(kMargin + label, y_ + 10,
              "upper lane: attention, shaded as above; lower lane: what arrives, in the sender's colour (grey: several "
              "senders)",
              11, "#666");
    y_ += 10;
  }

  void box(const Interval& interval, int rank, int steps, double scale, double x0) {
    constexpr double height = kLaneHeight;
    const double x = x0 + scale * interval.begin;
    const double w = std::max(0.6, scale * (interval.end - interval.begin) - 0.4);
    const std::string tip =
        fmt::format("{} ({} to {} ms)", interval.label, figure(1e3 * interval.begin), figure(1e3 * interval.end));
    if (interval.compute) {
      svg_.rect(x, y_, w, height, rank_colour(rank, light_of(interval.order, steps)), tip);
      return;
    }
    svg_.rect(x, y_ + height + 2, w, height - 4, rank_colour(interval.sender, 0.25), tip);
    const double letters = 5.2 * static_cast<double>(interval.label.size());
    if (letters < w) svg_.text(x + 3, y_ + 2 * height - 4.5, interval.label, 9, "#fff");
  }

  const Plans& plans_;
  const Plan& plan_;
  Svg svg_{kWidth};
  double y_ = 0;
};

}  // namespace

std::string draw_plan(const Plans& plans) {
  return Drawing(plans).draw();
}

}  // namespace rotunda::cli
