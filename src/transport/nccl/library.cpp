#include "transport/nccl/library.hpp"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <vector>

#include "base/environment.hpp"
#include "base/fail.hpp"

namespace rotunda::nccl {
namespace {

constexpr const char* kName = "libnccl.so.2";

void add_matches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
}

/// Where NCCL may be: the loader's own search, CUDA's tree, and Python packages (an active virtual environment's
/// first).
std::vector<std::string> places() {
  std::vector<std::string> paths{kName};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto home = environment(variable)) paths.push_back(*home + "/lib64/" + kName);
  }
  paths.push_back(std::string("/usr/local/cuda/lib64/") + kName);
  std::vector<std::string> prefixes;
  if (const auto active = environment("VIRTUAL_ENV")) prefixes.push_back(*active);
  if (const auto active = environment("CONDA_PREFIX")) prefixes.push_back(*active);
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  for (const std::string& prefix : prefixes) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      add_matches(prefix + "/lib/python3*/" + packages + "/nvidia/nccl/lib/" + kName, paths);
    }
  }
  return paths;
}

template <class Function>
void find(void* handle, const char* name, Function& to) {
  to = reinterpret_cast<Function>(::dlsym(handle, name));
  if (to == nullptr) fail(ErrorKind::unsupported, "{} has no {}: too old; 2.10 or later is needed", kName, name);
}

Library load() {
  // Multicast over NVLink is of no use to messages between two ranks, and not everywhere allowed. The caller's wish
  // counts.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  void* handle = nullptr;
  Library result{};
  for (const std::string& path : places()) {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    result.path = path;
    if (handle != nullptr) break;
  }
  if (handle == nullptr) {
    fail(ErrorKind::unsupported,
         "NCCL was not found: {} is neither in the loader's path (LD_LIBRARY_PATH) nor in CUDA's tree nor in a Python "
         "environment (package nvidia-nccl-cu13)",
         kName);
  }
  find(handle, "ncclGetVersion", result.get_version);
  find(handle, "ncclGetUniqueId", result.get_unique_id);
  find(handle, "ncclCommInitRank", result.comm_init_rank);
  find(handle, "ncclCommAbort", result.comm_abort);
  find(handle, "ncclGroupStart", result.group_start);
  find(handle, "ncclGroupEnd", result.group_end);
  find(handle, "ncclSend", result.send);
  find(handle, "ncclRecv", result.receive);
  find(handle, "ncclGetErrorString", result.error_text);
  int code = 0;
  (void)result.get_version(&code);
  result.version = fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
  return result;
}

}  // namespace

const Library& library() {
  static const Library once = load();
  return once;
}

}  // namespace rotunda::nccl
