// Which of a rank's rows are closed, and what that saves.
#include "schedule/parts.hpp"

#include <gtest/gtest.h>

#include <string>

#include "rotunda/schedule.hpp"

namespace rotunda {
namespace {

Slice rectangle(std::int64_t q, std::int64_t q_len, std::int64_t k, std::int64_t k_len) {
  Slice slice;
  slice.q_begin = q;
  slice.q_len = q_len;
  slice.k_begin = k;
  slice.k_len = k_len;
  return slice;
}

Part rows(std::vector<Slice> slices) {
  return {{0, 100}, {0, 80}, std::move(slices)};
}

void expect_rows(const Part& part, RowRange q, RowRange k) {
  EXPECT_EQ(part.q.begin, q.begin);
  EXPECT_EQ(part.q.len, q.len);
  EXPECT_EQ(part.k.begin, k.begin);
  EXPECT_EQ(part.k.len, k.len);
}

TEST(Parts, RowsOfOtherRanksLieBetweenTwoClosedParts) {
  const Parts parts = split_parts(rows({rectangle(0, 30, 0, 20), rectangle(30, 20, 20, 10), rectangle(60, 40, 40, 40)}),
                                  {{35, 5}}, {{25, 10}});
  expect_rows(parts.open, {30, 20}, {20, 15});
  EXPECT_EQ(parts.open.slices, std::vector{rectangle(0, 20, 0, 10)});
  ASSERT_EQ(parts.closed.size(), 2U);
  expect_rows(parts.closed[0], {0, 30}, {0, 20});
  EXPECT_EQ(parts.closed[0].slices, std::vector{rectangle(0, 30, 0, 20)});
  expect_rows(parts.closed[1], {50, 50}, {35, 45});
  EXPECT_EQ(parts.closed[1].slices, std::vector{rectangle(10, 40, 5, 40)});
}

TEST(Parts, LinksOpenWhateverTheirOrder) {
  // Queries 40.. see open keys 30..40, and keys 20.. that queries 20..30 see too; what lies between opens with them.
  const std::vector<Slice> slices = {rectangle(0, 10, 0, 10), rectangle(20, 10, 20, 5), rectangle(30, 5, 15, 5),
                                     rectangle(40, 10, 20, 20), rectangle(60, 40, 40, 40)};
  const Parts parts = split_parts(rows(slices), {}, {{38, 1}});
  expect_rows(parts.open, {20, 30}, {15, 25});
  EXPECT_EQ(parts.open.slices.size(), 3U);
  ASSERT_EQ(parts.closed.size(), 2U);
  expect_rows(parts.closed[0], {0, 20}, {0, 15});
  expect_rows(parts.closed[1], {50, 50}, {40, 40});
}

TEST(Parts, EverythingIsOpenWhereRegionsCantHoldTheRest) {
  const std::vector<Slice> crossed = {rectangle(0, 10, 60, 10), rectangle(40, 10, 40, 10)};
  for (const Parts& parts :
       {split_parts(rows(crossed), {{45, 1}}, {}),                       // low queries, high keys
        split_parts(rows(crossed), {}, {}),                              // nothing to do with others
        split_parts(rows({rectangle(0, 10, 0, 10)}), {{50, 1}}, {})}) {  // open ones see no own key
    expect_rows(parts.open, {0, 100}, {0, 80});
    EXPECT_TRUE(parts.closed.empty());
  }
  const Parts one = split_parts(rows({rectangle(20, 10, 20, 10)}), {{25, 1}}, {});  // the rest sees nothing
  expect_rows(one.open, {0, 100}, {0, 80});
  EXPECT_TRUE(one.closed.empty());
}

/// 8 documents on 2 ranks: the longest is split, and lies between others on both.
constexpr const char* kDocuments =
    "layout=thd cu_q=0,1028,3100,7196,15696,18000,21096,27192,32768 h_q=32 h_kv=8 d=128 mask=causal grad=1 dtype=";

constexpr std::int64_t kOpenRows[] = {4695, 3805};  // by rank, of 17,219 and 15,549

Program program_of(const std::string& dtype, const ScheduleOptions& options, int rank, bool backward) {
  const Problem problem = parse_problem(kDocuments + dtype);
  return make_program(problem, make_shard(problem, ShardKind::balanced, 2), options, rank, backward);
}

template <class Call>
std::vector<Call> calls(const Program& program) {
  std::vector<Call> result;
  for (const Step& step : program.steps) {
    if (const auto* call = std::get_if<Call>(&step)) result.push_back(*call);
  }
  return result;
}

std::int64_t rows_of(const Program& program, const std::string& name) {
  for (const Buffer& each : program.buffers) {
    if (each.name == name) return each.rows;
  }
  return 0;
}

ScheduleOptions at_once(int head_groups) {
  ScheduleOptions options;
  options.kind = ScheduleKind::all_gather;
  options.head_groups = head_groups;
  return options;
}

TEST(Parts, DocumentsAtHomeNeedNoStateForward) {
  // With all rows open it was 296,190,464 and 295,206,656 bytes of workspace, and two calls.
  constexpr std::int64_t kWorkspace[] = {89'394'176, 101'289'728};
  for (const int rank : {0, 1}) {
    const Program program = program_of("bf16", {}, rank, false);
    const auto attends = calls<Attend>(program);
    ASSERT_EQ(attends.size(), 3U);  // closed rows, own open rows, open rows with the other's keys
    EXPECT_TRUE(attends[0].init && attends[0].last);
    EXPECT_FALSE(attends[0].acc);
    EXPECT_EQ(rows_of(program, "acc"), kOpenRows[rank]);
    EXPECT_EQ(cost(parse_problem(kDocuments + std::string("bf16")), program).exposed_bytes, 0);
    EXPECT_EQ(program.workspace_bytes, kWorkspace[rank]);
  }
}

TEST(Parts, DocumentsAtHomeNeedNoSumsBackward) {
  // With all rows open it was 537,911,808 and 523,247,360 bytes either way.
  constexpr std::int64_t kNarrowed[] = {512'647'680, 386'211'584};
  constexpr std::int64_t kDirect[] = {230'121'984, 234'626'816};
  for (const int rank : {0, 1}) {
    for (const bool direct : {false, true}) {
      ScheduleOptions options;
      options.narrow_gradients = direct;
      const Program program = program_of("bf16", options, rank, true);
      const auto attends = calls<AttendBackward>(program);
      ASSERT_EQ(attends.size(), 4U);  // closed before, open rows with the other's keys and with own ones, closed behind
      for (const std::size_t closed : {0, 3}) {
        EXPECT_TRUE(attends[closed].init_dq && attends[closed].init_dkv);
        EXPECT_EQ(program.buffer(attends[closed].dq).name, direct ? "dq" : "closed dq");
        EXPECT_EQ(program.buffer(attends[closed].dk).name, direct ? "dk" : "closed dk");
        EXPECT_EQ(program.buffer(attends[closed].dv).name, direct ? "dv" : "closed dv");
      }
      EXPECT_EQ(rows_of(program, "dk sum"), kOpenRows[rank]);
      EXPECT_EQ(cost(parse_problem(kDocuments + std::string("bf16")), program).exposed_bytes, 0);
      EXPECT_EQ(program.workspace_bytes, direct ? kDirect[rank] : kNarrowed[rank]);
    }
  }
}

TEST(Parts, GatheringLeavesClosedRowsWhereTheyAre) {
  for (const int rank : {0, 1}) {
    const Program forward = program_of("bf16", at_once(1), rank, false);
    const auto attends = calls<Attend>(forward);
    ASSERT_EQ(attends.size(), 2U);  // closed rows, then open rows with all of their keys
    EXPECT_EQ(forward.buffer(attends[0].k).binding, Binding::k);
    EXPECT_EQ(forward.buffer(attends[1].k).name, "k0");
    EXPECT_EQ(attends[1].q.rows, kOpenRows[rank]);
    EXPECT_TRUE(attends[1].init && attends[1].last);
    EXPECT_EQ(cost(parse_problem(kDocuments + std::string("bf16")), forward).exposed_bytes, 0);
    const Program backward = program_of("bf16", at_once(1), rank, true);
    ASSERT_EQ(calls<AttendBackward>(backward).size(), 3U);  // closed before, open, closed behind
    EXPECT_EQ(rows_of(backward, "dk sum"), kOpenRows[rank]);
    EXPECT_EQ(cost(parse_problem(kDocuments + std::string("bf16")), backward).exposed_bytes, 0);
  }
}

TEST(Parts, GatheringCopiesNoKeysOfARankThatNeedsNone) {
  // Rank 0 has the first document and the first half of the second: it sees no key of rank 1.
  const Problem problem = parse_problem("layout=thd cu_q=0,64,192 h_q=4 d=64 mask=causal grad=1");
  const Shard shard = make_shard(problem, ShardKind::contiguous, 2);
  const Program forward = make_program(problem, shard, at_once(1), 0, false);
  const auto attends = calls<Attend>(forward);
  ASSERT_EQ(attends.size(), 1U);
  EXPECT_EQ(forward.buffer(attends[0].k).binding, Binding::k);
  EXPECT_EQ(forward.workspace_bytes, 0);
  EXPECT_EQ(forward.exchanges.size(), 1U);  // the other needs some of its keys
}

TEST(Parts, Fp32GradientsOfDocumentsAtHomeHaveNoLowBits) {
  const Program program = program_of("fp32", {}, 0, true);
  const auto attends = calls<AttendBackward>(program);
  ASSERT_EQ(attends.size(), 4U);
  EXPECT_EQ(program.buffer(attends[0].dk).binding, Binding::dk);
  EXPECT_EQ(rows_of(program, "low bits of dk"), kOpenRows[0]);
}

TEST(Parts, ASinkHasTheLastWordForwardAlone) {
  EXPECT_EQ(calls<Attend>(program_of("bf16 sink=learnable", {}, 0, false)).size(), 2U);
  EXPECT_EQ(calls<Attend>(program_of("bf16 sink=learnable", at_once(1), 0, false)).size(), 1U);
  EXPECT_EQ(calls<AttendBackward>(program_of("bf16 sink=learnable", {}, 0, true)).size(), 4U);
}

}  // namespace
}  // namespace rotunda
