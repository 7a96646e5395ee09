// The backward program. For every item, remote keys first:
//
//     post the next item's inputs · await this item's · attend backward · add the gradients that arrived meanwhile ·
//     send this item's key gradients to their owners · (last of a head group) send the query gradients back
//
// Key gradients are summed in fp32 by their owner, in an order that depends on nothing but the plan.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schedule/builder.hpp"

namespace rotunda {
namespace {

class BackwardBuilder {
 public:
  explicit BackwardBuilder(Builder& builder)
      : b_(builder), p_(builder.problem()), stages_(builder.stages()), work_(stages_.size()) {
    const bool narrow = p_.dtype != DType::fp32 && b_.options().narrow_gradients;
    bool arrivals = false;
    bool one_call = true;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      arrivals |= rows_arriving(i) > 0;
      one_call &= !stages_[i].active || (stages_[i].first && stages_[i].last);
    }
    narrow_dq_ = narrow && one_call;
    narrow_dkv_ = narrow && whole_;
    own_alone_ = b_.team().own_keys_in_place() && !arrivals && !exact_sums_ && (narrow || p_.dtype == DType::fp32);
    allocate();
  }

  void build() {
    prepare();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (i == 0) post_inputs(0);
      if (i + 1 < stages_.size()) post_inputs(i + 1);
      b_.await(work_[i].arrival);
      if (begins_group(i)) open_query_gradients(i);
      if (stages_[i].active) attend(i);
      collect_key_gradients();
      send_key_gradients(i);
      if (ends_group(i)) finish_query_gradients(i);
    }
    collect_key_gradients();
    b_.await(std::exchange(query_results_, -1));
    if (dk_low_) {
      b_.add(Add{dk_low_, dk_, {}});
      b_.add(Add{dv_low_, dv_, {}});
    }
    if (!whole_ && !own_alone_ && p_.dtype != DType::fp32) {
      b_.add(Convert{dk_, b_.bound(Binding::dk)});
      b_.add(Convert{dv_, b_.bound(Binding::dv)});
    }
  }

 private:
  struct Work {  // of an item
    Region k, v, dk, dv;
    Region q, dout, lse;
    Region rows;  // delta, or out where the kernel reads that
    int arrival = -1;
  };

  [[nodiscard]] bool begins_group(std::size_t i) const {
    return i == 0 || stages_[i - 1].item.group != stages_[i].item.group;
  }
  [[nodiscard]] bool ends_group(std::size_t i) const { return i + 1 == stages_.size() || begins_group(i + 1); }

  /// The stage's key gradients go to a slot of their own and are summed from there, not by the kernel in place.
  [[nodiscard]] bool computes_apart(const Stage& stage) const { return !stage.in_place || exact_sums_; }

  std::array<Region, 2> pair(const char* name, DType dtype, std::int64_t rows, std::int64_t heads, int dim) {
    const auto slot = [&](int i) { return b_.workspace(fmt::format("{}{}", name, i), dtype, rows, heads, dim); };
    return {slot(0), slot(1)};
  }

  /// Rows of this rank whose gradients arrive for item i, from all workers.
  std::int64_t rows_arriving(std::size_t i) const {
    std::int64_t rows = 0;
    for (int worker = 0; worker < b_.ranks(); ++worker) {
      if (worker != b_.rank()) rows += b_.rows_for(worker, b_.items(worker)[i]).rows();
    }
    return rows;
  }

  void allocate() {
    std::int64_t rows = 0;           // of keys gathered for an item
    std::int64_t gradient_rows = 0;  // of key gradients that an item computes apart
    std::int64_t kv_heads = 0;       // of an item of this rank
    std::int64_t arriving = 0;
    std::int64_t arriving_heads = 0;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      q_heads_ = std::max<std::int64_t>(q_heads_, stages_[i].item.q.count);
      arriving = std::max(arriving, rows_arriving(i));
      for (int worker = 0; worker < b_.ranks(); ++worker) {
        arriving_heads = std::max<std::int64_t>(arriving_heads, b_.items(worker)[i].kv.count);
      }
      const Stage& stage = stages_[i];
      if (!stage.in_place || exact_sums_) {
        gradient_rows = std::max(gradient_rows, stage.keys.rows());
        kv_heads = std::max<std::int64_t>(kv_heads, stage.item.kv.count);
      }
      if (!stage.in_place) rows = std::max(rows, stage.keys.rows());
    }
    if (rows * kv_heads > 0) {
      k_slots_ = Slots(pair("k", p_.dtype, rows, kv_heads, p_.d));
      v_slots_ = Slots(pair("v", p_.dtype, rows, kv_heads, p_.d_v));
    }
    if (gradient_rows * kv_heads > 0 && narrow_dkv_) {
      dk_slots_ = Slots(pair("dk", p_.dtype, gradient_rows, kv_heads, p_.d));
      dv_slots_ = Slots(pair("dv", p_.dtype, gradient_rows, kv_heads, p_.d_v));
    } else if (gradient_rows * kv_heads > 0) {
      dk_slots_ = Slots(pair("dk", DType::fp32, gradient_rows, kv_heads, p_.d));
      dv_slots_ = Slots(pair("dv", DType::fp32, gradient_rows, kv_heads, p_.d_v));
      if (whole_ && p_.dtype != DType::fp32) {
        narrow_dk_slots_ = Slots(pair("narrow dk", p_.dtype, gradient_rows, kv_heads, p_.d));
        narrow_dv_slots_ = Slots(pair("narrow dv", p_.dtype, gradient_rows, kv_heads, p_.d_v));
      }
    }
    if (!whole_ && arriving * arriving_heads > 0) {
      arrived_dk_ = Slots(pair("arrived dk", DType::fp32, arriving, arriving_heads, p_.d));
      arrived_dv_ = Slots(pair("arrived dv", DType::fp32, arriving, arriving_heads, p_.d_v));
    }
    allocate_queries();
  }

  void allocate_queries() {
    const std::int64_t rows = b_.q_segments().rows();
    if (computes_delta_) delta_ = b_.workspace("delta", DType::fp32, b_.bound(Binding::q).rows, p_.h_q, 1);
    const bool narrow = p_.dtype != DType::fp32 && !narrow_dq_;  // summed in fp32 first
    if (b_.team().queries_in_place()) {
      dq_ = narrow ? b_.workspace("dq", DType::fp32, rows, q_heads_, p_.d) : Region{};
      return;
    }
    q_slots_ = Slots(pair("q", p_.dtype, rows, q_heads_, p_.d));
    dout_slots_ = Slots(pair("dout", p_.dtype, rows, q_heads_, p_.d_v));
    lse_slots_ = Slots(pair("lse", DType::fp32, rows, q_heads_, 1));
    rows_slots_ = b_.options().sends_out ? Slots(pair("out", p_.dtype, rows, q_heads_, p_.d_v))
                                         : Slots(pair("delta", DType::fp32, rows, q_heads_, 1));
    dq_slots_ = Slots(pair("dq", narrow_dq_ ? p_.dtype : DType::fp32, rows, q_heads_, p_.d));
    if (narrow) narrow_dq_slots_ = Slots(pair("narrow dq", p_.dtype, rows, q_heads_, p_.d));
  }

  void prepare() {
    if (computes_delta_) b_.add(Delta{b_.bound(Binding::out), b_.bound(Binding::dout), delta_});
    user_rows_ = b_.options().sends_out ? b_.bound(Binding::out) : delta_;
    if (p_.sink == Sink::learnable) {
      b_.bind_sink();
      b_.bound(Binding::dsink);
      b_.add(SinkGradient{b_.bound(Binding::lse), delta_, b_.real_local_rows()});
    }
    // Rows that nobody sees are touched by no step below.
    const bool in_user = whole_ || own_alone_ || p_.dtype == DType::fp32;
    const std::int64_t rows = b_.bound(Binding::k).rows;
    dk_ = in_user ? b_.bound(Binding::dk) : b_.workspace("dk sum", DType::fp32, rows, p_.h_kv, p_.d);
    dv_ = in_user ? b_.bound(Binding::dv) : b_.workspace("dv sum", DType::fp32, rows, p_.h_kv, p_.d_v);
    const bool own_active =
        std::any_of(stages_.begin(), stages_.end(), [](const Stage& stage) { return stage.in_place && stage.active; });
    const bool covered = whole_ ? b_.every_key_row_is_gathered() : own_alone_ && own_active;
    if (!covered) {
      b_.add(Fill{dk_, 0});
      b_.add(Fill{dv_, 0});
    }
    if (exact_sums_) {
      dk_low_ = b_.workspace("low bits of dk", DType::fp32, rows, p_.h_kv, p_.d);
      dv_low_ = b_.workspace("low bits of dv", DType::fp32, rows, p_.h_kv, p_.d_v);
      b_.add(Fill{dk_low_, 0});
      b_.add(Fill{dv_low_, 0});
    }
    if (!b_.team().queries_in_place() && !b_.every_query_row_is_gathered()) b_.add(Fill{b_.bound(Binding::dq), 0});
  }

  void post_inputs(std::size_t i) {
    const Stage& stage = stages_[i];
    Work& work = work_[i];
    Transfers transfers;
    if (stage.in_place || stage.keys.rows() == 0) {
      const auto own = [&](Region region) {
        return narrow_heads(narrow_rows(region, 0, stage.keys.rows()), stage.item.kv);
      };
      work.k = own(b_.bound(Binding::k));
      work.v = own(b_.bound(Binding::v));
      work.dk = own(dk_);
      work.dv = own(dv_);
    } else {
      work.k = key_slot(k_slots_, stage);
      work.v = key_slot(v_slots_, stage);
    }
    b_.transfer_keys(i, stage, work.k, work.v, transfers);
    post_queries(i, transfers);
    work.arrival = b_.post(fmt::format("inputs of item {}", i), std::move(transfers));
  }

  Region key_slot(Slots& slots, const Stage& stage) {
    return narrow_heads(narrow_rows(slots.next(b_), 0, stage.keys.rows()), 0, stage.item.kv.count);
  }

  void post_queries(std::size_t i, Transfers& transfers) {
    Work& work = work_[i];
    const HeadRange heads = stages_[i].item.q;
    if (b_.team().queries_in_place()) {
      const auto user = [&](Binding binding) { return narrow_heads(b_.bound(binding), heads); };
      work.q = user(Binding::q);
      work.dout = user(Binding::dout);
      work.lse = user(Binding::lse);
      work.rows = narrow_heads(user_rows_, heads);
      return;
    }
    if (!begins_group(i)) {
      const Work& before = work_[i - 1];
      work.q = before.q;
      work.dout = before.dout;
      work.lse = before.lse;
      work.rows = before.rows;
      return;
    }
    const auto slot = [&](Slots& slots) { return narrow_heads(slots.next(b_), 0, heads.count); };
    work.q = slot(q_slots_);
    work.dout = slot(dout_slots_);
    work.lse = slot(lse_slots_);
    work.rows = slot(rows_slots_);
    b_.move_queries(i,
                    {{b_.bound(Binding::q), work.q},
                     {b_.bound(Binding::dout), work.dout},
                     {b_.bound(Binding::lse), work.lse},
                     {user_rows_, work.rows}},
                    Builder::Direction::to_gathered, transfers);
  }

  /// Where the head group's query gradients are summed. Not before its work begins: until then the slot may still be
  /// on its way.
  void open_query_gradients(std::size_t i) {
    const HeadRange heads = stages_[i].item.q;
    if (!b_.team().queries_in_place()) {
      group_dq_ = narrow_heads(dq_slots_.next(b_), 0, heads.count);
    } else if (dq_) {
      group_dq_ = narrow_heads(dq_, 0, heads.count);
    } else {
      group_dq_ = narrow_heads(b_.bound(Binding::dq), heads);
    }
  }

  void attend(std::size_t i) {
    const Stage& stage = stages_[i];
    Work& work = work_[i];
    if (computes_apart(stage) && stage.keys.rows() > 0) {
      work.dk = key_slot(dk_slots_, stage);
      work.dv = key_slot(dv_slots_, stage);
    }
    AttendBackward step;
    step.q = work.q;
    step.k = work.k;
    step.v = work.v;
    step.dout = work.dout;
    step.lse = work.lse;
    (b_.options().sends_out ? step.out : step.delta) = work.rows;
    step.dq = group_dq_;
    step.dk = work.dk;
    step.dv = work.dv;
    step.q_head = stage.item.q.begin;
    step.kv_head = stage.item.kv.begin;
    step.init_dq = stage.first;
    step.init_dkv = computes_apart(stage) || own_alone_;
    step.slices = stage.slices;
    b_.add(step);
  }

  /// Key gradients of item i to the owners of the rows; this rank's own rows are added at once.
  void send_key_gradients(std::size_t i) {
    const Stage& stage = stages_[i];
    Transfers transfers;
    Region dk = work_[i].dk;
    Region dv = work_[i].dv;
    const bool narrow = whole_ && p_.dtype != DType::fp32 && !narrow_dkv_ && stage.active && stage.keys.rows() > 0;
    if (narrow) {
      const Region narrow_dk = key_slot(narrow_dk_slots_, stage);
      const Region narrow_dv = key_slot(narrow_dv_slots_, stage);
      b_.add(Convert{dk, narrow_dk});
      b_.add(Convert{dv, narrow_dv});
      dk = narrow_dk;
      dv = narrow_dv;
    }
    const bool gives = stage.active && computes_apart(stage);
    for (const Segment& segment : stage.keys.list) {
      if (!gives) break;
      give(stage, segment, {dk, dk_, dk_low_}, transfers);
      give(stage, segment, {dv, dv_, dv_low_}, transfers);
    }
    receive_key_gradients(i, transfers);
    arriving_ = b_.post(fmt::format("key gradients of item {}", i), std::move(transfers));
    if (!gives) return;
    (narrow ? narrow_dk_slots_ : dk_slots_).sent_by(arriving_);
    (narrow ? narrow_dv_slots_ : dv_slots_).sent_by(arriving_);
  }

  struct Gradient {
    Region part;      ///< of the stage's keys
    Region sum, low;  ///< of this rank's own rows
  };

  /// sum += part for own rows [row, row + part.rows) and these KV heads.
  static Add sum_of(const Gradient& gradient, Region part, std::int64_t row, HeadRange heads) {
    const auto own = [&](Region region) {
      return region ? narrow_heads(narrow_rows(region, row, part.rows), heads) : region;
    };
    return {part, own(gradient.sum), own(gradient.low)};
  }

  void give(const Stage& stage, const Segment& segment, Gradient gradient, Transfers& transfers) {
    const Region part = narrow_rows(gradient.part, segment.row, segment.len);
    if (segment.owner != b_.rank()) {
      transfers.sends.push_back({segment.owner, part});
      return;
    }
    const Add sum = sum_of(gradient, part, segment.owner_row, stage.item.kv);
    if (whole_) {
      b_.add(Convert{sum.from, sum.to});
    } else {
      b_.add(sum);
    }
  }

  /// Where the gradients of a segment land: their place in the result, or rows from `row` on to be summed from there.
  Region landing_of(const Gradient& gradient, const Segment& segment, std::int64_t row, HeadRange heads) {
    if (whole_) return narrow_heads(narrow_rows(gradient.sum, segment.owner_row, segment.len), heads);
    const Region landing = narrow_heads(narrow_rows(gradient.part, row, segment.len), 0, heads.count);
    sums_.push_back(sum_of(gradient, landing, segment.owner_row, heads));
    return landing;
  }

  void receive_key_gradients(std::size_t i, Transfers& transfers) {
    Region arrived_dk, arrived_dv;
    if (!whole_ && rows_arriving(i) > 0) {
      arrived_dk = arrived_dk_.next(b_);
      arrived_dv = arrived_dv_.next(b_);
    }
    std::int64_t row = 0;
    for (int worker = 0; worker < b_.ranks(); ++worker) {
      if (worker == b_.rank()) continue;
      const Item& item = b_.items(worker)[i];
      for (const Segment& segment : b_.rows_for(worker, item).list) {
        for (const Gradient& gradient : {Gradient{arrived_dk, dk_, dk_low_}, Gradient{arrived_dv, dv_, dv_low_}}) {
          transfers.receives.push_back({worker, landing_of(gradient, segment, row, item.kv)});
        }
        row += segment.len;
      }
    }
  }

  /// Awaits the key gradients on their way and adds them.
  void collect_key_gradients() {
    b_.await(std::exchange(arriving_, -1));
    for (const Add& sum : sums_) b_.add(sum);
    sums_.clear();
  }

  void finish_query_gradients(std::size_t i) {
    const Stage& stage = stages_[i];
    Region dq = group_dq_;
    if (b_.team().queries_in_place()) {
      if (dq_ && stage.item.q.count > 0) b_.add(Convert{dq, narrow_heads(b_.bound(Binding::dq), stage.item.q)});
      return;
    }
    const bool narrow = p_.dtype != DType::fp32 && !narrow_dq_;
    if (narrow) {
      const Region narrow_dq = narrow_heads(narrow_dq_slots_.next(b_), 0, stage.item.q.count);
      if (narrow_dq.heads > 0) b_.add(Convert{dq, narrow_dq});
      dq = narrow_dq;
    }
    Transfers transfers;
    b_.move_queries(i, {{b_.bound(Binding::dq), dq}}, Builder::Direction::to_user, transfers);
    b_.await(std::exchange(query_results_, -1));
    query_results_ = b_.post(fmt::format("query gradients of head group {}", stage.item.group), std::move(transfers));
    (narrow ? narrow_dq_slots_ : dq_slots_).sent_by(query_results_);
  }

  Builder& b_;
  const Problem& p_;
  std::vector<Stage> stages_;
  std::vector<Work> work_;
  const bool whole_ = b_.team().gradients_are_whole();
  // fp32 results have no bits to hide the roundings of a sum over ranks: what they lose is kept and added last.
  const bool exact_sums_ = !whole_ && p_.dtype == DType::fp32 && b_.ranks() > 1;
  Slots k_slots_, v_slots_, dk_slots_, dv_slots_, narrow_dk_slots_, narrow_dv_slots_, arrived_dk_, arrived_dv_;
  Slots q_slots_, dout_slots_, lse_slots_, rows_slots_, dq_slots_, narrow_dq_slots_;
  bool narrow_dq_ = false, narrow_dkv_ = false;  // calls write these in the problem's dtype
  bool own_alone_ = false;                       // this rank's own keys get gradients from its own call alone
  const bool computes_delta_ = !b_.options().sends_out || p_.sink == Sink::learnable;
  Region delta_, dq_;
  Region user_rows_;        // delta or out, of this rank's own queries
  Region group_dq_;         // of the head group at hand
  Region dk_, dv_;          // where this rank's own key gradients are summed
  Region dk_low_, dv_low_;  // fp32 problems: what those sums' roundings lost
  std::vector<Add> sums_;   // of the key gradients on their way
  int arriving_ = -1, query_results_ = -1;
  std::int64_t q_heads_ = 0;
};

}  // namespace

void build_backward(Builder& builder) {
  BackwardBuilder(builder).build();
}

}  // namespace rotunda
