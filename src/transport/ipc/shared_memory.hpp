// Device memory that processes of a host see: allocations of this one that others map, and theirs that this one maps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "transport/ipc/driver.hpp"

namespace rotunda::ipc {

/// The calls of a scope may be made while a stream of the thread is captured: they enqueue nothing.
class DuringCapture {
 public:
  DuringCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~DuringCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  DuringCapture(const DuringCapture&) = delete;
  DuringCapture& operator=(const DuringCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// This process's allocations as it has described them to its peers. An allocation has an id; its handle travels once
/// to each peer. Where an allocation is gone (its address belongs to another, or to none) its id is taken back.
class Exports {
 public:
  Exports(int rank, int size) : rank_(rank), told_(static_cast<std::size_t>(size)) {}

  /// Words for `peer` about where these addresses lie (null: nowhere). @throws Error unsupported for memory that can't
  /// be shared
  [[nodiscard]] std::string describe(int peer, const std::vector<const void*>& addresses);
  /// Looks which allocations are gone.
  void tidy();

 private:
  struct Export {
    Allocation allocation;
    std::int32_t id = 0;
    cudaIpcMemHandle_t handle{};
  };
  struct Told {
    std::vector<std::int32_t> known;  ///< ids
    std::vector<std::int32_t> gone;   ///< known once, to be taken back with the next words
  };

  const Export& find(const void* address);
  void take_back(const Export& old);

  int rank_;
  std::int32_t next_ = 0;
  std::map<CUdeviceptr, Export> exports_;  ///< by base
  std::vector<Told> told_;                 ///< by peer
};

/// One peer's allocations, mapped.
class Imports {
 public:
  Imports(int rank, int peer, int device) : rank_(rank), peer_(peer), device_(device) {}
  ~Imports();
  Imports(Imports&& other) noexcept;
  Imports& operator=(Imports&&) = delete;
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;

  /// The addresses here of what the peer has described. @throws Error unsupported where its memory can't be mapped
  [[nodiscard]] std::vector<void*> read(std::string_view words, std::size_t count);
  /// Whether the peer has taken something back that is still mapped.
  [[nodiscard]] bool has_gone() const { return !gone_.empty(); }
  /// Unmaps it. Nothing of this process may use it any more.
  void close_gone();

 private:
  int rank_, peer_, device_;
  std::map<std::int32_t, void*> open_;
  std::vector<void*> gone_;
};

/// Maps a handle of a peer's. @throws Error unsupported
[[nodiscard]] void* open_handle(const cudaIpcMemHandle_t& handle, int rank, int peer, int device);

}  // namespace rotunda::ipc
