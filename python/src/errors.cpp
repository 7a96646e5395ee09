#include "errors.hpp"

#include <array>
#include <exception>
#include <string>

#include "rotunda/error.hpp"

namespace rotunda::python {

namespace nb = nanobind;

namespace {

struct KindClass {
  ErrorKind kind;
  const char* name;
  PyObject** builtin;  ///< what else it is, for those who catch Python's own
  const char* doc;
};

const std::array<KindClass, 5> kClasses = {{
    {ErrorKind::bad_input, "BadInputError", &PyExc_ValueError, "Wrong shapes, dtypes, values, or ranks that disagree."},
    {ErrorKind::unsupported, "UnsupportedError", &PyExc_NotImplementedError,
     "A right request that nothing here can serve; the message holds every reason."},
    {ErrorKind::transport, "TransportError", &PyExc_ConnectionError, "A peer is late, dead, or has failed."},
    {ErrorKind::device, "DeviceError", nullptr, "A device or its driver failed."},
    {ErrorKind::internal, "InternalError", nullptr, "A fault of Rotunda's."},
}};

std::array<PyObject*, kClasses.size()> classes{};

PyObject* make_class(nb::module_& module, const char* name, const nb::object& bases, const char* doc) {
  const std::string qualified = std::string("rotunda.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
  if (made == nullptr) nb::raise_python_error();
  module.attr(name) = nb::borrow(made);  // one reference is kept here, for as long as the process lives
  return made;
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyErr_SetString(classes[static_cast<std::size_t>(error.kind())], error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  PyObject* base = make_class(module, "Error", nb::borrow(PyExc_RuntimeError), "What Rotunda raises.");
  for (const KindClass& each : kClasses) {
    nb::list bases;
    bases.append(nb::borrow(base));
    if (each.builtin != nullptr) bases.append(nb::borrow(*each.builtin));
    classes[static_cast<std::size_t>(each.kind)] = make_class(module, each.name, nb::tuple(bases), each.doc);
  }
  nb::register_exception_translator(translate, nullptr);
}

}  // namespace rotunda::python
