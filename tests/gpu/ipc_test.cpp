#include "gpu/process_suite.hpp"

namespace rotunda::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Ipc, ProcessSuite,
                         ::testing::Values(ProcessCase{"ipc", 2}, ProcessCase{"ipc", 3}, ProcessCase{"ipc", 4}),
                         process_name);

}  // namespace
}  // namespace rotunda::testing
