#include "cli/record.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "cli/atomic_file.hpp"
#include "cli/table.hpp"
#include "cli/timing.hpp"
#include "cli/verification.hpp"
#include "support/error_test.hpp"

namespace rotunda::cli {
namespace {

class JsonFile : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "record_test_" + std::to_string(::getpid()) + ".json";
  void TearDown() override { std::remove(path_.c_str()); }
};

TEST_F(JsonFile, GrowsByARecordAtATime) {
  append_json(path_, {{{"a", 1}}});
  append_json(path_, {{{"b", 2}}, {{"c", 3}}});
  const auto array = nlohmann::json::parse(read_text(path_));
  ASSERT_EQ(array.size(), 3U);
  EXPECT_EQ(array[0]["a"], 1);
  EXPECT_EQ(array[2]["c"], 3);
}

TEST_F(JsonFile, AnEmptyFileIsAnEmptyArray) {
  write_text(path_, "\n");
  append_json(path_, {{{"a", 1}}});
  EXPECT_EQ(nlohmann::json::parse(read_text(path_)).size(), 1U);
}

TEST_F(JsonFile, WhatIsNoArrayIsRefusedAndKept) {
  for (const char* text : {"{}", "not json", "3"}) {
    write_text(path_, text);
    EXPECT_ERROR(append_json(path_, {{{"a", 1}}}), ErrorKind::bad_input, "holds no JSON array");
    EXPECT_EQ(read_text(path_), text);
  }
}

TEST(Record, HasTheContractsFieldsInOrder) {
  Record record;
  record.name = "n";
  record.err_ratio["out"] = 1.23456789;
  record.baselines["ideal"] = {1.5, 0, 2};
  record.times.forward = 0.00123456789;
  const auto json = to_json(record);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  const std::vector<std::string> wanted{
      "name",       "problem",   "ranks",    "gpus",       "schedule",   "backward_schedule",
      "kernel",     "transport", "device",   "versions",   "date",       "command",
      "fwd_ms",     "bwd_ms",    "both_ms",  "fwd_tflops", "bwd_tflops", "peak_bytes",
      "exposed_ms", "err_ratio", "baselines"};
  EXPECT_EQ(keys, wanted);
  EXPECT_EQ(json["fwd_ms"], 1.2346);
  EXPECT_TRUE(json["bwd_ms"].is_null()) << "what was not measured has no figure";
  EXPECT_EQ(json["err_ratio"]["out"], 1.235);
  EXPECT_EQ(json["baselines"]["ideal"]["fwd"], 1.5);
  EXPECT_TRUE(json["baselines"]["ideal"]["bwd"].is_null());
  EXPECT_EQ(json["date"].get<std::string>().size(), 10U);
}

TEST(Record, TellsWhatWasNotCompared) {
  Record record;
  add_grades(record, {{.tensor = "out", .ratio = 0.5, .skipped = 8}, {.tensor = "lse", .ratio = 0.25}});
  const auto json = to_json(record);
  EXPECT_EQ(json["err_ratio"]["lse"], 0.25);
  EXPECT_EQ(json["skipped"].dump(), R"({"out":8})");
  EXPECT_NE(grades_text({{.tensor = "out", .skipped = 8}, {.tensor = "lse"}, {.tensor = "dq", .skipped = 1234}})
                .find("not compared, for the true value is NaN: 8 of out, 1,234 of dq\n"),
            std::string::npos);
  EXPECT_EQ(grades_text({{.tensor = "out"}}).find("not compared"), std::string::npos);
}

TEST(Record, FlopsAreThoseOfVisiblePairs) {
  EXPECT_EQ(forward_flops(parse_problem("s_q=4 h_q=3 d=8 d_v=2 mask=causal")), 2.0 * 3 * 10 * 10);
}

TEST(Median, TakesTheMiddle) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 2, 100}), 3);
}

TEST(Table, AlignsLeftAndRight) {
  Table table({"name", "value"}, 1);
  table.add({"a", "1"});
  table.add({"longer", "12345"});
  EXPECT_EQ(table.text(), "name    value\na           1\nlonger  12345\n");
}

TEST(Figures, AreShort) {
  EXPECT_EQ(figure(0), "0");
  EXPECT_EQ(figure(12.345), "12.3");
  EXPECT_EQ(figure(1234.5), "1234");
  EXPECT_EQ(figure(0.012345), "0.0123");
  EXPECT_EQ(figure(1e-9), "1.00e-09");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(grouped(1048576), "1,048,576");
  EXPECT_EQ(grouped(-1000), "-1,000");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(flops_text(2.5e9), "2.50 G");
}

}  // namespace
}  // namespace rotunda::cli
