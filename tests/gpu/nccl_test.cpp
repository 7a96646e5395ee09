#include "gpu/process_suite.hpp"

namespace rotunda::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Nccl, ProcessSuite,
                         ::testing::Values(ProcessCase{"nccl", 2, true}, ProcessCase{"nccl", 4, true}), process_name);

}  // namespace
}  // namespace rotunda::testing
