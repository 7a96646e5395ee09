// The oracle's outer loop: batch entries and KV heads one after another, blocks of each in parallel.
#include "rotunda/oracle.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <span>

#include "base/fail.hpp"
#include "base/half.hpp"
#include "base/thread_pool.hpp"
#include "kernel/oracle/group.hpp"
#include "kernel/oracle/rounding.hpp"

namespace rotunda {
namespace {

using namespace oracle_detail;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kBlock = 32;  // query rows or keys of a block

std::int64_t blocks(std::int64_t rows) {
  return (rows + kBlock - 1) / kBlock;
}

Range block_range(std::int64_t index, std::int64_t rows) {
  return {index * kBlock, std::min(rows, (index + 1) * kBlock)};
}

/// Tells the caller the part done, in steps of a hundredth at least.
class Progress {
 public:
  Progress(const std::function<void(double)>& report, std::int64_t total) : report_(report), total_(total) {}

  void step() {
    const std::int64_t done = ++done_;
    if (report_ && done * 100 / total_ != (done - 1) * 100 / total_) {
      report_(static_cast<double>(done) / static_cast<double>(total_));
    }
  }

 private:
  const std::function<void(double)>& report_;
  std::int64_t total_;
  std::atomic<std::int64_t> done_{0};
};

void check_inputs(const Problem& p, const Tensors& tensors) {
  const auto check = [](const char* name, const TensorView& given, DType dtype, std::array<std::int64_t, 4> shape) {
    const bool there = given.data != nullptr || given.empty();
    if (given.shape == shape && given.dtype == dtype && there) return;
    fail(ErrorKind::bad_input, "oracle: tensor {} is {}{}; the problem wants {}", name, describe(given),
         there ? "" : " without memory", describe({nullptr, dtype, shape, {}}));
  };
  check("q", tensors.q, p.dtype, {p.batches(), p.s_q, p.h_q, p.d});
  check("k", tensors.k, p.dtype, {p.batches(), p.s_k, p.h_kv, p.d});
  check("v", tensors.v, p.dtype, {p.batches(), p.s_k, p.h_kv, p.d_v});
  if (p.grad) check("dout", tensors.dout, p.dtype, {p.batches(), p.s_q, p.h_q, p.d_v});
  if (p.sink == Sink::learnable) check("sink", tensors.sink, DType::fp32, {1, 1, p.h_q, 1});
}

Answers empty_answers(const Problem& p) {
  const auto count = [](std::int64_t batches, std::int64_t rows, int heads, int dim) {
    return static_cast<std::size_t>(batches * rows * heads * dim);
  };
  Answers answers;
  answers.out.assign(count(p.batches(), p.s_q, p.h_q, p.d_v), 0);
  answers.lse.assign(count(p.batches(), p.s_q, p.h_q, 1), kMinusInfinity);
  answers.max_logit.assign(static_cast<std::size_t>(p.h_q), kMinusInfinity);
  if (!p.grad) return answers;
  answers.dq.assign(count(p.batches(), p.s_q, p.h_q, p.d), 0);
  answers.dk.assign(count(p.batches(), p.s_k, p.h_kv, p.d), 0);
  answers.dv.assign(count(p.batches(), p.s_k, p.h_kv, p.d_v), 0);
  answers.dsink.assign(static_cast<std::size_t>(p.h_q), 0);
  return answers;
}

ErrorFloors larger(const ErrorFloors& a, const ErrorFloors& b) {
  return {std::max(a.out, b.out), std::max(a.dq, b.dq), std::max(a.dk, b.dk), std::max(a.dv, b.dv),
          std::max(a.dsink, b.dsink)};
}

/// Those of a list, which is sorted by batch entry, that are of entry b.
template <class T>
std::span<const T> of_batch(const std::vector<T>& list, std::int64_t b) {
  const auto begin = std::partition_point(list.begin(), list.end(), [&](const T& each) { return each.batch < b; });
  const auto end = std::partition_point(begin, list.end(), [&](const T& each) { return each.batch == b; });
  return {begin, end};
}

/// All groups of a problem in one arithmetic.
template <class Arithmetic>
ErrorFloors solve(const Problem& p, const Tensors& tensors, ThreadPool& pool, Progress& progress, Answers& answers) {
  using Real = typename Arithmetic::Real;
  answers = empty_answers(p);
  const std::vector<Slice> slices = mask_slices(p);
  const std::vector<RowSpan> real_rows = real_query_rows(p);
  std::vector<BlockScratch<Real>> scratch(static_cast<std::size_t>(pool.threads()));
  std::vector<ErrorFloors> floors(static_cast<std::size_t>(pool.threads()));
  for (std::int64_t b = 0; b < p.batches(); ++b) {
    const SliceIndex own(of_batch(slices, b));
    std::vector<char> real(static_cast<std::size_t>(p.s_q), 0);
    for (const RowSpan& span : of_batch(real_rows, b)) {
      std::fill_n(real.begin() + span.begin, span.len, 1);
    }
    for (int kv_head = 0; kv_head < p.h_kv; ++kv_head) {
      const GroupTask task{p, tensors, own, real, b, kv_head};
      Group<Arithmetic> group(task, answers);
      const std::int64_t row_blocks = blocks(p.s_q);
      pool.parallel(task.heads() * row_blocks, [&](std::int64_t i, int worker) {
        const auto w = static_cast<std::size_t>(worker);
        group.row_block(static_cast<int>(i / row_blocks), block_range(i % row_blocks, p.s_q), scratch[w], floors[w]);
        progress.step();
      });
      group.finish_heads(floors[0]);
      if (!p.grad) continue;
      pool.parallel(blocks(p.s_k), [&](std::int64_t i, int worker) {
        const auto w = static_cast<std::size_t>(worker);
        group.key_block(block_range(i, p.s_k), scratch[w], floors[w]);
        progress.step();
      });
    }
  }
  ErrorFloors all;
  for (const ErrorFloors& one : floors) all = larger(all, one);
  return all;
}

}  // namespace

OracleResult oracle(const Problem& problem, const Tensors& whole, int threads,
                    const std::function<void(double)>& report) {
  check_inputs(problem, whole);
  ThreadPool pool(threads);
  const std::int64_t row_blocks = problem.h_q * blocks(problem.s_q);
  const std::int64_t key_blocks = problem.grad ? problem.h_kv * blocks(problem.s_k) : 0;
  Progress progress(report, std::max<std::int64_t>(1, 2 * problem.batches() * (row_blocks + key_blocks)));
  OracleResult result;
  result.floors = solve<Exact>(problem, whole, pool, progress, result.exact);
  dispatch_dtype(problem.dtype,
                 [&](auto element) { solve<Naive<decltype(element)>>(problem, whole, pool, progress, result.naive); });
  return result;
}

}  // namespace rotunda
