#include "cli/options.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "cli/atomic_file.hpp"
#include "support/error_test.hpp"

namespace rotunda::cli {
namespace {

Options parse(const std::vector<std::string>& arguments) {
  return parse_arguments(arguments).options.value();
}

TEST(Arguments, EveryCommonFlagIsRead) {
  const Options o = parse({"verify",
                           "--problem",
                           "s_q=4 h_q=2 d=8",
                           "--ranks",
                           "6",
                           "--schedule",
                           "a2a_p2p",
                           "--backward-schedule",
                           "p2p",
                           "--inner",
                           "3",
                           "--shard",
                           "balanced",
                           "--chunk-size",
                           "16",
                           "--kernel",
                           "reference",
                           "--kernel-scratch",
                           "3",
                           "--transport",
                           "local",
                           "--device",
                           "cpu",
                           "--threads",
                           "2",
                           "--timeout",
                           "1.5",
                           "--seed",
                           "9",
                           "--trace",
                           "t.json",
                           "--json",
                           "r.json",
                           "--quiet"});
  EXPECT_EQ(o.command, Command::verify);
  EXPECT_EQ(o.ranks_or_default(), 6);
  EXPECT_EQ(o.plan.schedule, ScheduleKind::a2a_p2p);
  EXPECT_EQ(o.plan.backward_schedule, ScheduleKind::p2p);
  EXPECT_EQ(o.plan.inner, 3);
  EXPECT_EQ(o.plan.shard, ShardKind::balanced);
  EXPECT_EQ(o.plan.chunk_size, 16);
  EXPECT_EQ(o.plan.kernel, "reference");
  EXPECT_EQ(o.plan.kernel_scratch, 3 << 20);
  EXPECT_EQ(o.plan.transport, "local");
  EXPECT_EQ(o.plan.device, Device::Kind::cpu);
  EXPECT_EQ(o.plan.threads, 2);
  EXPECT_EQ(o.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(o.seed, 9U);
  EXPECT_EQ(o.trace, "t.json");
  EXPECT_EQ(o.json, "r.json");
  EXPECT_TRUE(o.quiet);
}

TEST(Arguments, AutoLeavesTheChoiceOpen) {
  const Options o = parse({"run", "--in", "x", "--schedule", "auto", "--backward-schedule=auto", "--shard", "auto",
                           "--kernel", "auto", "--transport", "auto", "--device", "auto"});
  PlanOptions open;
  open.mixes = true;  // any backward, not the forward's
  EXPECT_EQ(o.plan, open);
  EXPECT_EQ(o.ranks_or_default(), 4);
}

TEST(Arguments, HelpAndVersionAreTexts) {
  EXPECT_NE(parse_arguments({"--help"}).text.find("Exit status"), std::string::npos);
  EXPECT_NE(parse_arguments({"bench", "--help"}).text.find("--baseline"), std::string::npos);
  EXPECT_EQ(parse_arguments({"--version"}).text.find("rotunda "), 0U);
}

TEST(Arguments, DevicesMeanCuda) {
  EXPECT_EQ(parse({"run", "--devices", "0,1"}).plan.devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(parse({"run", "--devices", "0,1"}).plan.device, Device::Kind::cuda);
}

TEST(Arguments, BaselinesAreAList) {
  EXPECT_TRUE(parse({"bench", "--graph"}).graph);
  EXPECT_EQ(parse({"bench", "--baseline", "ideal,torch_cpu"}).baselines,
            (std::vector<std::string>{"ideal", "torch_cpu"}));
}

TEST(Arguments, FlagsThatChangeNothingSaySo) {
  const auto warnings = [](const std::vector<std::string>& arguments) { return parse(arguments).warnings.size(); };
  EXPECT_EQ(warnings({"explain", "--seed", "1", "--timeout", "2", "--threads", "3", "--json", "j", "--trace", "t"}),
            2U);
  EXPECT_EQ(warnings({"plan", "--seed", "1", "--timeout", "2", "--json", "j"}), 2U);
  EXPECT_EQ(warnings({"plan", "--kernel-scratch", "1"}), 1U);
  EXPECT_EQ(warnings({"run", "--in", "x", "--seed", "1", "--timeout", "2"}), 1U);
  EXPECT_EQ(warnings({"demo", "--seed", "1", "--timeout", "2", "--trace", "t"}), 1U);
  EXPECT_EQ(warnings({"verify", "--seed", "1", "--timeout", "2", "--trace", "t"}), 0U);
  EXPECT_EQ(warnings({"verify", "--in", "x", "--seed", "1"}), 1U);
  EXPECT_EQ(warnings({"bench", "--seed", "1", "--python", "p", "--baseline", "torch_cpu"}), 0U);
  EXPECT_EQ(warnings({"bench", "--python", "p"}), 1U);
  EXPECT_ERROR((void)parse({"plan", "--trace", "t"}), ErrorKind::unsupported, "rotunda explain --trace");
}

struct BadUsage {
  const char* name;
  std::vector<std::string> arguments;
  const char* message;
};

class Usage : public testing::TestWithParam<BadUsage> {};

TEST_P(Usage, IsRefusedInOneSentence) {
  EXPECT_ERROR((void)parse_arguments(GetParam().arguments), ErrorKind::bad_input, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Bad, Usage,
    testing::Values(
        BadUsage{"nothing", {}, "no command given, allowed are demo, run"},
        BadUsage{"unknown_command",
                 {"verfy"},
                 "unknown command verfy, allowed are demo, run, verify, bench, explain, plan, "
                 "info, did you mean verify?"},
        BadUsage{"unknown_flag", {"run", "--rank", "4"}, "unknown option --rank of run, did you mean --ranks?"},
        BadUsage{"unknown_flag_equals", {"run", "--rnks=4"}, "did you mean --ranks?"},
        BadUsage{"flag_of_another_command", {"run", "--baseline", "ideal"}, "unknown option --baseline of run"},
        BadUsage{"stray_word", {"info", "more"}, "see rotunda info --help"},
        BadUsage{"missing_value", {"run", "--ranks"}, "--ranks"},
        BadUsage{"flag_twice", {"run", "--ranks", "2", "--ranks", "3"}, "--ranks"},
        BadUsage{"ranks_zero", {"run", "--ranks", "0"}, "--ranks is '0', allowed are whole numbers from 1 to 1024"},
        BadUsage{"ranks_word", {"run", "--ranks", "four"}, "--ranks is 'four'"},
        BadUsage{"ranks_fraction", {"run", "--ranks", "2.5"}, "--ranks is '2.5'"},
        BadUsage{"ranks_huge", {"run", "--ranks", "99999999999999999999"}, "--ranks is '99999999999999999999'"},
        BadUsage{"ranks_trailing", {"run", "--ranks", "4x"}, "--ranks is '4x'"},
        BadUsage{"schedule", {"run", "--schedule", "ring"}, "--schedule: "},
        BadUsage{
            "shard",
            {"run", "--shard", "zigzag"},
            "--shard: shard 'zigzag': allowed are contiguous, dual_chunk, dual_chunk_doc, striped, balanced, auto"},
        BadUsage{"device", {"run", "--device", "tpu"}, "--device is 'tpu', allowed are auto, cpu, cuda"},
        BadUsage{"devices_on_cpu", {"run", "--device", "cpu", "--devices", "0"}, "but --device is cpu"},
        BadUsage{"devices_empty", {"run", "--devices", "0,,1"}, "--devices is ''"},
        BadUsage{"timeout_zero", {"run", "--timeout", "0"}, "--timeout is '0', allowed are seconds above 0"},
        BadUsage{"timeout_word", {"run", "--timeout", "soon"}, "--timeout is 'soon'"},
        BadUsage{"timeout_nan", {"run", "--timeout", "nan"}, "--timeout is 'nan'"},
        BadUsage{"repeat_few", {"bench", "--repeat", "5"}, "--repeat is '5', allowed are whole numbers from 20"},
        BadUsage{"seed_negative", {"verify", "--seed=-1"}, "--seed is '-1'"},
        BadUsage{"problem_empty", {"verify", "--problem="}, "--problem"}),
    [](const auto& test) { return std::string(test.param.name); });

class Environment : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv("ROTUNDA_TIMEOUT"); }
};

TEST_F(Environment, TimeoutIsTheDefaultAndTheFlagWins) {
  ::setenv("ROTUNDA_TIMEOUT", "2", 1);
  EXPECT_EQ(parse({"run"}).timeout, std::chrono::seconds(2));
  EXPECT_EQ(parse({"run", "--timeout", "3"}).timeout, std::chrono::seconds(3));
  ::setenv("ROTUNDA_TIMEOUT", "never", 1);
  EXPECT_ERROR((void)parse({"run"}), ErrorKind::bad_input, "ROTUNDA_TIMEOUT is 'never'");
}

TEST(ProblemFlag, ReadsTextAndFiles) {
  Options o;
  EXPECT_FALSE(problem_of(o).has_value());
  EXPECT_ERROR((void)required_problem(o), ErrorKind::bad_input, "--problem is missing");
  o.problem = "s_q=4 h_q=2 d=8";
  EXPECT_EQ(required_problem(o).s_q, 4);
  const std::string path = testing::TempDir() + "options_test_problem.json";
  write_text(path, R"({"s_q": 5, "h_q": 2, "d": 8})");
  o.problem = "@" + path;
  EXPECT_EQ(required_problem(o).s_q, 5);
  write_text(path, R"({"s_q": 5, "h_q": 2, "d": "8"})");
  EXPECT_ERROR((void)required_problem(o), ErrorKind::bad_input, path + ": problem: d=\"8\": not an integer");
  write_text(path, R"({"s_q": 5, "h_q": 2, "d": 8, "softcap": 30})");
  EXPECT_ERROR((void)required_problem(o), ErrorKind::unsupported, path + ": problem: not supported: softcap=30");
  std::remove(path.c_str());
  EXPECT_ERROR((void)required_problem(o), ErrorKind::bad_input, "cannot read");
  o.problem = "@";
  EXPECT_ERROR((void)required_problem(o), ErrorKind::bad_input, "--problem is '@', without the file's name");
}

TEST(Suggestion, OnlyWhatIsClose) {
  EXPECT_EQ(suggestion("--rnaks", {"--ranks", "--inner"}), ", did you mean --ranks?");
  EXPECT_EQ(suggestion("--elephant", {"--ranks", "--inner"}), "");
}

}  // namespace
}  // namespace rotunda::cli
