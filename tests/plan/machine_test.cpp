// Calibrations: kept by device and version, used by plans, and no obstacle where they are damaged.
#include "rotunda/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "rotunda/plan.hpp"

namespace rotunda {
namespace {

namespace fs = std::filesystem;

const char* const kForwardText = "s_q=4096 h_q=8 h_kv=2 d=80 mask=causal";

/// A folder ROTUNDA_CACHE of its own for every test: files are read once a process.
class CalibrationFile : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    ASSERT_EQ(setenv("ROTUNDA_CACHE", folder_.c_str(), 1), 0);
  }
  void TearDown() override {
    unsetenv("ROTUNDA_CACHE");
    fs::remove_all(folder_);
  }
  static void write(const std::string& text) { std::ofstream(calibration_file()) << text; }
  static void keep(const Calibration& calibration) { write(with_calibration("", Device{}, calibration)); }
  /// What planning says on standard error, beside making a plan for round figures.
  static std::string warnings_of_planning() {
    testing::internal::CaptureStderr();
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(make_plan(parse_problem(kForwardText), {}, rank, 2)->machine, Machine{});
    return testing::internal::GetCapturedStderr();
  }

 private:
  const std::string folder_ =
      testing::TempDir() + "rotunda_" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(CalibrationFile, IsNotMissed) {
  EXPECT_EQ(warnings_of_planning(), "");
  unsetenv("ROTUNDA_CACHE");
  EXPECT_EQ(calibration_file(), "");
  EXPECT_EQ(find_calibration(Device{}), nullptr);
}

TEST_F(CalibrationFile, GivesPlansTheirFigures) {
  keep({{{"cpu", 16, 64, 1e9}, {"cpu", 16, 128, 2e9}, {"cpu", 16, 256, 3e9}, {"cpu", 32, 128, 4e9}}, 5e9, 6e-6, 0});
  PlanOptions options;
  options.threads = 3;
  Machine machine = make_plan(parse_problem(kForwardText), options, 0, 2)->machine;
  EXPECT_EQ(machine.flops_per_second, 3 * 2e9) << "of three threads, at the next head dim above 80";
  EXPECT_EQ(machine.bytes_per_second, 5e9);
  EXPECT_EQ(machine.seconds_per_message, 6e-6);
  EXPECT_EQ(machine.memory_bytes_per_second, Machine{}.memory_bytes_per_second) << "was not measured";
  EXPECT_EQ(machine.name, describe(Device{}));
  machine = make_plan(parse_problem("dtype=fp32 s_q=64 h_q=8 d=512"), options, 0, 2)->machine;
  EXPECT_EQ(machine.flops_per_second, 3 * 4e9) << "of fp32, at the nearest head dim there is";
  options.kernel = "reference";
  EXPECT_EQ(make_plan(parse_problem(kForwardText), options, 0, 2)->machine.flops_per_second,
            Machine{}.flops_per_second);
}

TEST_F(CalibrationFile, ChangesWhatIsChosen) {
  // Of 6 heads a2a gives some of 4 ranks twice as many as others, and moves less than a ring.
  const Problem problem = parse_problem("s_q=4096 h_q=6 d=64 mask=causal");
  const auto choice = [&](const Calibration& calibration, const char* subfolder) {
    const fs::path folder = fs::path(calibration_file()).parent_path() / subfolder;
    fs::create_directories(folder);
    setenv("ROTUNDA_CACHE", folder.c_str(), 1);
    keep(calibration);
    const auto plan = make_plan(problem, {}, 0, 4);
    setenv("ROTUNDA_CACHE", folder.parent_path().c_str(), 1);
    return plan->forward_schedule.kind;
  };
  EXPECT_EQ(choice({{{"cpu", 16, 64, 1e12}}, 1e6, 1e-6, 0}, "links"), ScheduleKind::a2a);
  EXPECT_NE(choice({{{"cpu", 16, 64, 1e6}}, 1e12, 1e-6, 0}, "kernel"), ScheduleKind::a2a);
}

TEST_F(CalibrationFile, KeepsOtherDevices) {
  const std::string other = R"({"another CPU, rotunda 0.0.1": {"rates": []}})";
  write(with_calibration(with_calibration(other, Device{}, {{}, 1e9, 0, 0}), Device{}, {{}, 2e9, 0, 0}));
  EXPECT_EQ(find_calibration(Device{})->bytes_per_second, 2e9);
  std::ostringstream text;
  text << std::ifstream(calibration_file()).rdbuf();
  EXPECT_NE(text.str().find("another CPU, rotunda 0.0.1"), std::string::npos);
}

TEST_F(CalibrationFile, OfAnotherDeviceOrVersionIsNotUsed) {
  write(R"({"another CPU, rotunda 0.0.1": {"rates": [], "bytes_per_second": 1}})");
  EXPECT_EQ(warnings_of_planning(), "");
}

/// Becomes a value of any type.
struct Anything {
  template <class Value>
  operator Value() const;  // NOLINT(google-explicit-constructor)
};

/// The fields of a struct: as many values as it can be made of.
template <class Struct, class... Values>
constexpr int count_fields() {
  if constexpr (requires { Struct{Values{}..., Anything{}}; }) {
    return count_fields<Struct, Values..., Anything>();
  } else {
    return sizeof...(Values);
  }
}

TEST(Machine, EveryFieldIsInTheList) {
  Machine machine;
  int listed = 0;
  for_fields(machine, [&](const char*, const auto&) { ++listed; });
  EXPECT_EQ(listed, count_fields<Machine>());
}

class DamagedFile : public CalibrationFile, public testing::WithParamInterface<std::string> {};

TEST_P(DamagedFile, IsToldOnceAndPlansGoOn) {
  write(GetParam());
  const std::string said = warnings_of_planning();
  EXPECT_EQ(said.find("rotunda: warning: the calibration in "), 0U) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
  EXPECT_EQ(find_calibration(Device{}), nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, DamagedFile,
                         testing::Values("", "{\"a\": ", "[1]", "{\"a\": 1}", "{\"a\": {\"rates\": 1}}",
                                         "{\"a\": {\"rates\": [{\"kernel\": \"cpu\"}]}}",
                                         "{\"a\": {\"rates\": [], \"bytes_per_second\": 0}}",
                                         "{\"a\": {\"rates\": [], \"bytes_per_second\": \"fast\"}}"));

TEST_F(CalibrationFile, ThatIsAFolderIsToldToo) {
  fs::create_directories(calibration_file());
  EXPECT_NE(warnings_of_planning().find("it can't be read"), std::string::npos);
}

}  // namespace
}  // namespace rotunda
