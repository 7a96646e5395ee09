// Programs as text, one line a step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rotunda/schedule.hpp"

namespace rotunda {
namespace {

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {}

  std::string operator()(const Post& step) const {
    const Exchange& x = exchange(step.exchange);
    return fmt::format("post         x{} {}: send {}, receive {}", x.id, x.label, sum(x.sends), sum(x.receives));
  }
  std::string operator()(const Await& step) const {
    return fmt::format("await        x{}", exchange(step.exchange).id);
  }
  std::string operator()(const AwaitSent& step) const {
    return fmt::format("await sent   x{}", exchange(step.exchange).id);
  }
  std::string operator()(const Fill& step) const {
    return fmt::format("fill         {} = {}", name(step.to), step.value);
  }
  std::string operator()(const Convert& step) const {
    return fmt::format("convert      {} -> {}", name(step.from), name(step.to));
  }
  std::string operator()(const Add& step) const {
    return fmt::format("add          {} -> {}{}", name(step.from), name(step.to), step.low ? ", low bits kept" : "");
  }
  std::string operator()(const FillSink& step) const {
    return fmt::format("fill sink    {}, {} row spans", name(step.lse), step.rows.size());
  }
  std::string operator()(const Delta& step) const {
    return fmt::format("delta        {} = rowsum({} * {})", name(step.delta), name(step.dout), name(step.out));
  }
  std::string operator()(const Finish& step) const {
    return fmt::format("finish       {} -> {} with the sink", name(step.acc), name(step.out));
  }
  std::string operator()(const SinkGradient& step) const {
    return fmt::format("dsink        from {}, {}", name(step.lse), name(step.delta));
  }
  std::string operator()(const RowMax& step) const {
    return fmt::format("row max      {} -> {}", name(step.from), name(step.to));
  }
  std::string operator()(const Attend& step) const {
    return fmt::format("attend       {} x {}, {} -> {}{}{}", name(step.q), name(step.k), count(step.slices),
                       name(step.last ? step.out : step.acc), step.init ? ", init" : "", step.last ? ", last" : "");
  }
  std::string operator()(const AttendBackward& step) const {
    return fmt::format("attend back  {} x {}, {} -> {}{}, {}{}", name(step.q), name(step.k), count(step.slices),
                       name(step.dq), step.init_dq ? " init" : "", name(step.dk), step.init_dkv ? " init" : "");
  }

 private:
  [[nodiscard]] const Exchange& exchange(int index) const {
    return program_.exchanges[static_cast<std::size_t>(index)];
  }

  [[nodiscard]] std::string name(const Region& region) const {
    if (!region) return "-";
    const Buffer& buffer = program_.buffers[static_cast<std::size_t>(region.buffer)];
    std::string text = buffer.name;
    if (region.rows != buffer.rows) text += fmt::format(" rows {}+{}", region.row, region.rows);
    if (region.heads != buffer.heads) text += fmt::format(" heads {}+{}", region.head, region.heads);
    return text;
  }

  [[nodiscard]] std::string sum(const std::vector<Transfer>& transfers) const {
    if (transfers.empty()) return "nothing";
    double bytes = 0;
    std::vector<int> peers;
    for (const Transfer& transfer : transfers) {
      const Buffer& buffer = program_.buffers[static_cast<std::size_t>(transfer.region.buffer)];
      bytes += static_cast<double>(buffer.batch * transfer.region.rows * transfer.region.heads * buffer.dim *
                                   static_cast<std::int64_t>(size_of(buffer.dtype)));
      if (peers.empty() || peers.back() != transfer.peer) peers.push_back(transfer.peer);
    }
    return fmt::format("{:.1f} KiB ({})", bytes / 1024, fmt::join(peers, " "));
  }

  static std::string count(const std::vector<Slice>& slices) {
    const double pairs = count_pairs(slices);
    return fmt::format("{} slice{} ({:.10g} pairs a head)", slices.size(), slices.size() == 1 ? "" : "s", pairs);
  }

  const Program& program_;
};

}  // namespace

std::string to_text(const Program& program) {
  std::string text;
  const Printer printer(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    text += fmt::format("{:3}  {}\n", i, std::visit(printer, program.steps[i]));
  }
  return text;
}

}  // namespace rotunda
