// base in a build without CUDA: there is no device, so nothing below the first two is ever reached.
#include "base/cuda_device.hpp"
#include "base/fail.hpp"

namespace rotunda::cuda {
namespace {

[[noreturn]] void none() {
  fail(ErrorKind::unsupported, "{}", why_none());
}

}  // namespace

int device_count() {
  return 0;
}
std::string why_none() {
  return "this build is without CUDA: build with the preset cuda (CMake -DROTUNDA_CUDA=ON)";
}
std::string describe(int) {
  none();
}
bool is_built_for(int) {
  none();
}
std::byte* allocate(int, std::int64_t) {
  none();
}
void release(int, std::byte*) noexcept {}
Stream make_stream(int) {
  none();
}
void destroy_stream(int, Stream) noexcept {}
void copy_bytes(void*, const void*, std::int64_t, int, Stream) {
  none();
}
void set_bytes(void*, unsigned char, std::int64_t, int, Stream) {
  none();
}
void* record_event(int, Stream) {
  none();
}
void destroy_event(void*) noexcept {}
double seconds_between(void*, void*) {
  none();
}
bool is_reachable(const void*, int) {
  none();
}
void synchronize(int, Stream) {
  none();
}

}  // namespace rotunda::cuda
