// The forward program. For every item, in order:
//
//     post the next item's keys · await this item's keys · attend · (last of a head group) finish, send results back
//
// so an item's keys travel while the one before it is computed. Two slots hold received keys, whatever the ranks. Rows
// that have to do with no other rank (closed parts) are finished first, in one call, while the first keys travel.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "schedule/builder.hpp"

namespace rotunda {
namespace {

class ForwardBuilder {
 public:
  explicit ForwardBuilder(Builder& builder)
      : b_(builder),
        p_(builder.problem()),
        stages_(builder.stages()),
        keys_(stages_.size()),
        queries_(stages_.size()),
        arrivals_(stages_.size(), -1) {
    allocate();
  }

  void build() {
    prepare_outputs();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (i == 0) post_inputs(0);
      if (i + 1 < stages_.size()) post_inputs(i + 1);
      for (const Part& part : stages_[i].closed) attend_closed(part, stages_[i].item);
      b_.await(arrivals_[i]);
      if (begins_group(i)) open_results(i);
      if (stages_[i].active) attend(i);
      if (ends_group(i) && !b_.team().queries_in_place()) return_results(i);
    }
    b_.await(std::exchange(results_, -1));
    if (p_.max_logit) reduce_max_logit();
  }

 private:
  struct Keys {
    Region k, v;
  };

  [[nodiscard]] bool begins_group(std::size_t i) const {
    return i == 0 || stages_[i - 1].item.group != stages_[i].item.group;
  }
  [[nodiscard]] bool ends_group(std::size_t i) const { return i + 1 == stages_.size() || begins_group(i + 1); }

  void allocate() {
    std::int64_t rows = 0;
    std::int64_t kv_heads = 0;
    for (const Stage& stage : stages_) {
      q_heads_ = std::max<std::int64_t>(q_heads_, stage.item.q.count);
      needs_state_ |= stage.active && (!(stage.first && stage.last) || p_.sink != Sink::none);
      if (stage.in_place) continue;
      rows = std::max(rows, stage.keys.rows());
      kv_heads = std::max<std::int64_t>(kv_heads, stage.item.kv.count);
    }
    const auto pair = [&](const char* name, std::int64_t n, std::int64_t heads, int dim) {
      return b_.workspace_pair(name, p_.dtype, n, heads, dim);
    };
    if (rows * kv_heads > 0) {
      k_slots_ = Slots(pair("k", rows, kv_heads, p_.d));
      v_slots_ = Slots(pair("v", rows, kv_heads, p_.d_v));
    }
    const std::int64_t q_rows = stages_.front().q.len;
    if (!b_.team().queries_in_place()) {
      q_slots_ = Slots(pair("q", q_rows, q_heads_, p_.d));
      out_slots_ = Slots(pair("out", q_rows, q_heads_, p_.d_v));
      lse_slots_ = Slots(b_.workspace_pair("lse", DType::fp32, q_rows, q_heads_, 1));
    }
    if (needs_state_) {
      acc_ = b_.workspace("acc", DType::fp32, q_rows, q_heads_, p_.d_v);
      lse_low_ = b_.workspace("low bits of lse", DType::fp32, q_rows, q_heads_, 1);
    }
    if (p_.max_logit) max_logit_ = b_.row_statistics("max_logit by rank", b_.ranks());
  }

  void prepare_outputs() {
    if (!b_.team().queries_in_place() && !b_.every_query_row_is_gathered()) {  // rows that see nothing are not
      b_.add(Fill{b_.bound(Binding::out), 0});
      b_.add(Fill{b_.bound(Binding::lse), -std::numeric_limits<double>::infinity()});
      if (p_.sink != Sink::none) {
        b_.bind_sink();
        b_.add(FillSink{b_.bound(Binding::lse), b_.real_local_rows()});
      }
    }
    if (p_.max_logit) b_.add(Fill{max_logit_, -std::numeric_limits<double>::infinity()});
  }

  void post_inputs(std::size_t i) {
    const Stage& stage = stages_[i];
    Transfers transfers;
    if (stage.in_place || stage.keys.rows() == 0) {
      const auto own = [&](Binding binding) {
        return narrow_heads(narrow_rows(b_.bound(binding), stage.k), stage.item.kv);
      };
      keys_[i] = {own(Binding::k), own(Binding::v)};
    } else {
      const auto slot = [&](Slots& slots) { return narrow_rows(slots.next(b_, stage.item.kv.count), stage.k); };
      keys_[i] = {slot(k_slots_), slot(v_slots_)};
    }
    b_.transfer_keys(i, stage, keys_[i].k, keys_[i].v, transfers);
    post_queries(i, transfers);
    arrivals_[i] = b_.post(fmt::format("inputs of item {}", i), std::move(transfers));
  }

  void post_queries(std::size_t i, Transfers& transfers) {
    const HeadRange heads = stages_[i].item.q;
    if (b_.team().queries_in_place()) {
      queries_[i] = narrow_heads(narrow_rows(b_.bound(Binding::q), stages_[i].q), heads);
      return;
    }
    if (!begins_group(i)) {
      queries_[i] = queries_[i - 1];
      return;
    }
    queries_[i] = q_slots_.next(b_, heads.count);
    b_.move_queries(i, {{b_.bound(Binding::q), queries_[i]}}, Builder::Direction::to_gathered, transfers);
  }

  /// Where the head group's results go. Not before its work begins: until then the slots may still be on their way.
  void open_results(std::size_t i) {
    const HeadRange heads = stages_[i].item.q;
    if (b_.team().queries_in_place()) {
      out_ = narrow_heads(narrow_rows(b_.bound(Binding::out), stages_[i].q), heads);
      lse_ = narrow_heads(narrow_rows(b_.bound(Binding::lse), stages_[i].q), heads);
    } else {
      out_ = out_slots_.next(b_, heads.count);
      lse_ = lse_slots_.next(b_, heads.count);
    }
  }

  void attend(std::size_t i) {
    const Stage& stage = stages_[i];
    const bool sink = p_.sink != Sink::none;
    Attend step;
    step.q = queries_[i];
    step.k = keys_[i].k;
    step.v = keys_[i].v;
    step.lse = lse_;
    step.slices = stage.slices;
    step.q_head = stage.item.q.begin;
    step.kv_head = stage.item.kv.begin;
    step.init = stage.first;
    step.last = stage.last && !sink;
    if (!(step.init && step.last)) {
      step.acc = narrow_heads(acc_, 0, stage.item.q.count);
      step.lse_low = narrow_heads(lse_low_, 0, stage.item.q.count);
    }
    if (step.last) step.out = out_;
    step.max_logit = max_logit_of(stage.item);
    b_.add(step);
    if (!stage.last || !sink) return;
    b_.bind_sink();
    b_.add(Finish{step.acc, lse_, step.lse_low, out_, stage.item.q.begin, b_.real_attended_rows()});
  }

  /// A closed part's results in one call, from and to the user's tensors.
  void attend_closed(const Part& part, const Item& item) {
    const auto queries = [&](Binding binding) { return narrow_heads(narrow_rows(b_.bound(binding), part.q), item.q); };
    const auto keys = [&](Binding binding) { return narrow_heads(narrow_rows(b_.bound(binding), part.k), item.kv); };
    Attend step;
    step.q = queries(Binding::q);
    step.k = keys(Binding::k);
    step.v = keys(Binding::v);
    step.lse = queries(Binding::lse);
    step.out = queries(Binding::out);
    step.max_logit = max_logit_of(item);
    step.slices = part.slices;
    step.q_head = item.q.begin;
    step.kv_head = item.kv.begin;
    b_.add(step);
  }

  [[nodiscard]] Region max_logit_of(const Item& item) const {
    return p_.max_logit ? narrow_heads(narrow_rows(max_logit_, b_.rank(), 1), item.q) : Region{};
  }

  void return_results(std::size_t i) {
    Transfers transfers;
    b_.move_queries(i, {{b_.bound(Binding::out), out_}, {b_.bound(Binding::lse), lse_}}, Builder::Direction::to_user,
                    transfers);
    b_.await(std::exchange(results_, -1));  // of the group before: they arrived while this one was computed
    results_ = b_.post(fmt::format("results of head group {}", stages_[i].item.group), std::move(transfers));
    out_slots_.sent_by(results_);
    lse_slots_.sent_by(results_);
  }

  void reduce_max_logit() {
    Transfers transfers;
    for (int peer = 0; peer < b_.ranks(); ++peer) {
      if (peer == b_.rank()) continue;
      transfers.sends.push_back({peer, narrow_rows(max_logit_, b_.rank(), 1)});
      transfers.receives.push_back({peer, narrow_rows(max_logit_, peer, 1)});
    }
    b_.await(b_.post("max_logit", std::move(transfers)));
    b_.add(RowMax{max_logit_, b_.bound(Binding::max_logit)});
  }

  Builder& b_;
  const Problem& p_;
  std::vector<Stage> stages_;
  std::vector<Keys> keys_;       // by item
  std::vector<Region> queries_;  // by item
  std::vector<int> arrivals_;    // by item: the exchange that brings its inputs
  Slots k_slots_, v_slots_, q_slots_, out_slots_, lse_slots_;
  Region out_, lse_;  // of the head group at hand
  Region acc_, lse_low_, max_logit_;
  std::int64_t q_heads_ = 0;
  bool needs_state_ = false;
  int results_ = -1;  // the exchange that carries the last group's results
};

}  // namespace

void build_forward(Builder& builder) {
  ForwardBuilder(builder).build();
}

}  // namespace rotunda
