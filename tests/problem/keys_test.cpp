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
      {"h_k", "s_k"},
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

TEST(Keys, AreAllDescribedInTheManual) {
  std::ifstream file(ROTUNDA_SOURCE_DIR "/docs/problem.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const Key& key : problem_keys()) {
    EXPECT_NE(text.str().find("`" + std::string(key.name) + "`"), std::string::npos)
        << key.name << " is not in docs/problem.md";
  }
}

}  // namespace
}  // namespace rotunda
