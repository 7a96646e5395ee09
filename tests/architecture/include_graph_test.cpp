#include "architecture/include_graph.hpp"

#include <gtest/gtest.h>

namespace rotunda::architecture {
namespace {

std::string root_cmake() {
  std::string text;
  for (const std::string& line : lines_of(source_dir() / "CMakeLists.txt"))
    if (line.empty() || line[0] != '#') text += line + "\n";
  return text;
}

TEST(IncludeGraph, ReadsUsesTransitively) {
  const Allowed allowed = allowed_includes(
      "rotunda_library(a LINK x::x)\nrotunda_library(b USES a LINK y)\n"
      "rotunda_library(c\n  USES b)");
  EXPECT_EQ(allowed.at("a"), (std::set<std::string>{"a"}));
  EXPECT_EQ(allowed.at("b"), (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(allowed.at("c"), (std::set<std::string>{"a", "b", "c"}));
}

TEST(IncludeGraph, FindsFaults) {
  const Allowed allowed = allowed_includes(root_cmake());
  EXPECT_EQ(include_fault(allowed, "schedule", "shard/cut.hpp"), "");
  EXPECT_EQ(include_fault(allowed, "schedule", "base/fail.hpp"), "");
  EXPECT_EQ(include_fault(allowed, "schedule", "rotunda/plan.hpp"), "");
  EXPECT_NE(include_fault(allowed, "schedule", "kernel/kernel.hpp"), "");
  EXPECT_NE(include_fault(allowed, "base", "problem/parse.hpp"), "");
  EXPECT_NE(include_fault(allowed, "base", "memory.hpp"), "");
  EXPECT_NE(include_fault(allowed, "unknown", "base/fail.hpp"), "");
  EXPECT_EQ(include_fault(allowed, "cli", "base/fail.hpp"), "");
  EXPECT_NE(include_fault(allowed, "cli", "base/memory.hpp"), "");
  EXPECT_NE(include_fault(allowed, "cli", "plan/select.hpp"), "");
  EXPECT_EQ(quoted_include("  #  include \"a/b.hpp\"  // why"), "a/b.hpp");
  EXPECT_EQ(quoted_include("#include <vector>"), "");
}

TEST(IncludeGraph, LowerFoldersNeverIncludeHigherOnes) {
  const Allowed allowed = allowed_includes(root_cmake());
  ASSERT_GE(allowed.size(), 8U);
  std::size_t includes = 0;
  for (const auto& path : files_below("src")) {
    const std::string below_src = path_in_tree(path).substr(4);
    const auto lines = is_cpp(path) ? lines_of(path) : std::vector<std::string>{};
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string include = quoted_include(lines[i]);
      if (include.empty()) continue;
      ++includes;
      const std::string fault = include_fault(allowed, below_src.substr(0, below_src.find('/')), include);
      EXPECT_EQ(fault, "") << place(path, i);
    }
  }
  EXPECT_GT(includes, 0U);
}

TEST(IncludeGraph, PublicHeadersStandAlone) {
  for (const auto& path : files_below("include")) {
    const auto lines = lines_of(path);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string include = quoted_include(lines[i]);
      EXPECT_TRUE(include.empty() || include.starts_with("rotunda/")) << place(path, i) << " includes " << include;
    }
  }
}

}  // namespace
}  // namespace rotunda::architecture
