#include "kernel/cudnn/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/environment.hpp"

namespace rotunda::cudnn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libcudnn.so.9";

/// ROOT/lib/python3.*/site-packages/nvidia/cudnn/lib, where pip puts it.
void add_site_packages(const fs::path& root, std::vector<fs::path>& folders) {
  for (const char* lib : {"lib", "lib64"}) {
    std::error_code error;
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(root / lib, error)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        fs::path folder = entry.path() / packages / "nvidia" / "cudnn" / "lib";
        if (fs::exists(folder / kName, error)) found.push_back(std::move(folder));
      }
    }
    std::sort(found.begin(), found.end());
    folders.insert(folders.end(), found.begin(), found.end());
  }
}

/// Files to try, in order; a bare name is for the dynamic loader (LD_LIBRARY_PATH, the system's folders).
std::vector<fs::path> candidates() {
  if (const auto path = environment("ROTUNDA_CUDNN_PATH")) return {fs::path(*path) / kName};
  std::vector<fs::path> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto root = environment(variable)) folders.push_back(fs::path(*root) / "lib64");
  }
  folders.emplace_back("/usr/local/cuda/lib64");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto root = environment(variable)) add_site_packages(*root, folders);
  }
  for (const char* root : {"/usr/local", "/usr"}) add_site_packages(root, folders);
  std::vector<fs::path> files = {kName};
  for (const fs::path& folder : folders) files.push_back(folder / kName);
  return files;
}

std::string path_of(void* symbol, const std::string& otherwise) {
  Dl_info info{};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return otherwise;
  return info.dli_fname;
}

/// The frontend opens libcudart by name and, where it sees two major versions, warns on standard error. This names the
/// toolkit's own; a choice that the user made stands.
void choose_runtime() {
  constexpr const char* kVariable = "CUDNN_FRONTEND_CUDART_LIB_NAME";
  for (const char* file : {"libcudart.so.13", "/usr/local/cuda/lib64/libcudart.so.13"}) {
    if (void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL)) {  // stays open: the frontend will open it again
      (void)handle;
      setenv(kVariable, file, 0);
      return;
    }
  }
}

/// Opens one file. @return the library, or one with only `problem`
Library open(const fs::path& file) {
  Library found;
  found.path = file.string();
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    found.problem = error == nullptr ? found.path + " can't be opened" : error;
    return found;
  }
  void* symbol = dlsym(handle, "cudnnGetVersion");
  if (symbol == nullptr) {
    found.problem = found.path + " has no cudnnGetVersion";
    dlclose(handle);
    return found;
  }
  found.path = path_of(symbol, found.path);
  found.version = reinterpret_cast<std::size_t (*)()>(symbol)();
  if (found.version < kOldestVersion) {
    found.problem = fmt::format("{} is cuDNN {}, and before {} gradients of packed sequences are wrong", found.path,
                                version_text(found.version), version_text(kOldestVersion));
    dlclose(handle);
    return found;
  }
  found.handle = handle;
  return found;
}

Library find() {
  std::vector<std::string> problems;
  for (const fs::path& file : candidates()) {
    std::error_code error;
    if (file.has_parent_path() && !fs::exists(file, error)) {
      problems.push_back(file.string() + " does not exist");
      continue;
    }
    Library found = open(file);
    if (found.handle != nullptr) {
      choose_runtime();
      return found;
    }
    problems.push_back(found.problem);
  }
  Library none;
  none.problem = fmt::format("cuDNN {} or later was not found: {}; ROTUNDA_CUDNN_PATH names the folder of {}",
                             version_text(kOldestVersion), fmt::join(problems, "; "), kName);
  return none;
}

}  // namespace

const Library& library() {
  static const Library found = find();
  return found;
}

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace rotunda::cudnn
