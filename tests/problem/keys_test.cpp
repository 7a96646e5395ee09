#include "problem/keys.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace rotunda {
namespace {

TEST(Keys, AreThoseOfTheTextForm) {
  std::string names;
  for (const Key& key : problem_keys()) {
    names += std::string(key.name) + " ";
    EXPECT_EQ(find_key(key.name), &key);
    EXPECT_FALSE(key.allowed.empty()) << key.name;
  }
  EXPECT_EQ(names,
            "dtype layout b s_q s_k h_q h_kv d d_v mask window align prefix chunk slices lens_q lens_k cu_q cu_k "
            "used_q used_k scale sink max_logit deterministic grad ");
  EXPECT_EQ(find_key("dropout"), nullptr);
  EXPECT_EQ(find_key(""), nullptr);
}

TEST(Keys, TheClosestIsFoundWhereItLooksLikeASlip) {
  const std::pair<const char*, const char*> slips[] = {
      {"maks", "mask"},
      {"msk", "mask"},
      {"windows", "window"},
      {"dtyp", "dtype"},
      {"dtpye", "dtype"},
      {"sq", "s_q"},
      {"h_k", "h_kv"},
      {"dv", "d_v"},
      {"lens", ""},
      {"len_q", "lens_q"},
      {"cuq", "cu_q"},
      {"usedk", "used_k"},
      {"deterministc", "deterministic"},
      {"x", ""},
      {"", ""},
      {"headdim", ""},
      {"causal", ""},
      {"slice", "slices"},
      {"gradd", "grad"},
      {"max_logits", "max_logit"},
  };
  for (const auto& [slip, key] : slips) EXPECT_EQ(closest_key(slip), key) << slip;
  EXPECT_EQ(closest_key(std::string(100000, 'q')), "");
}

std::string manual() {
  std::ifstream file(ROTUNDA_SOURCE_DIR "/docs/problem.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Keys, AreAllDescribedInTheManual) {
  const std::string text = manual();
  for (const Key& key : problem_keys()) {
    EXPECT_NE(text.find("| `" + std::string(key.name) + "` |"), std::string::npos) << key.name << " has no row";
  }
}

TEST(Keys, TheManualsExamplesParse) {
  const std::string text = manual();
  int examples = 0;
  for (std::size_t begin = text.find("\n| `"); begin != std::string::npos; begin = text.find("\n| `", begin + 1)) {
    const std::string span = text.substr(begin + 4, text.find('`', begin + 4) - begin - 4);
    if (span.find("h_q=") == std::string::npos) continue;
    ++examples;
    EXPECT_NO_THROW((void)parse_problem(span)) << span;
  }
  EXPECT_GE(examples, 8);
}

}  // namespace
}  // namespace rotunda
