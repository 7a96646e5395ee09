// NCCL, loaded when it is first used: nothing links to it, and a machine without it runs everything else.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace rotunda::nccl {

// The part of nccl.h that is used. It has been the same since NCCL 2.7.
using Comm = struct OpaqueComm*;
struct UniqueId {
  char bytes[128];
};
enum Result : int { kSuccess = 0 };
enum DataType : int { kUint8 = 1 };

struct Library {
  Result (*get_version)(int*);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank)(Comm*, int ranks, UniqueId, int rank);
  Result (*comm_abort)(Comm);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void*, std::size_t, DataType, int peer, Comm, cudaStream_t);
  Result (*receive)(void*, std::size_t, DataType, int peer, Comm, cudaStream_t);
  const char* (*error_text)(Result);
  std::string path, version;  ///< "2.28.9"
};

/// @throws Error unsupported where it is not found, saying where it was looked for
[[nodiscard]] const Library& library();

}  // namespace rotunda::nccl
