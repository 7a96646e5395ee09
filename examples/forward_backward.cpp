// Causal attention, forward and backward, on four ranks that are threads of this process.
//
// A rank holds only its own rows of every tensor; which rows those are is the plan's shard.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "rotunda/attention.hpp"

using namespace rotunda;

/// One rank's rows of a tensor, [1, rows, heads, dim] in fp32, with the memory behind them.
struct Local {
  std::vector<float> values;
  TensorView view;

  Local(std::int64_t rows, std::int64_t heads, std::int64_t dim)
      : values(static_cast<std::size_t>(rows * heads * dim)),
        view(make_view(values.data(), DType::fp32, Layout::bshd, 1, rows, heads, dim)) {}
  Local(const Local&) = delete;  // the view would still show the original

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
  }
};

static void train_step(const Problem& problem, Transport& transport) {
  const auto plan = agree_on_plan(problem, {}, transport);  // collective: every rank gets the same plan, or an error
  const std::int64_t rows = plan->shard.q.rows(transport.rank());
  const auto local = [&](int heads, int dim) { return Local(rows, heads, dim); };
  Local q = local(problem.h_q, problem.d), k = local(problem.h_kv, problem.d), v = local(problem.h_kv, problem.d);
  Local out = local(problem.h_q, problem.d), lse = local(problem.h_q, 1), dout = local(problem.h_q, problem.d);
  Local dq = local(problem.h_q, problem.d), dk = local(problem.h_kv, problem.d), dv = local(problem.h_kv, problem.d);
  const auto seed = static_cast<unsigned>(4 * transport.rank());
  q.fill(seed), k.fill(seed + 1), v.fill(seed + 2), dout.fill(seed + 3);

  Attention attention(plan, transport);
  Tensors tensors;
  tensors.q = q.view, tensors.k = k.view, tensors.v = v.view, tensors.out = out.view, tensors.lse = lse.view;
  attention.forward(tensors);
  tensors.dout = dout.view, tensors.dq = dq.view, tensors.dk = dk.view, tensors.dv = dv.view;
  attention.backward(tensors);

  std::printf("rank %d: %lld rows, %s\n", transport.rank(), static_cast<long long>(rows), plan->summary().c_str());
  // The first token sees itself alone, so its output is its own v.
  const bool has_first = plan->shard.q.tokens_of(transport.rank()).front() == 0;
  if (has_first && std::abs(out.values[0] - v.values[0]) > 1e-6F)
    throw Error(ErrorKind::internal, "the first token's output is not its own v");
}

int main() {
  const Problem problem = parse_problem("dtype=fp32 s_q=1000 h_q=8 h_kv=2 d=64 mask=causal grad=1");
  auto group = make_local_group(4);
  run_ranks(group, [&](Transport& transport) { train_step(problem, transport); });
}
