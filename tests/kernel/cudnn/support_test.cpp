// What cuDNN says to the calls of known problems, asked for a described H200: no GPU is needed, only the library.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "kernel/cudnn/cudnn_kernel.hpp"
#include "kernel/cudnn/library.hpp"
#include "kernel/cudnn/needs.hpp"
#include "rotunda/schedule.hpp"
#include "support/transformer_engine_matrix.hpp"

namespace rotunda::cudnn {
namespace {

/// cuDNN wants a driver library to be there, if only the toolkit's stub of it.
bool has_driver_library() {
  for (const char* file : {"libcuda.so.1", "/usr/local/cuda/lib64/stubs/libcuda.so"}) {
    if (dlopen(file, RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
  }
  return false;
}

SavedDevice h200() {
  std::ifstream file(ROTUNDA_SOURCE_DIR "/tests/kernel/cudnn/h200.json");
  SavedDevice device;
  device.properties.assign(std::istreambuf_iterator<char>(file), {});
  return device;
}

class CudnnSupport : public ::testing::Test {
 protected:
  void SetUp() override {
    if (library().handle == nullptr) GTEST_SKIP() << library().problem;
    if (!has_driver_library()) GTEST_SKIP() << "there is no libcuda.so.1, nor the toolkit's stub of it";
  }

  /// The first refusal of a rank's calls; each shape is asked about once.
  std::optional<std::string> refusal_of_program(const Problem& problem, const Program& program) {
    for (const Step& step : program.steps) {
      CallShape call;
      if (const auto* attend = std::get_if<Attend>(&step)) {
        call = shape_of(program, *attend);
        call.init = attend->init;
        call.last = attend->last;
      } else if (const auto* back = std::get_if<AttendBackward>(&step)) {
        call = shape_of(program, *back);
        call.backward = true;
        call.init_dq = back->init_dq;
        call.init_dkv = back->init_dkv;
      } else {
        continue;
      }
      if (auto refusal = refuse_call(problem, call, &device_)) return refusal;
    }
    return std::nullopt;
  }

  /// Of one direction at so many ranks: by p2p and all_gather, first and last rank.
  std::optional<std::string> refusal(const Problem& problem, bool backward, int ranks) {
    const ShardKind kind = ranks == 1                      ? ShardKind::contiguous
                           : problem.layout == Layout::thd ? ShardKind::dual_chunk_doc
                                                           : ShardKind::dual_chunk;
    const Shard shard = make_shard(problem, kind, ranks);
    for (const ScheduleKind schedule : {ScheduleKind::p2p, ScheduleKind::all_gather}) {
      for (const int rank : std::set<int>{0, ranks - 1}) {
        const ScheduleOptions options = {.kind = schedule, .sends_out = backward};
        const Program program = make_program(problem, shard, options, rank, backward);
        if (auto found = refusal_of_program(problem, program)) return found;
      }
    }
    return std::nullopt;
  }

  SavedDevice device_ = h200();

 private:
  static CallShape shape_of(const Program& program, const auto& step) {
    CallShape call;
    call.slices = step.slices;
    call.batch = program.buffer(step.q).batch;
    call.rows_q = step.q.rows;
    call.rows_k = step.k.rows;
    call.heads_q = static_cast<int>(step.q.heads);
    call.heads_kv = static_cast<int>(step.k.heads);
    return call;
  }
};

/// Of TransformerEngine's matrix, all but head dims above 256 are served.
void check_matrix(const std::string& shape, int ranks, const auto& refusal) {
  for (const rotunda::testing::MatrixRow& row : rotunda::testing::kMatrixRows) {
    const Problem problem =
        parse_problem(fmt::format("{} h_q={} h_kv={} d={} d_v={} {}", shape, row.full_h_q, row.full_h_kv, row.d,
                                  row.d_v, rotunda::testing::mask_keys(row, 1)));
    if (row.d > 256) {
      EXPECT_NE(cudnn_kernel().refuse(problem, {}).value_or("").find("not d=512"), std::string::npos);
      continue;
    }
    for (const bool backward : {false, true}) {
      const auto found = refusal(problem, backward, ranks);
      EXPECT_FALSE(found) << (backward ? "backward" : "forward") << " on " << ranks << " ranks of " << to_text(problem)
                          << ": " << *found;
    }
  }
}

TEST_F(CudnnSupport, ServesTheMatrix) {
  const auto ask = [&](const Problem& problem, bool backward, int ranks) { return refusal(problem, backward, ranks); };
  for (const char* layout : {"bshd", "sbhd", "bhsd"}) {
    check_matrix(fmt::format("layout={} b=2 s_q=4096", layout), 1, ask);
  }
  check_matrix("b=2 s_q=4096", 3, ask);
  check_matrix("layout=thd cu_q=0,1000,2777,4096", 1, ask);
  check_matrix("layout=thd cu_q=0,1024,3072,4096 used_q=900,2048,1", 2, ask);
}

TEST_F(CudnnSupport, ServesWhatIsOdd) {
  for (const char* text : {
           "dtype=fp16 s_q=512 h_q=2 d=64 mask=causal deterministic=1",
           "layout=thd cu_q=0,100,300,512 h_q=2 d=256 mask=causal deterministic=1",
           "s_q=512 h_q=2 d=192 d_v=128 mask=none window=100,50 deterministic=1",
           "s_q=1 h_q=2 d=64 mask=causal",
           "b=3 s_q=1 s_k=100 h_q=4 h_kv=1 d=64 mask=none",
           "s_q=100 s_k=1 h_q=2 d=64 mask=none",
           "s_q=301 s_k=333 h_q=2 d=40 mask=none",
           "s_q=512 h_q=2 d=64 mask=none window=100,inf",
           "s_q=512 h_q=2 d=64 mask=none window=inf,100",
           "s_q=512 s_k=100 h_q=2 d=64 mask=none window=20,30",
           "s_q=512 s_k=100 h_q=2 d=64 mask=none window=20,30 align=bottom_right",
           "b=3 s_q=512 h_q=2 d=64 mask=none window=20,30 lens_q=512,3,0 lens_k=512,9,7",
           "b=2 layout=bhsd s_q=64 h_q=2 d=64 mask=causal prefix=9 lens_q=60,3 lens_k=60,9",
       }) {
    const Problem problem = parse_problem(text);
    const std::vector<Slice> slices = mask_slices(problem);
    for (const bool backward : {false, true}) {
      const auto found = refuse_call(problem, whole_call(problem, slices, backward), &device_);
      EXPECT_FALSE(found) << (backward ? "backward of " : "forward of ") << text << ": " << *found;
    }
  }
}

TEST_F(CudnnSupport, RefusesBySentence) {
  const Problem striped = parse_problem("s_q=512 h_q=2 d=64 mask=causal chunk=1");
  std::vector<Slice> slices;
  for (std::int64_t i = 0; i < 20; ++i) {
    slices.push_back({.q_len = 1, .k_begin = 2 * i, .k_len = 1});
  }
  EXPECT_EQ(refuse_call(striped, whole_call(striped, slices, false), &device_),
            "its slices need 20 calls; at most 16 are made");
  const Problem wide = parse_problem("s_q=512 h_q=2 d=512 mask=causal");
  const std::vector<Slice> whole = mask_slices(wide);
  const auto found = refuse_call(wide, whole_call(wide, whole, true), &device_);
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("cuDNN"), std::string::npos) << *found;
}

}  // namespace
}  // namespace rotunda::cudnn
