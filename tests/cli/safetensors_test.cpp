#include "cli/safetensors.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "rotunda/error.hpp"

namespace rotunda::cli {
namespace {

std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 255U);
  return file + header + std::string(data_bytes, '\0');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "x.safetensors");
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsNamesShapesOffsetsAndMetadata) {
  const auto header =
      parse(file_of(R"({"__metadata__":{"problem":"s_q=2"},"q":)" + entry("BF16", "[2,3]", "[0,12]") + R"(,"empty":)" +
                        entry("F32", "[0,7]", "[12,12]") + R"(,"scalar":)" + entry("I64", "[]", "[12,20]") + "}  ",
                    20));
  EXPECT_EQ(header.metadata.at("problem"), "s_q=2");
  EXPECT_EQ(header.tensors.at("q"), (TensorEntry{"BF16", {2, 3}, 0, 12}));
  EXPECT_EQ(header.tensors.at("empty"), (TensorEntry{"F32", {0, 7}, 12, 12}));
  EXPECT_EQ(header.tensors.at("scalar"), (TensorEntry{"I64", {}, 12, 20}));
}

TEST(Safetensors, AHugeShapeWithAZeroHasNoBytes) {
  const std::string huge = "[4611686018427387904,4611686018427387904,0]";
  EXPECT_EQ(parse(file_of("{\"a\":" + entry("F64", huge, "[0,0]") + "}", 0)).tensors.size(), 1U);
}

struct BadFile {
  const char* name;
  std::string file;
  const char* message;  ///< must be part of what is said
};

std::string with_a(const std::string& value, std::size_t data) {
  return file_of("{\"a\":" + value + "}", data);
}

std::vector<BadFile> bad_files() {
  const std::string good = entry("F32", "[2]", "[0,8]");
  return {
      {"empty", "", "has 0 bytes"},
      {"seven_bytes", "1234567", "has 7 bytes"},
      {"header_beyond_file", file_of("{}", 0).substr(0, 9), "cut short: its header should have 2 bytes, 1 are there"},
      {"header_too_long", std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
       "header would have 18446744073709551615"},
      {"header_over_100_mb", std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "at most 100000000"},
      {"header_empty", file_of("", 4), "not valid JSON"},
      {"header_no_json", file_of("hello", 4), "not valid JSON"},
      {"header_cut_json", file_of("{\"a\":", 4), "not valid JSON"},
      {"header_bad_utf8", file_of("{\"\xff\":1}", 4), "not valid JSON"},
      {"header_two_values", file_of("{} {}", 0), "not valid JSON"},
      {"header_array", file_of("[1,2]", 0), "is a JSON array"},
      {"header_number", file_of("3", 0), "is a JSON number"},
      {"name_twice", file_of("{\"a\":" + good + ",\"a\":" + good + "}", 8), "names \"a\" twice"},
      {"field_twice", with_a(R"({"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]})", 8),
       "\"dtype\" twice"},
      {"entry_number", with_a("7", 0), "its entry is a JSON number"},
      {"entry_null", with_a("null", 0), "its entry is a JSON null"},
      {"no_dtype", with_a(R"({"shape":[2],"data_offsets":[0,8]})", 8), "dtype is missing"},
      {"no_shape", with_a(R"({"dtype":"F32","data_offsets":[0,8]})", 8), "shape is missing"},
      {"no_offsets", with_a(R"({"dtype":"F32","shape":[2]})", 8), "data_offsets is missing"},
      {"odd_field", with_a(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", 8), "unknown field \"x\""},
      {"dtype_number", with_a(R"({"dtype":3,"shape":[2],"data_offsets":[0,8]})", 8), "dtype is a JSON number"},
      {"dtype_unknown", with_a(entry("F33", "[2]", "[0,8]"), 8), "dtype \"F33\" is unknown"},
      {"dtype_lower_case", with_a(entry("bf16", "[4]", "[0,8]"), 8), "dtype \"bf16\" is unknown"},
      {"shape_object", with_a(entry("F32", "{}", "[0,8]"), 8), "shape is a JSON object"},
      {"shape_negative", with_a(entry("F32", "[-2]", "[0,8]"), 8), "shape holds -2"},
      {"shape_fraction", with_a(entry("F32", "[2.5]", "[0,8]"), 8), "shape holds 2.5"},
      {"shape_text", with_a(entry("F32", "[\"2\"]", "[0,8]"), 8), "shape holds \"2\""},
      {"shape_beyond_63_bits", with_a(entry("F32", "[18446744073709551615]", "[0,8]"), 8), "shape holds 184467"},
      {"shape_overflow", with_a(entry("F32", "[4294967296,4294967296]", "[0,8]"), 8), "more bytes than 64 bits"},
      {"shape_overflows_to_fit", with_a(entry("F32", "[9223372036854775807,2]", "[0,8]"), 8),
       "more bytes than 64 bits"},
      {"shape_half_bytes", with_a(entry("F4", "[3]", "[0,1]"), 1), "does not fill whole bytes"},
      {"shape_too_small", with_a(entry("F32", "[1]", "[0,8]"), 8), "F32[1] needs 4 bytes"},
      {"shape_too_large", with_a(entry("F32", "[3]", "[0,8]"), 8), "F32[3] needs 12 bytes"},
      {"one_offset", with_a(entry("F32", "[2]", "[8]"), 8), "has 1 numbers, not 2"},
      {"three_offsets", with_a(entry("F32", "[2]", "[0,4,8]"), 8), "has 3 numbers, not 2"},
      {"offsets_backwards", with_a(entry("F32", "[2]", "[8,0]"), 8), "[8, 0] run backwards"},
      {"offsets_negative", with_a(entry("F32", "[2]", "[-8,0]"), 8), "data_offsets holds -8"},
      {"beyond_file", with_a(entry("F32", "[2]", "[4,12]"), 8), "end at byte 12, but the file holds 8"},
      {"far_beyond_file", with_a(entry("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 8),
       "it is cut short"},
      {"no_data", with_a(good, 0), "but the file holds 0 bytes of data: it is cut short"},
      {"overlap", file_of("{\"a\":" + good + ",\"b\":" + entry("F32", "[2]", "[4,12]") + "}", 12),
       "\"a\" and \"b\" overlap at byte 4"},
      {"same_place", file_of("{\"a\":" + good + ",\"b\":" + good + "}", 8), "overlap at byte 0"},
      {"hole", file_of("{\"a\":" + good + ",\"b\":" + entry("F32", "[2]", "[12,20]") + "}", 20),
       "from byte 8 on belong to no tensor"},
      {"hole_in_front", with_a(entry("F32", "[2]", "[4,12]"), 12), "from byte 0 on belong to no tensor"},
      {"trailing_bytes", with_a(good, 9), "from byte 8 on belong to no tensor"},
      {"metadata_array", file_of("{\"__metadata__\":[]}", 0), "metadata is a JSON array"},
      {"metadata_number", file_of("{\"__metadata__\":{\"a\":1}}", 0), "metadata \"a\" is a JSON number"},
  };
}

class Malformed : public testing::TestWithParam<BadFile> {};

TEST_P(Malformed, GivesOneClearSentence) {
  try {
    (void)parse(GetParam().file);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    const std::string what = error.what();
    EXPECT_EQ(what.find("x.safetensors"), 0U) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_NE(what.find(GetParam().message), std::string::npos) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Malformed, testing::ValuesIn(bad_files()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, LongNamesAreCutInMessages) {
  try {
    (void)parse(file_of("{\"" + std::string(5000, 'n') + "\":1}", 0));
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 200U);
  }
}

class SafetensorsFiles : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "safetensors_test_" + std::to_string(::getpid()) + ".safetensors";
  void TearDown() override { std::remove(path_.c_str()); }
};

TEST_F(SafetensorsFiles, WhatIsWrittenIsRead) {
  const std::vector<std::uint16_t> halves{1, 2, 3};
  const std::vector<float> floats{1.5F, -2.0F};
  write_safetensors(path_,
                    {{"a", "BF16", {3}, std::as_bytes(std::span(halves))},
                     {"z", "F32", {1, 2}, std::as_bytes(std::span(floats))},
                     {"none", "F32", {0, 2}, {}}},
                    {{"problem", "s_q=3 \"quoted\""}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.header().metadata.at("problem"), "s_q=3 \"quoted\"");
  EXPECT_EQ(file.header().data_begin % 8, 0);
  EXPECT_EQ(file.header().tensors.at("none").shape, (std::vector<std::int64_t>{0, 2}));
  const auto z = file.bytes(file.header().tensors.at("z"));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(z.data()) % 4, 0U) << "wide tensors come first, aligned";
  EXPECT_EQ(std::memcmp(z.data(), floats.data(), 8), 0);
  const auto a = file.bytes(file.header().tensors.at("a"));
  EXPECT_EQ(std::memcmp(a.data(), halves.data(), 6), 0);
}

TEST_F(SafetensorsFiles, WritingLeavesNoTemporaryFile) {
  write_safetensors(path_, {}, {});
  EXPECT_TRUE(SafetensorsFile(path_).header().tensors.empty());
  for (const auto& found : std::filesystem::directory_iterator(testing::TempDir())) {
    EXPECT_FALSE(found.path().string().starts_with(path_ + ".")) << found.path();
  }
}

TEST_F(SafetensorsFiles, UnreadableAndUnwritablePathsAreNamed) {
  EXPECT_THROW(SafetensorsFile("/nowhere/x.safetensors"), Error);
  EXPECT_THROW(SafetensorsFile{testing::TempDir()}, Error);
  EXPECT_THROW(write_safetensors("/nowhere/x.safetensors", {}, {}), Error);
  std::ofstream(path_).close();
  EXPECT_THROW(SafetensorsFile{path_}, Error) << "an empty file";
}

}  // namespace
}  // namespace rotunda::cli
