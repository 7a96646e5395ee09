#include "dlpack.hpp"

#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <unordered_map>

#include "rotunda/error.hpp"

namespace rotunda::python {

namespace nb = nanobind;
using DLTensor = nb::dlpack::dltensor;

namespace {

// The C functions of DLPack 1.3 (dlpack.h, DLPackExchangeAPI), of which PyTorch 2.10 and later have a table: no
// capsule, no reference, and no synchronisation of streams, which are the caller's business here.
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;
  void *allocate, *to_managed, *from_managed;
  int (*to_tensor)(void* object, DLTensor* out);
  void* current_stream;
};

constexpr std::uint32_t kExchangeMajor = 1;

/// A tensor's memory, shape and strides as they are.
struct Array {
  void* data = nullptr;
  DType dtype = DType::fp32;
  int axes = 0;
  std::array<std::int64_t, 4> shape{}, stride{};
};

struct ManagedTensor {  // DLManagedTensor, of the capsules that all versions of PyTorch make
  DLTensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

/// The table of a type, or null.
const ExchangeApi* exchange_api(PyTypeObject* type) {
  static std::unordered_map<PyTypeObject*, const ExchangeApi*> known;  // guarded by the GIL
  const auto found = known.find(type);
  if (found != known.end()) return found->second;
  const ExchangeApi* api = nullptr;
  const nb::object capsule =
      nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
    api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (api != nullptr && api->major != kExchangeMajor) api = api->previous;
  }
  Py_INCREF(type);  // the key stays valid
  return known[type] = api;
}

DType dtype_of(const DLTensor& tensor, const char* name) {
  const auto code = static_cast<nb::dlpack::dtype_code>(tensor.dtype.code);
  if (tensor.dtype.lanes == 1) {
    if (code == nb::dlpack::dtype_code::Bfloat && tensor.dtype.bits == 16) return DType::bf16;
    if (code == nb::dlpack::dtype_code::Float && tensor.dtype.bits == 16) return DType::fp16;
    if (code == nb::dlpack::dtype_code::Float && tensor.dtype.bits == 32) return DType::fp32;
  }
  throw Error(ErrorKind::bad_input, fmt::format("tensor {} has a dtype of code {} and {} bits; allowed: bfloat16, "
                                                "float16, float32",
                                                name, tensor.dtype.code, tensor.dtype.bits));
}

void check_device(const DLTensor& tensor, const Device& wanted, const char* name) {
  const auto [kind, index] = tensor.device;
  const bool host = kind == nb::device::cpu::value, cuda = kind == nb::device::cuda::value;
  if (host ? !wanted.is_cuda() : cuda && wanted == cuda_device(index)) return;
  const std::string found = host || cuda ? to_string(host ? Device{} : cuda_device(index))
                                         : fmt::format("a device of DLPack's kind {}", kind);
  throw Error(ErrorKind::bad_input,
              fmt::format("tensor {} lies on {}; the call runs on {}", name, found, to_string(wanted)));
}

Array array_of(const DLTensor& tensor, const Device& device, const char* name) {
  Array array;
  array.axes = tensor.ndim;
  if (tensor.ndim < 1 || tensor.ndim > 4) {
    throw Error(ErrorKind::bad_input, fmt::format("tensor {} has {} axes; allowed: 1 to 4", name, tensor.ndim));
  }
  array.dtype = dtype_of(tensor, name);
  check_device(tensor, device, name);
  array.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  std::int64_t dense = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    array.shape[i] = tensor.shape[axis];
    array.stride[i] = tensor.strides == nullptr ? dense : tensor.strides[axis];
    dense *= tensor.shape[axis];
  }
  return array;
}

/// The view whose axes [batch, row, head, dim] are these of the array; -1 is an axis of size 1 that it lacks.
TensorView view_of(const Array& array, std::array<int, 4> axes) {
  TensorView view;
  view.data = array.data;
  view.dtype = array.dtype;
  for (std::size_t i = 0; i < 4; ++i) {
    const bool there = axes[i] >= 0;
    view.shape[i] = there ? array.shape[static_cast<std::size_t>(axes[i])] : 1;
    view.stride[i] = there ? array.stride[static_cast<std::size_t>(axes[i])] : 1;
  }
  return view;
}

void check_axes(const Array& array, int wanted, const char* name) {
  if (array.axes == wanted) return;
  throw Error(ErrorKind::bad_input, fmt::format("tensor {} has {} axes; wanted: {}", name, array.axes, wanted));
}

Array import_array(nb::handle tensor, const Device& device, const char* name) {
  if (const ExchangeApi* api = exchange_api(Py_TYPE(tensor.ptr()))) {
    DLTensor raw;
    if (api->to_tensor(tensor.ptr(), &raw) != 0) nb::raise_python_error();
    return array_of(raw, device, name);
  }
  const nb::object capsule = nb::module_::import_("torch.utils.dlpack").attr("to_dlpack")(tensor);
  const auto* managed = static_cast<const ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) nb::raise_python_error();
  return array_of(managed->tensor, device, name);
}

/// Whether every kernel can read an input that lies so.
bool is_readable(const Array& array, const Device& device) {
  const auto last = static_cast<std::size_t>(array.axes - 1);
  if (array.stride[last] != 1 && array.shape[last] != 1) return false;
  if (!device.is_cuda()) return true;
  constexpr std::uintptr_t kAligned = 16;  // bytes that a thread loads at once
  std::uintptr_t odd = reinterpret_cast<std::uintptr_t>(array.data);
  for (std::size_t i = 0; i < last; ++i) odd |= static_cast<std::uintptr_t>(array.stride[i]) * size_of(array.dtype);
  return odd % kAligned == 0;
}

/// A tensor of a layout's axes.
TensorView view_in(Layout layout, const Array& array, const char* name) {
  check_axes(array, layout == Layout::thd ? 3 : 4, name);
  switch (layout) {
    case Layout::bshd: return view_of(array, {0, 1, 2, 3});
    case Layout::sbhd: return view_of(array, {1, 0, 2, 3});
    case Layout::bhsd: return view_of(array, {0, 2, 1, 3});
    case Layout::thd: return view_of(array, {-1, 0, 1, 2});
  }
  return {};
}

}  // namespace

TensorView Importer::tensor(nb::handle tensor, const char* name) const {
  if (tensor.is_none()) return {};
  return view_in(layout, import_array(tensor, device, name), name);
}

TensorView Importer::input(nb::handle tensor, const char* name) {
  Array array = import_array(tensor, device, name);
  if (!is_readable(array, device)) {
    const nb::object dense = nb::module_::import_("torch").attr("contiguous_format");
    copies.push_back(tensor.attr("clone")(nb::arg("memory_format") = dense));
    array = import_array(copies.back(), device, name);
  }
  return view_in(layout, array, name);
}

TensorView Importer::rows(nb::handle tensor, const char* name) const {
  if (tensor.is_none()) return {};
  const Array array = import_array(tensor, device, name);
  if (array.axes == 2) return view_of(array, {-1, 1, 0, -1});
  check_axes(array, 3, name);
  return view_of(array, {0, 2, 1, -1});
}

TensorView Importer::heads(nb::handle tensor, const char* name) const {
  if (tensor.is_none()) return {};
  const Array array = import_array(tensor, device, name);
  check_axes(array, 1, name);
  return view_of(array, {-1, -1, 0, -1});
}

std::span<std::byte> Importer::memory(nb::handle tensor, const char* name) const {
  if (tensor.is_none()) return {};
  const Array array = import_array(tensor, device, name);
  check_axes(array, 1, name);
  return {static_cast<std::byte*>(array.data), static_cast<std::size_t>(array.shape[0]) * size_of(array.dtype)};
}

}  // namespace rotunda::python
