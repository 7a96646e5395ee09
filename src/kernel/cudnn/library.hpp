// cuDNN, found and opened at run time.
#pragma once

#include <cstddef>
#include <string>

namespace rotunda::cudnn {

/// 9.14 gives NaN dK and dV for head dim 256 with packed sequences and for sequences without queries; 9.19 is right.
inline constexpr std::size_t kOldestVersion = 91900;

struct Library {
  void* handle = nullptr;  ///< of dlopen; nullptr where `problem` is set
  std::string path;        ///< the file, where it is known
  std::size_t version = 0;
  std::string problem;  ///< why it can't be used, naming where it was looked for; empty where it can
};

/// The library, looked for once: in ROTUNDA_CUDNN_PATH alone where that is set; else where the dynamic loader looks, in
/// the CUDA toolkit, in a Python environment. Never throws; any thread.
[[nodiscard]] const Library& library();

/// "9.19.0"
[[nodiscard]] std::string version_text(std::size_t version);

}  // namespace rotunda::cudnn
