// What launchers say, as tables of variables.
#include "transport/rendezvous/launch.hpp"

#include <gtest/gtest.h>

#include <map>

#include "support/error_test.hpp"

namespace rotunda::testing {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<ProcessGroup> find(const Variables& variables, long parent = 77) {
  return find_process_group(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      parent);
}

TEST(Launch, NobodySaysAnything) {
  EXPECT_FALSE(find({}).has_value());
  EXPECT_FALSE(find({{"RANK", "1"}}).has_value());
  // A batch script is no rank; a step is.
  EXPECT_FALSE(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "9"}}).has_value());
}

TEST(Launch, Torchrun) {
  const Variables base{{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "node7"},
                       {"MASTER_PORT", "29500"}};
  const auto group = find(base);
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->rank, 5);
  EXPECT_EQ(group->size, 8);
  EXPECT_EQ(group->local_rank, 1);
  EXPECT_EQ(group->address, "node7:29500");
  // torchrun's own store is at that port.
  Variables elastic = base;
  elastic["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(find(elastic)->address, "node7:29501");
  elastic["LOCAL_WORLD_SIZE"] = "8";
  EXPECT_TRUE(find(elastic)->address.starts_with("unix:/tmp/rotunda-"));
}

TEST(Launch, AUnixSocketIsAnAddress) {
  EXPECT_EQ(find({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "unix:/tmp/x.sock"}})->address,
            "unix:/tmp/x.sock");
}

TEST(Launch, MpirunOnOneHost) {
  const Variables base{{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const auto group = find(base);
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->rank, 1);
  EXPECT_TRUE(group->address.starts_with("unix:/tmp/rotunda-")) << group->address;
  EXPECT_EQ(group->address, find(base)->address);
  EXPECT_NE(group->address, find(base, 78)->address);  // another job
  Variables named = base;
  named["PMIX_NAMESPACE"] = "prterun-1";
  EXPECT_EQ(find(named, 1)->address, find(named, 2)->address);
  EXPECT_EQ(find({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}})->size, 3);
}

TEST(Launch, SeveralHostsNeedAnAddress) {
  Variables two{{"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_ERROR((void)find(two), ErrorKind::bad_input, "set MASTER_ADDR and MASTER_PORT");
  two["MASTER_ADDR"] = "a.example";
  two["MASTER_PORT"] = "4000";
  EXPECT_EQ(find(two)->address, "a.example:4000");
}

TEST(Launch, Slurm) {
  Variables step{{"SLURM_PROCID", "3"},
                 {"SLURM_STEP_NUM_TASKS", "4"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_JOB_ID", "123456"},
                 {"SLURM_STEP_NUM_NODES", "2"},
                 {"SLURM_STEP_NODELIST", "gpu[03-04]"}};
  const auto group = find(step);
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->local_rank, 1);
  EXPECT_TRUE(group->address.starts_with("gpu03:2")) << group->address;
  step["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_TRUE(find(step)->address.starts_with("unix:"));
}

TEST(Launch, FirstHost) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("n[3,5-9],m"), "n3");
  EXPECT_EQ(first_host("gpu[007-010]"), "gpu007");
  EXPECT_EQ(first_host("a,n[1-2]"), "a");
}

TEST(Launch, NonsenseIsNamed) {
  EXPECT_ERROR((void)find({{"RANK", "two"}, {"WORLD_SIZE", "4"}}), ErrorKind::bad_input, "RANK is 'two'");
  EXPECT_ERROR((void)find({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), ErrorKind::bad_input, "from 0 to 3");
  EXPECT_ERROR((void)find({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), ErrorKind::bad_input, "WORLD_SIZE is '0'");
}

}  // namespace
}  // namespace rotunda::testing
