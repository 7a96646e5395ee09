// A program that knows nothing but the installed package.
#include <cstdio>

#include "rotunda/attention.hpp"

int main() {
  using namespace rotunda;
  const Problem problem = parse_problem("s_q=6 h_q=2 d=4 dtype=fp32 mask=causal");
  auto group = make_local_group(2);
  run_ranks(group, [&](Transport& transport) {
    const auto plan = agree_on_plan(problem, {}, transport);
    if (plan->ranks != 2) throw Error(ErrorKind::internal, "a plan for the wrong group");
    if (transport.rank() == 0) std::printf("%s: %s\n", to_text(problem).c_str(), plan->summary().c_str());
    Attention attention(plan, transport);
  });
  return 0;
}
