// Who owns which tokens, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace rotunda::python {

void bind_shards(nanobind::module_& module);

}  // namespace rotunda::python
