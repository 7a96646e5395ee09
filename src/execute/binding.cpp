#include "execute/binding.hpp"

#include <array>
#include <cstdint>

#include "base/fail.hpp"

namespace rotunda {

const TensorView& tensor_of(const Tensors& t, Binding binding) {
  static const TensorView none;
  switch (binding) {
    case Binding::q: return t.q;
    case Binding::k: return t.k;
    case Binding::v: return t.v;
    case Binding::sink: return t.sink;
    case Binding::out: return t.out;
    case Binding::lse: return t.lse;
    case Binding::max_logit: return t.max_logit;
    case Binding::dout: return t.dout;
    case Binding::dq: return t.dq;
    case Binding::dk: return t.dk;
    case Binding::dv: return t.dv;
    case Binding::dsink: return t.dsink;
    case Binding::workspace: break;
  }
  return none;
}

void check_tensors(const Program& program, const Tensors& tensors) {
  for (const Buffer& buffer : program.buffers) {
    if (buffer.binding == Binding::workspace) continue;
    const TensorView& tensor = tensor_of(tensors, buffer.binding);
    const TensorView wanted{nullptr, buffer.dtype, {buffer.batch, buffer.rows, buffer.heads, buffer.dim}, {}};
    if (tensor.shape != wanted.shape || tensor.dtype != wanted.dtype) {
      fail(ErrorKind::bad_input, "tensor {} on rank {} is {}; the plan wants {} as [batch, rows, heads, dim]",
           buffer.name, program.rank, describe(tensor), describe(wanted));
    }
    if (tensor.empty()) continue;
    if (tensor.data == nullptr) {
      fail(ErrorKind::bad_input, "tensor {} on rank {} has no memory; the plan wants {}", buffer.name, program.rank,
           describe(wanted));
    }
    if (buffer.dim > 1 && tensor.stride[3] != 1) {
      fail(ErrorKind::bad_input,
           "tensor {} on rank {} has stride {} in its last axis (the head dim); allowed: 1. Copy it to contiguous rows",
           buffer.name, program.rank, tensor.stride[3]);
    }
  }
}

void check_alignment(const Program& program, const Tensors& tensors, int alignment, const std::string& kernel) {
  for (const Buffer& buffer : program.buffers) {
    const TensorView& tensor = tensor_of(tensors, buffer.binding);
    if (tensor.empty() || buffer.dim == 1) continue;  // row statistics and values of heads may lie anywhere
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
    bool suits = reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(alignment) == 0;
    for (int axis = 0; axis < 3; ++axis) {
      const auto i = static_cast<std::size_t>(axis);
      suits &= tensor.shape[i] == 1 || tensor.stride[i] * size % alignment == 0;
    }
    if (suits) continue;
    fail(ErrorKind::unsupported,
         "tensor {} on rank {} lies at {} with strides {}, {}, {} elements of {} bytes; kernel {} takes addresses and "
         "strides that are multiples of {} bytes: copy it to contiguous memory, or choose another kernel",
         buffer.name, program.rank, tensor.data, tensor.stride[0], tensor.stride[1], tensor.stride[2], size, kernel,
         alignment);
  }
}

void check_memory(const Program& program, const Tensors& tensors, const Device& device) {
  if (!device.is_cuda()) return;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.binding == Binding::workspace) continue;
    const TensorView& tensor = tensor_of(tensors, buffer.binding);
    if (tensor.empty() || is_reachable(tensor.data, device)) continue;
    fail(ErrorKind::bad_input, "tensor {} on rank {} lies in host memory; the plan runs on {} and wants it there",
         buffer.name, program.rank, to_string(device));
  }
}

namespace {

TensorView workspace_view(const Buffer& buffer, std::int64_t heads, void* data) {
  TensorView view = make_view(nullptr, buffer.dtype, buffer.layout, buffer.batch, buffer.rows, heads, buffer.dim);
  if (!view.empty()) view.data = data;
  return view;
}

}  // namespace

BoundBuffers::BoundBuffers(const Program& program, const Tensors& tensors, std::byte* workspace)
    : program_(program), tensors_(tensors) {
  for (const Buffer& buffer : program.buffers) {
    if (buffer.binding != Binding::workspace) {
      views_.push_back(tensor_of(tensors, buffer.binding));
      continue;
    }
    views_.push_back(workspace_view(buffer, buffer.heads, workspace + buffer.offset));
  }
}

TensorView BoundBuffers::view(const Region& region) const {
  if (!region) return {};
  const TensorView& buffer = views_[static_cast<std::size_t>(region.buffer)];
  const TensorView whole =
      region.packed_heads == 0 ? buffer : workspace_view(program_.buffer(region), region.packed_heads, buffer.data);
  return whole.narrow_rows(region.row, region.rows).narrow_heads(region.head, region.heads);
}

const TensorView& BoundBuffers::user(Binding binding) const {
  return tensor_of(tensors_, binding);
}

}  // namespace rotunda
