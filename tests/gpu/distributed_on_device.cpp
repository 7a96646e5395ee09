#include "gpu/distributed_on_device.hpp"

#include <sstream>

#include "base/environment.hpp"

namespace rotunda::testing {

std::vector<int> test_devices() {
  std::vector<int> devices;
  std::istringstream list(environment("ROTUNDA_TEST_DEVICES").value_or("0"));
  for (std::string device; std::getline(list, device, ',');) devices.push_back(std::stoi(device));
  return devices;
}

std::string skip_reason() {
  return why_no_cuda();
}

}  // namespace rotunda::testing
