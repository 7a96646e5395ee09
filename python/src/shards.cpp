#include "shards.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "rotunda/problem.hpp"
#include "rotunda/shard.hpp"

namespace rotunda::python {

namespace nb = nanobind;

namespace {

std::vector<std::pair<std::int64_t, std::int64_t>> runs_of(const TokenMap& map, int rank) {
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  for (const Run& run : map.runs(rank)) result.emplace_back(run.token, run.len);
  return result;
}

}  // namespace

void bind_shards(nb::module_& module) {
  nb::class_<TokenMap>(module, "TokenMap", "Token to (rank, local row), for the query side of a problem.")
      .def_prop_ro("tokens", &TokenMap::tokens)
      .def_prop_ro("stride", &TokenMap::stride)
      .def_prop_ro("ranks", &TokenMap::ranks)
      .def("rows", &TokenMap::rows, nb::arg("rank"))
      .def("runs", &runs_of, nb::arg("rank"), "(first token, length) of runs of consecutive local rows");
  module.def(
      "token_map",
      [](const std::string& problem, const std::string& kind, int ranks, std::int64_t chunk_size) {
        return make_shard(parse_problem(problem), parse_shard_kind(kind), ranks, chunk_size).q;
      },
      nb::arg("problem"), nb::arg("kind"), nb::arg("ranks"), nb::arg("chunk_size") = 0);
}

}  // namespace rotunda::python
