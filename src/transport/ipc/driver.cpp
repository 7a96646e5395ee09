#include "transport/ipc/driver.hpp"

#include "base/cuda/check.hpp"
#include "base/fail.hpp"

namespace rotunda::ipc {
namespace {

constexpr unsigned kVersion = 12000;  // of the interface below

template <class Function>
Function entry(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) return reinterpret_cast<Function>(found);
  (void)cudaGetLastError();
  fail(ErrorKind::unsupported,
       "the CUDA driver has no {}, which transport ipc needs: a driver of CUDA 12 or later does", name);
}

struct Driver {
  decltype(&cuStreamWriteValue32) write = entry<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
  decltype(&cuStreamWaitValue32) wait = entry<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
  decltype(&cuMemGetAddressRange) range = entry<decltype(&cuMemGetAddressRange)>("cuMemGetAddressRange");
  decltype(&cuPointerGetAttribute) attribute = entry<decltype(&cuPointerGetAttribute)>("cuPointerGetAttribute");
  decltype(&cuGetErrorString) text = entry<decltype(&cuGetErrorString)>("cuGetErrorString");
};

const Driver& driver() {
  static const Driver once;
  return once;
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  (void)driver().text(result, &text);
  fail(ErrorKind::device, "{} failed: {} ({})", call, text == nullptr ? "?" : text, static_cast<int>(result));
}

CUstream native(Stream stream) {
  return static_cast<CUstream>(stream.handle);
}

}  // namespace

void write_flag(CUdeviceptr flag, unsigned value, Stream stream) {
  check(driver().write(native(stream), flag, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

void wait_flag(CUdeviceptr flag, unsigned value, Stream stream) {
  check(driver().wait(native(stream), flag, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

bool find_allocation(CUdeviceptr address, Allocation& found) {
  if (driver().range(&found.base, &found.bytes, address) != CUDA_SUCCESS) return false;
  return driver().attribute(&found.number, CU_POINTER_ATTRIBUTE_BUFFER_ID, found.base) == CUDA_SUCCESS;
}

void require_driver() {
  (void)driver();
}

}  // namespace rotunda::ipc
