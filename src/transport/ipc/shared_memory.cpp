#include "transport/ipc/shared_memory.hpp"

#include <algorithm>
#include <utility>

#include "base/cuda/check.hpp"
#include "base/fail.hpp"
#include "transport/process/records.hpp"

namespace rotunda::ipc {

using process::get;
using process::put;

namespace {

/// One address in words.
struct Place {
  std::int32_t id = -1;      ///< of the allocation; -1: nowhere
  std::int32_t is_new = 0;   ///< its handle follows
  std::uint64_t offset = 0;  ///< in it, in bytes
};

}  // namespace

std::string Exports::describe(int peer, const std::vector<const void*>& addresses) {
  Told& told = told_[static_cast<std::size_t>(peer)];
  std::string places;
  for (const void* address : addresses) {
    Place place;
    if (address == nullptr) {
      put(places, place);
      continue;
    }
    const Export& found = find(address);
    place.id = found.id;
    place.offset = reinterpret_cast<CUdeviceptr>(address) - found.allocation.base;
    place.is_new = std::ranges::find(told.known, found.id) == told.known.end() ? 1 : 0;
    put(places, place);
    if (place.is_new == 0) continue;
    put(places, found.handle);
    told.known.push_back(found.id);
  }
  std::string words;
  put(words, static_cast<std::uint32_t>(told.gone.size()));
  for (const std::int32_t id : told.gone) put(words, id);
  told.gone.clear();
  return words + places;
}

const Exports::Export& Exports::find(const void* address) {
  Export made;
  if (!find_allocation(reinterpret_cast<CUdeviceptr>(address), made.allocation)) {
    fail(ErrorKind::unsupported, "rank {}: a message lies at {}, which is no memory of a CUDA device", rank_, address);
  }
  const auto known = exports_.find(made.allocation.base);
  if (known != exports_.end()) {
    if (known->second.allocation.number == made.allocation.number) return known->second;
    take_back(known->second);
    exports_.erase(known);
  }
  made.id = next_++;
  const DuringCapture relaxed;
  const cudaError_t result = cudaIpcGetMemHandle(&made.handle, reinterpret_cast<void*>(made.allocation.base));
  if (result != cudaSuccess) {
    (void)cudaGetLastError();
    fail(ErrorKind::unsupported,
         "rank {} can't share the memory of a message with other processes: {} ({}); transport ipc needs memory of "
         "cudaMalloc (not of a stream-ordered pool, nor mapped piece by piece), else take transport nccl",
         rank_, cudaGetErrorString(result), static_cast<int>(result));
  }
  return exports_[made.allocation.base] = made;
}

void Exports::take_back(const Export& old) {
  for (Told& told : told_) {
    const auto known = std::ranges::find(told.known, old.id);
    if (known == told.known.end()) continue;
    told.known.erase(known);
    told.gone.push_back(old.id);
  }
}

void Exports::tidy() {
  for (auto it = exports_.begin(); it != exports_.end();) {
    Allocation now;
    const bool there = find_allocation(it->first, now) && now.number == it->second.allocation.number;
    if (!there) take_back(it->second);
    it = there ? std::next(it) : exports_.erase(it);
  }
}

Imports::Imports(Imports&& other) noexcept
    : rank_(other.rank_),
      peer_(other.peer_),
      device_(other.device_),
      open_(std::exchange(other.open_, {})),
      gone_(std::exchange(other.gone_, {})) {}

Imports::~Imports() {
  for (const auto& [id, base] : open_) gone_.push_back(base);
  for (void* base : gone_) (void)cudaIpcCloseMemHandle(base);
  (void)cudaGetLastError();
}

std::vector<void*> Imports::read(std::string_view words, std::size_t count) {
  for (auto gone = get<std::uint32_t>(words); gone > 0; --gone) {
    const auto found = open_.find(get<std::int32_t>(words));
    if (found == open_.end()) continue;
    gone_.push_back(found->second);
    open_.erase(found);
  }
  std::vector<void*> addresses;
  for (std::size_t i = 0; i < count; ++i) {
    const auto place = get<Place>(words);
    if (place.is_new != 0) open_[place.id] = open_handle(get<cudaIpcMemHandle_t>(words), rank_, peer_, device_);
    addresses.push_back(place.id < 0 ? nullptr : static_cast<std::byte*>(open_.at(place.id)) + place.offset);
  }
  return addresses;
}

void Imports::close_gone() {
  const cuda::CurrentDevice current(device_);
  for (void* base : std::exchange(gone_, {})) {
    if (cudaIpcCloseMemHandle(base) != cudaSuccess) (void)cudaGetLastError();
  }
}

void* open_handle(const cudaIpcMemHandle_t& handle, int rank, int peer, int device) {
  const cuda::CurrentDevice current(device);
  const DuringCapture relaxed;
  void* base = nullptr;
  const cudaError_t result = cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
  if (result == cudaSuccess) return base;
  (void)cudaGetLastError();
  fail(ErrorKind::unsupported,
       "rank {} (cuda:{}) can't map memory of rank {}: {} ({}); transport ipc needs devices that reach each other "
       "(nvidia-smi topo -p2p r) and that every rank sees, and processes that may share memory (containers: "
       "--ipc=host); else take transport nccl",
       rank, device, peer, cudaGetErrorString(result), static_cast<int>(result));
}

}  // namespace rotunda::ipc
