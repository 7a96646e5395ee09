// Printing a parsed problem gives a text that parses to the same problem; so does JSON with the same keys.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "problem/value.hpp"
#include "support/random_problem.hpp"

namespace rotunda {
namespace {

using testing::random_problem;

constexpr std::uint64_t kProblems = 4000;

/// The text form as JSON, by its own rules: what looks like a number is one, lists become arrays.
nlohmann::json json_value(const std::string& key, const std::string& value) {
  if (key == "slices") return nlohmann::json::parse(value);
  const bool list = key.starts_with("cu_") || key.starts_with("used_") || key.starts_with("lens_");
  if (list || key == "window") {
    auto array = nlohmann::json::array();
    std::istringstream items(value);
    for (std::string item; std::getline(items, item, ',');) {
      array.push_back(item == "inf" ? nlohmann::json() : nlohmann::json(std::stoll(item)));
    }
    return array;
  }
  if (key == "max_logit" || key == "grad") return value == "1";
  if (nlohmann::json::accept(value)) return nlohmann::json::parse(value);
  return value;
}

std::string as_json(const std::string& text) {
  auto object = nlohmann::json::object();
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    object[word.substr(0, equals)] = json_value(word.substr(0, equals), word.substr(equals + 1));
  }
  return object.dump();
}

TEST(RoundTrip, TextAndJsonGiveTheSameProblem) {
  for (std::uint64_t seed = 0; seed < kProblems; ++seed) {
    const Problem p = random_problem(seed);
    const std::string text = to_text(p);
    ASSERT_EQ(parse_problem(text), p) << "seed " << seed << ": " << text;
    ASSERT_EQ(to_text(parse_problem(text)), text);
    const std::string json = as_json(text);
    ASSERT_EQ(parse_problem(json), p) << "seed " << seed << ": " << json;
    EXPECT_EQ(text.find("mask=") == std::string::npos, p.slices.has_value()) << text;
  }
}

TEST(RoundTrip, NormalizeIsIdempotent) {
  for (std::uint64_t seed = 0; seed < kProblems; ++seed) {
    const Problem p = random_problem(seed);
    Problem again = p;
    normalize(again);
    ASSERT_EQ(again, p) << "seed " << seed << ": " << to_text(p);
  }
}

struct Printed {
  const char* given;
  const char* printed;
};

TEST(RoundTrip, PrintsKeysInOrderWithoutDefaults) {
  const Printed cases[] = {
      {"s_q=8 h_q=2 d=64", "s_q=8 h_q=2 d=64 mask=none"},
      {"\n d=64\th_q=2\r\n s_q=8 ", "s_q=8 h_q=2 d=64 mask=none"},
      {"dtype=bf16 layout=bshd b=1 s_q=8 s_k=8 h_q=2 h_kv=2 d=64 d_v=64 window=inf,inf align=top_left prefix=0 "
       "lens_q=8 lens_k=8 scale=0.125 sink=none max_logit=0 deterministic=0 grad=0",
       "s_q=8 h_q=2 d=64 mask=none"},
      {"s_q=8 h_q=2 d=64 mask=causal align=bottom_right", "s_q=8 h_q=2 d=64 mask=causal_bottom_right"},
      {"s_q=8 h_q=2 d=64 mask=causal_bottom_right align=bottom_right", "s_q=8 h_q=2 d=64 mask=causal_bottom_right"},
      {"s_q=8 h_q=2 d=64 mask=none align=bottom_right", "s_q=8 h_q=2 d=64 mask=none align=bottom_right"},
      {"s_q=8 h_q=2 d=64 mask=causal window=inf,5", "s_q=8 h_q=2 d=64 mask=causal"},
      {"s_q=8 h_q=2 d=64 mask=causal window=3,5", "s_q=8 h_q=2 d=64 mask=causal window=3,0"},
      {"s_q=8 h_q=2 d=64 window=9223372036854775807,2", "s_q=8 h_q=2 d=64 mask=none window=inf,2"},
      {"s_q=8 s_k=0 h_q=2 d=64", "s_q=8 s_k=0 h_q=2 d=64 mask=none"},
      {"s_q=8 h_q=2 d=64 scale=0.1", "s_q=8 h_q=2 d=64 mask=none scale=0.1"},
      {"s_q=8 h_q=2 d=64 scale=1e-3 grad=1 sink=zero", "s_q=8 h_q=2 d=64 mask=none scale=0.001 sink=zero grad=1"},
      {"layout=thd h_q=1 d=8 cu_q=0", "layout=thd h_q=1 d=8 mask=none cu_q=0"},
      {"layout=thd h_q=1 d=8 cu_q=0,10 used_q=7", "layout=thd h_q=1 d=8 mask=none cu_q=0,10 used_q=7"},
      {"layout=thd h_q=1 d=8 cu_q=0,10 cu_k=0,10 used_q=7",
       "layout=thd h_q=1 d=8 mask=none cu_q=0,10 used_q=7 used_k=10"},
      {"layout=thd h_q=1 d=8 cu_q=0,10 cu_k=0,12 used_k=12", "layout=thd h_q=1 d=8 mask=none cu_q=0,10 cu_k=0,12"},
  };
  for (const auto& [given, printed] : cases) {
    EXPECT_EQ(to_text(parse_problem(given)), printed) << given;
    EXPECT_EQ(parse_problem(printed), parse_problem(given)) << given;
  }
}

TEST(RoundTrip, JsonWritesValuesAsTheyAre) {
  const Problem want = parse_problem(
      "dtype=fp16 layout=thd cu_q=0,10,30 used_q=7,20 h_q=4 h_kv=2 d=8 mask=causal window=127,0 scale=0.5 grad=1");
  EXPECT_EQ(parse_problem(R"({"dtype":"fp16", "layout":"thd", "cu_q":[0,10,30], "used_q":[7,20], "h_q":4, "h_kv":2,
                              "d":8, "mask":"causal", "window":"127,0", "scale":0.5, "grad":true})"),
            want);
  EXPECT_EQ(parse_problem(R"({"dtype":"fp16", "layout":"thd", "cu_q":[0,10,30], "used_q":[7,20], "h_q":4, "h_kv":2,
                              "d":8, "mask":"causal", "window":[127,"inf"], "scale":5e-1, "grad":1})"),
            want);
  EXPECT_EQ(parse_problem(R"(  {"s_q":3,"h_q":1,"d":1,"window":[null,2],"max_logit":false})"),
            parse_problem("s_q=3 h_q=1 d=1 window=inf,2"));
  EXPECT_EQ(parse_problem(R"({"b":0,"s_q":3,"h_q":1,"d":1,"lens_q":[]})"), parse_problem("b=0 s_q=3 h_q=1 d=1"));
  EXPECT_EQ(parse_problem(R"({"layout":"thd","h_q":1,"d":1,"cu_q":[0],"used_q":[]})"),
            parse_problem("layout=thd h_q=1 d=1 cu_q=0"));
}

TEST(RoundTrip, ScaleKeepsEveryBit) {
  testing::Random random(1);
  for (int i = 0; i < 1000; ++i) {
    Problem p = parse_problem("s_q=1 h_q=1 d=64");
    p.scale = static_cast<double>(random.between(1, kInfinity)) * 0x1p-70;
    EXPECT_EQ(parse_problem(to_text(p)).scale, p.scale);
  }
}

TEST(Hash, FollowsTheText) {
  const Problem p = parse_problem("s_q=8 h_q=2 d=64 mask=causal");
  EXPECT_EQ(hash(p), hash(parse_problem("mask=causal d=64 h_q=2 s_q=8 s_k=8")));
  EXPECT_EQ(hash(p), 0x5a8031ecf38ae0a7U) << to_text(p);
  for (const char* other : {"s_q=9 h_q=2 d=64 mask=causal", "s_q=8 h_q=4 d=64 mask=causal", "s_q=8 h_q=2 d=64",
                            "s_q=8 h_q=2 d=64 mask=causal grad=1", "s_q=8 h_q=2 d=64 mask=causal window=3,0"}) {
    EXPECT_NE(hash(p), hash(parse_problem(other))) << other;
  }
}

}  // namespace
}  // namespace rotunda
