// Rotunda's errors as Python exceptions: rotunda.Error and one class for each kind.
#pragma once

#include <nanobind/nanobind.h>

namespace rotunda::python {

/// Adds the classes to the module and translates every rotunda::Error that leaves a bound function.
void bind_errors(nanobind::module_& module);

}  // namespace rotunda::python
