// A plan that runs: what all calls of one problem on one group share.
#pragma once

#include <nanobind/nanobind.h>

namespace rotunda::python {

void bind_call(nanobind::module_& module);

}  // namespace rotunda::python
