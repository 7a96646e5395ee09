// Launches on the current device's default stream, for device_problem.cpp.
#pragma once

#include <cstdint>

#include "rotunda/tensor.hpp"

namespace rotunda::testing {

void launch_fill(const TensorView& view, std::uint64_t key);
void launch_nan(const TensorView& view);
void launch_compare(const TensorView& got, const TensorView& exact, unsigned* most, unsigned long long* misplaced);
void launch_bits(const TensorView& a, const TensorView& b, unsigned long long* differing);

}  // namespace rotunda::testing
