// The backward program. For every item, remote keys first:
//
//     post the next item's inputs · await this item's · attend backward · add the gradients that arrived meanwhile ·
//     send this item's key gradients to their owners · (last of a head group) send the query gradients back
//
// Key gradients are summed in fp32 by their owner, in an order that depends on nothing but the plan. Rows that have to
// do with no other rank (closed parts) get theirs from one call each, the first of which hides the first remote keys
// and the last the last key gradients; sums hold open rows alone.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schedule/builder.hpp"
#include "schedule/key_gradients.hpp"

namespace rotunda {
namespace {

class BackwardBuilder {
 public:
  explicit BackwardBuilder(Builder& builder)
      : b_(builder), p_(builder.problem()), stages_(builder.stages()), work_(stages_.size()) {
    const bool narrow = p_.dtype != DType::fp32 && b_.options().narrow_gradients;
    writes_user_ = narrow || p_.dtype == DType::fp32;
    const bool one_call = std::all_of(stages_.begin(), stages_.end(),
                                      [](const Stage& stage) { return !stage.active || (stage.first && stage.last); });
    narrow_dq_ = narrow && one_call;
    narrow_dkv_ = narrow && keys_.whole();
    const bool own_apart = !b_.team().own_keys_in_place() || keys_.exact();
    own_alone_ = !own_apart && !keys_.any_arrive(stages_.size()) && writes_user_;
    // The last item's call comes before what the item before it has brought is added.
    const std::size_t added = std::max<std::size_t>(stages_.size(), 2) - 2;
    own_first_ = own_alone_ || (!own_apart && b_.team().groups() == 1 && !keys_.any_arrive(added));
    allocate();
  }

  void build() {
    prepare();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (i == 0) post_inputs(0);
      if (i + 1 < stages_.size()) post_inputs(i + 1);
      for (const Part& part : stages_[i].closed) attend_closed(part, stages_[i].item);
      b_.await(work_[i].arrival);
      if (begins_group(i)) open_query_gradients(i);
      if (stages_[i].active) attend(i);
      keys_.collect();
      send_key_gradients(i);
      for (const Part& part : stages_[i].closed_after) attend_closed(part, stages_[i].item);
      if (ends_group(i)) finish_query_gradients(i);
    }
    keys_.collect();
    b_.await(std::exchange(query_results_, -1));
    keys_.finish();
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
  [[nodiscard]] bool computes_apart(const Stage& stage) const { return !stage.in_place || keys_.exact(); }

  void allocate() {
    std::int64_t rows = 0;           // of keys gathered for an item
    std::int64_t gradient_rows = 0;  // of key gradients that an item computes apart
    std::int64_t kv_heads = 0;       // of an item of this rank
    for (const Stage& stage : stages_) {
      q_heads_ = std::max<std::int64_t>(q_heads_, stage.item.q.count);
      if (computes_apart(stage)) {
        gradient_rows = std::max(gradient_rows, stage.keys.rows());
        kv_heads = std::max<std::int64_t>(kv_heads, stage.item.kv.count);
      }
      if (!stage.in_place) rows = std::max(rows, stage.keys.rows());
    }
    if (rows * kv_heads > 0) {
      k_slots_ = Slots(b_.workspace_pair("k", p_.dtype, rows, kv_heads, p_.d));
      v_slots_ = Slots(b_.workspace_pair("v", p_.dtype, rows, kv_heads, p_.d_v));
    }
    if (gradient_rows * kv_heads > 0 && narrow_dkv_) {
      dk_slots_ = Slots(b_.workspace_pair("dk", p_.dtype, gradient_rows, kv_heads, p_.d));
      dv_slots_ = Slots(b_.workspace_pair("dv", p_.dtype, gradient_rows, kv_heads, p_.d_v));
    } else if (gradient_rows * kv_heads > 0) {
      dk_slots_ = Slots(b_.workspace_pair("dk", DType::fp32, gradient_rows, kv_heads, p_.d));
      dv_slots_ = Slots(b_.workspace_pair("dv", DType::fp32, gradient_rows, kv_heads, p_.d_v));
      if (keys_.whole() && p_.dtype != DType::fp32) {
        narrow_dk_slots_ = Slots(b_.workspace_pair("narrow dk", p_.dtype, gradient_rows, kv_heads, p_.d));
        narrow_dv_slots_ = Slots(b_.workspace_pair("narrow dv", p_.dtype, gradient_rows, kv_heads, p_.d_v));
      }
    }
    keys_.allocate();
    allocate_queries();
  }

  void allocate_queries() {
    const std::int64_t rows = stages_.front().q.len;
    if (computes_delta_) delta_ = b_.workspace("delta", DType::fp32, b_.bound(Binding::q).rows, p_.h_q, 1);
    const bool narrow = p_.dtype != DType::fp32 && !narrow_dq_;  // summed in fp32 first
    if (b_.team().queries_in_place()) {
      dq_ = narrow ? b_.workspace("dq", DType::fp32, rows, q_heads_, p_.d) : Region{};
      if (!writes_user_) allocate_closed();
      return;
    }
    q_slots_ = Slots(b_.workspace_pair("q", p_.dtype, rows, q_heads_, p_.d));
    dout_slots_ = Slots(b_.workspace_pair("dout", p_.dtype, rows, q_heads_, p_.d_v));
    lse_slots_ = Slots(b_.workspace_pair("lse", DType::fp32, rows, q_heads_, 1));
    rows_slots_ = b_.options().sends_out ? Slots(b_.workspace_pair("out", p_.dtype, rows, q_heads_, p_.d_v))
                                         : Slots(b_.workspace_pair("delta", DType::fp32, rows, q_heads_, 1));
    dq_slots_ = Slots(b_.workspace_pair("dq", narrow_dq_ ? p_.dtype : DType::fp32, rows, q_heads_, p_.d));
    if (narrow) narrow_dq_slots_ = Slots(b_.workspace_pair("narrow dq", p_.dtype, rows, q_heads_, p_.d));
  }

  /// What closed parts compute in fp32 where calls don't write the problem's dtype: one part at a time.
  void allocate_closed() {
    std::int64_t q_rows = 0;
    std::int64_t k_rows = 0;
    std::int64_t kv_heads = 0;
    for (const Stage& stage : stages_) {
      kv_heads = std::max<std::int64_t>(kv_heads, stage.item.kv.count);
      for (const auto* parts : {&stage.closed, &stage.closed_after}) {
        for (const Part& part : *parts) {
          q_rows = std::max(q_rows, part.q.len);
          k_rows = std::max(k_rows, part.k.len);
        }
      }
    }
    if (q_rows == 0) return;
    closed_dq_ = b_.workspace("closed dq", DType::fp32, q_rows, q_heads_, p_.d);
    closed_dk_ = b_.workspace("closed dk", DType::fp32, k_rows, kv_heads, p_.d);
    closed_dv_ = b_.workspace("closed dv", DType::fp32, k_rows, kv_heads, p_.d_v);
  }

  void prepare() {
    if (computes_delta_) b_.add(Delta{b_.bound(Binding::out), b_.bound(Binding::dout), delta_});
    user_rows_ = b_.options().sends_out ? b_.bound(Binding::out) : delta_;
    if (p_.sink == Sink::learnable) {
      b_.bind_sink();
      b_.bound(Binding::dsink);
      b_.add(SinkGradient{b_.bound(Binding::lse), delta_, b_.real_local_rows()});
    }
    const bool own_active =
        std::any_of(stages_.begin(), stages_.end(), [](const Stage& stage) { return stage.in_place && stage.active; });
    keys_.prepare(keys_.whole() || own_alone_ || p_.dtype == DType::fp32,
                  keys_.whole() ? b_.every_key_row_is_gathered() : own_first_ && own_active);
    if (!b_.team().queries_in_place() && !b_.every_query_row_is_gathered()) b_.add(Fill{b_.bound(Binding::dq), 0});
  }

  void post_inputs(std::size_t i) {
    const Stage& stage = stages_[i];
    Work& work = work_[i];
    Transfers transfers;
    if (stage.in_place || stage.keys.rows() == 0) {
      const auto own = [&](Region region, std::int64_t row) {
        return narrow_heads(narrow_rows(region, row, stage.k.len), stage.item.kv);
      };
      work.k = own(b_.bound(Binding::k), stage.k.begin);
      work.v = own(b_.bound(Binding::v), stage.k.begin);
      work.dk = own(keys_.dk(), 0);
      work.dv = own(keys_.dv(), 0);
    } else {
      work.k = key_slot(k_slots_, stage);
      work.v = key_slot(v_slots_, stage);
    }
    b_.transfer_keys(i, stage, work.k, work.v, transfers);
    post_queries(i, transfers);
    work.arrival = b_.post(fmt::format("inputs of item {}", i), std::move(transfers));
  }

  Region key_slot(Slots& slots, const Stage& stage) {
    return narrow_rows(slots.next(b_, stage.item.kv.count), 0, stage.k.len);
  }

  void post_queries(std::size_t i, Transfers& transfers) {
    Work& work = work_[i];
    const HeadRange heads = stages_[i].item.q;
    if (b_.team().queries_in_place()) {
      const auto user = [&](Region region) { return narrow_heads(narrow_rows(region, stages_[i].q), heads); };
      work.q = user(b_.bound(Binding::q));
      work.dout = user(b_.bound(Binding::dout));
      work.lse = user(b_.bound(Binding::lse));
      work.rows = user(user_rows_);
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
    work.q = q_slots_.next(b_, heads.count);
    work.dout = dout_slots_.next(b_, heads.count);
    work.lse = lse_slots_.next(b_, heads.count);
    work.rows = rows_slots_.next(b_, heads.count);
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
      group_dq_ = dq_slots_.next(b_, heads.count);
    } else if (dq_) {
      group_dq_ = narrow_heads(dq_, 0, heads.count);
    } else {
      group_dq_ = narrow_heads(narrow_rows(b_.bound(Binding::dq), stages_[i].q), heads);
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
    step.init_dkv = computes_apart(stage) || own_first_;
    step.slices = stage.slices;
    b_.add(step);
  }

  /// A closed part's gradients in one call: no other rank has a share in them.
  void attend_closed(const Part& part, const Item& item) {
    const auto queries = [&](Region region) { return narrow_heads(narrow_rows(region, part.q), item.q); };
    const auto keys = [&](Region region) { return narrow_heads(narrow_rows(region, part.k), item.kv); };
    const Region dq = queries(b_.bound(Binding::dq));
    const Region dk = keys(b_.bound(Binding::dk));
    const Region dv = keys(b_.bound(Binding::dv));
    const auto target = [&](Region user, Region apart) {
      return writes_user_ ? user : narrow_heads(narrow_rows(apart, 0, user.rows), 0, user.heads);
    };
    AttendBackward step;
    step.q = queries(b_.bound(Binding::q));
    step.k = keys(b_.bound(Binding::k));
    step.v = keys(b_.bound(Binding::v));
    step.dout = queries(b_.bound(Binding::dout));
    step.lse = queries(b_.bound(Binding::lse));
    (b_.options().sends_out ? step.out : step.delta) = queries(user_rows_);
    step.dq = target(dq, closed_dq_);
    step.dk = target(dk, closed_dk_);
    step.dv = target(dv, closed_dv_);
    step.q_head = item.q.begin;
    step.kv_head = item.kv.begin;
    step.slices = part.slices;
    b_.add(step);
    if (writes_user_) return;
    b_.add(Convert{step.dq, dq});
    b_.add(Convert{step.dk, dk});
    b_.add(Convert{step.dv, dv});
  }

  void send_key_gradients(std::size_t i) {
    const Stage& stage = stages_[i];
    if (!stage.active || !computes_apart(stage) || stage.keys.rows() == 0) {
      keys_.send(i, stage, {}, {});
      return;
    }
    Region dk = work_[i].dk;
    Region dv = work_[i].dv;
    const bool narrow = keys_.whole() && p_.dtype != DType::fp32 && !narrow_dkv_;
    if (narrow) {
      const Region narrow_dk = key_slot(narrow_dk_slots_, stage);
      const Region narrow_dv = key_slot(narrow_dv_slots_, stage);
      b_.add(Convert{dk, narrow_dk});
      b_.add(Convert{dv, narrow_dv});
      dk = narrow_dk;
      dv = narrow_dv;
    }
    const int sent = keys_.send(i, stage, dk, dv);
    (narrow ? narrow_dk_slots_ : dk_slots_).sent_by(sent);
    (narrow ? narrow_dv_slots_ : dv_slots_).sent_by(sent);
  }

  void finish_query_gradients(std::size_t i) {
    const Stage& stage = stages_[i];
    Region dq = group_dq_;
    if (b_.team().queries_in_place()) {
      if (!dq_ || stage.item.q.count == 0) return;
      b_.add(Convert{dq, narrow_heads(narrow_rows(b_.bound(Binding::dq), stage.q), stage.item.q)});
      return;
    }
    const bool narrow = p_.dtype != DType::fp32 && !narrow_dq_;
    if (narrow) {
      const Region narrow_dq = narrow_dq_slots_.next(b_, stage.item.q.count);
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
  KeyGradients keys_{b_, stages_};
  Slots k_slots_, v_slots_, dk_slots_, dv_slots_, narrow_dk_slots_, narrow_dv_slots_;
  Slots q_slots_, dout_slots_, lse_slots_, rows_slots_, dq_slots_, narrow_dq_slots_;
  bool narrow_dq_ = false, narrow_dkv_ = false;  // calls write these in the problem's dtype
  bool own_alone_ = false;                       // this rank's own keys get gradients from its own call alone
  bool own_first_ = false;                       // or from that before any other
  bool writes_user_ = false;                     // a call may write a whole gradient where the user wants it
  const bool computes_delta_ = !b_.options().sends_out || p_.sink == Sink::learnable;
  Region delta_, dq_;
  Region closed_dq_, closed_dk_, closed_dv_;
  Region user_rows_;        // delta or out, of this rank's own queries
  Region group_dq_;         // of the head group at hand
  int query_results_ = -1;  // the exchange that carries the last group's
  std::int64_t q_heads_ = 0;
};

}  // namespace

void build_backward(Builder& builder) {
  BackwardBuilder(builder).build();
}

}  // namespace rotunda
