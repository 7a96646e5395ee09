// rotunda._core: what the Python package needs of the library, and no more.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "call.hpp"
#include "errors.hpp"
#include "group.hpp"
#include "rotunda/device.hpp"
#include "rotunda/info.hpp"
#include "shards.hpp"

NB_MODULE(_core, module) {
  namespace rp = rotunda::python;
  rp::bind_errors(module);
  rp::bind_group(module);
  rp::bind_call(module);
  rp::bind_shards(module);
  module.def("version", &rotunda::version);
  module.def("why_no_cuda", &rotunda::why_no_cuda);
  module.def("components", [] {
    std::vector<std::tuple<std::string, std::string, bool, std::string>> rows;
    for (const rotunda::Component& each : rotunda::components()) {
      rows.emplace_back(each.kind, each.name, each.available, each.description);
    }
    return rows;
  });
}
