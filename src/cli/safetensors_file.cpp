#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/safetensors.hpp"

namespace rotunda::cli {
namespace {

/// Maps a regular file read-only. @throws Error bad_input
std::span<const std::byte> map_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(ErrorKind::bad_input, "cannot read {}: {}", path, std::strerror(errno));
  struct stat info {};
  const bool regular = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular || info.st_size == 0) {
    ::close(descriptor);
    if (!regular) fail(ErrorKind::bad_input, "cannot read {}: it is not a regular file", path);
    return {};
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int why = errno;
  ::close(descriptor);
  if (address == MAP_FAILED) fail(ErrorKind::bad_input, "cannot map {}: {}", path, std::strerror(why));
  return {static_cast<const std::byte*>(address), size};
}

void unmap(std::span<const std::byte> mapped) {
  if (!mapped.empty()) ::munmap(const_cast<std::byte*>(mapped.data()), mapped.size());
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), mapped_(map_file(path)) {
  try {
    header_ = parse_safetensors(mapped_, path_);
  } catch (...) {
    unmap(mapped_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  unmap(mapped_);
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return mapped_.subspan(static_cast<std::size_t>(header_.data_begin + entry.begin),
                         static_cast<std::size_t>(entry.end - entry.begin));
}

void write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return std::tuple(-bits_of_code(a.dtype), a.name) < std::tuple(-bits_of_code(b.dtype), b.name);
  });
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", std::array{offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<unsigned char>(text.size() >> (8 * i));

  AtomicFile file(path);
  file.write(length.data(), length.size());
  file.write(text);
  for (const TensorToWrite& tensor : tensors) file.write(tensor.bytes.data(), tensor.bytes.size());
  file.commit();
}

}  // namespace rotunda::cli
