#include "kernel/fa4/exported.hpp"

#include <array>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "base/cuda/check.hpp"
#include "base/fail.hpp"

// exported_kernels.inc has a line for each exported kernel:
//   FA4_FORWARD(name, entry, one, dtype, d, d_v, query rows of a block)
//   FA4_BACKWARD(name, entry, one, kind, dtype, d, d_v, SumTile of dq, SumTile of dk and dv)
#define FA4_DECLARE(name, entry)                   \
  void _mlir_##name##_cuda_init(void**);           \
  void _mlir_##name##_cuda_load_to_device(void**); \
  void entry(void**, std::int32_t);
#define FA4_FORWARD(name, entry, ...) FA4_DECLARE(name, entry)
#define FA4_BACKWARD(name, entry, ...) FA4_DECLARE(name, entry)
extern "C" {
#include "kernel/fa4/exported_kernels.inc"
}
#undef FA4_FORWARD
#undef FA4_BACKWARD
#undef FA4_DECLARE

namespace rotunda::fa4 {
namespace {

#define FA4_FUNCTIONS(name, entry) _mlir_##name##_cuda_init, _mlir_##name##_cuda_load_to_device, entry
#define FA4_FORWARD(name, entry, one, dtype, d, d_v, tile_q) \
  Exported{#name, one, Kind::forward, DType::dtype, d, d_v, tile_q, {}, {}, FA4_FUNCTIONS(name, entry)},
#define FA4_BACKWARD(name, entry, one, kind, dtype, d, d_v, q0, q1, q2, q3, k0, k1, k2, k3) \
  Exported{#name, one, Kind::kind,       DType::dtype,     d,                               \
           d_v,   0,   {q0, q1, q2, q3}, {k0, k1, k2, k3}, FA4_FUNCTIONS(name, entry)},

/// The loaders write handles of the CUDA runtime, which are kept for the process: captured graphs hold on to kernels.
class Loaded {
 public:
  void load(const Exported& kernel) {
    int device = 0;
    ROTUNDA_CUDA(cudaGetDevice(&device));
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[&kernel];
    if (device < kDevices && entry.on_device[static_cast<std::size_t>(device)]) return;
    if (device >= kDevices)
      fail(ErrorKind::unsupported, "fa4 serves CUDA devices up to {}, not {}", kDevices - 1, device);
    cudaLibrary_t* library = &entry.library;
    cudaError_t result = cudaSuccess;
    if (entry.library == nullptr) {
      void* arguments[] = {static_cast<void*>(&library), &result};
      kernel.init(arguments);
      cuda::check(result, kernel.name);
    }
    void* arguments[] = {static_cast<void*>(&library), &device, &result};
    kernel.load(arguments);
    cuda::check(result, kernel.name);
    entry.on_device[static_cast<std::size_t>(device)] = true;
  }

 private:
  static constexpr int kDevices = 64;
  struct Entry {
    cudaLibrary_t library = nullptr;
    std::array<bool, kDevices> on_device{};
  };
  std::mutex mutex_;
  std::map<const Exported*, Entry> entries_;
};

/// Addresses of a kernel's arguments, in order.
class Arguments {
 public:
  explicit Arguments(const Exported& kernel) : kernel_(kernel) {}

  template <class... T>
  void add_operands(T&... operands) {
    (addresses_.push_back(kernel_.one ? static_cast<void*>(&operands.whole) : &operands.folded), ...);
  }
  template <class... T>
  void add(T&... values) {
    (addresses_.push_back(&values), ...);
  }
  void add(OneSlice& one, Ints& unread) {
    static_assert(sizeof(OneSlice) % sizeof(std::int32_t) == 0);
    add(unread);
    auto* number = reinterpret_cast<std::int32_t*>(&one);
    for (std::size_t i = 0; i < sizeof(OneSlice) / sizeof(std::int32_t); ++i) add(number[i]);
  }
  void run(Stream stream) {
    load(kernel_);
    std::int32_t result = 0;
    cudaStream_t native = cuda::native(stream);
    add(native, result);
    kernel_.run(addresses_.data(), static_cast<std::int32_t>(addresses_.size()));
    cuda::check(static_cast<cudaError_t>(result), kernel_.name);
  }

 private:
  const Exported& kernel_;
  std::vector<void*> addresses_;
};

}  // namespace

std::span<const Exported> all_exported() {
  static const Exported kernels[] = {
#include "kernel/fa4/exported_kernels.inc"
  };
  return kernels;
}

const Exported* find_exported(Kind kind, DType dtype, int d, int d_v) {
  const Exported* best = nullptr;
  for (const Exported& kernel : all_exported()) {
    if (kernel.one || kernel.kind != kind || kernel.dtype != dtype || kernel.d < d || kernel.d_v < d_v) continue;
    if (best == nullptr || kernel.d + kernel.d_v < best->d + best->d_v) best = &kernel;
  }
  return best;
}

void load(const Exported& kernel) {
  static Loaded loaded;
  loaded.load(kernel);
}

const Exported* twin_for_one(const Exported& kernel) {
  for (const Exported& other : all_exported()) {
    const bool same = other.kind == kernel.kind && other.dtype == kernel.dtype && other.d == kernel.d;
    if (same && other.one && other.d_v == kernel.d_v) return &other;
  }
  return nullptr;
}

void launch(const Exported& kernel, ForwardCall& c, Stream stream) {
  LaunchTables& t = c.tables;
  Arguments arguments(kernel);
  arguments.add_operands(c.q, c.k, c.v, c.out);
  arguments.add(c.acc, c.lse, c.low, c.scale);
  if (kernel.one) {
    arguments.add(c.one, t.first_q);
  } else {
    arguments.add(t.first_q, t.first_k, t.used_q, t.used_k, t.blocks_before, t.block_owner, t.grid_rows);
  }
  arguments.run(stream);
}

void launch(const Exported& kernel, BackwardCall& c, Stream stream) {
  LaunchTables& t = c.tables;
  Arguments arguments(kernel);
  arguments.add_operands(c.q, c.k, c.v, c.dout);
  arguments.add(c.lse_log2, c.delta, c.dq);
  if (kernel.kind == Kind::direct) {
    arguments.add_operands(c.direct_dk, c.direct_dv);
  } else {
    arguments.add(c.dk, c.dv);
  }
  arguments.add(c.scale);
  if (kernel.one) {
    arguments.add(c.one, t.first_q);
  } else {
    arguments.add(t.first_q, t.first_k, t.used_q, t.used_k, t.blocks_before, t.block_owner);
    arguments.add(c.turns_q, c.turns_k, c.turns_v, t.grid_rows);
  }
  arguments.run(stream);
}

}  // namespace rotunda::fa4
