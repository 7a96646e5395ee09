// Size limits, and words that have no place in the project.
#include <gtest/gtest.h>

#include <regex>

#include "architecture/tree.hpp"

namespace rotunda::architecture {
namespace {

constexpr std::size_t kMaxFileLines = 700;
constexpr std::size_t kMaxFunctionLines = 100;

/// A function: with the project's formatting it begins at column 0 or, in a class, 2, and ends with a } at the same
/// column.
struct Function {
  std::size_t begin = 0, lines = 0;
};

bool may_begin_function(const std::string& line) {
  static const std::regex other(R"(^\s*(namespace|struct|class|enum|union|using|static_assert)\b)");
  return line.find('(') != std::string::npos && !line.ends_with(";") && !std::regex_search(line, other);
}

std::vector<Function> functions_of(const std::vector<std::string>& lines) {
  std::vector<Function> functions;
  for (const std::string indent : {"", "  "}) {
    std::size_t begin = 0;
    bool open = false;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string& line = lines[i];
      const bool here = line.size() > indent.size() && line.starts_with(indent) && line[indent.size()] != ' ';
      if (!here || line[indent.size()] == '#') continue;
      if (line[indent.size()] == '}' && open) functions.push_back({begin, i - begin + 1});
      open = may_begin_function(line);
      begin = i;
    }
  }
  return functions;
}

TEST(Limits, FunctionsAreFound) {
  const std::vector<std::string> text = {
      "namespace a {", "int f(int x,", "      int y) {", "  if (x) {", "  }", "  return x;", "}",
      "struct B {",    "  void g() {", "    h();",       "  }",        "};"};
  const auto found = functions_of(text);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].begin, 1U);
  EXPECT_EQ(found[0].lines, 6U);
  EXPECT_EQ(found.back().begin, 8U);
  EXPECT_EQ(found.back().lines, 3U);
}

TEST(Limits, FilesAndFunctionsAreShort) {
  std::size_t functions = 0;
  for (const auto& path : files_below()) {
    const auto lines = lines_of(path);
    if (path.filename() == "LICENSE") continue;
    EXPECT_LE(lines.size(), kMaxFileLines) << path_in_tree(path) << " is too long: find a seam";
    if (!is_cpp(path)) continue;
    for (const Function& function : functions_of(lines)) {
      ++functions;
      EXPECT_LE(function.lines, kMaxFunctionLines) << place(path, function.begin) << ": too long a function";
    }
  }
  EXPECT_GT(functions, 10U);
}

/// Paths of one machine, and leftovers. Written so that this file does not match itself.
const std::regex& unwanted() {
  static const std::regex words(R"((^|[\s"'`(=:])/(wor[k]|roo[t]|hom[e])/|\b(TOD[O]|FIXM[E]|XX[X])\b)");
  return words;
}

TEST(Limits, UnwantedWordsAreFound) {
  EXPECT_TRUE(std::regex_search(std::string("cd /ho") + "me/me/x", unwanted()));
  EXPECT_TRUE(std::regex_search(std::string("// TO") + "DO: later", unwanted()));
  EXPECT_FALSE(std::regex_search(std::string("the homework/root"), unwanted()));
}

TEST(Limits, NothingSpeaksOfOneMachine) {
  for (const auto& path : files_below()) {
    const auto lines = lines_of(path);
    for (std::size_t i = 0; i < lines.size(); ++i)
      EXPECT_FALSE(std::regex_search(lines[i], unwanted())) << place(path, i) << ": " << lines[i];
  }
}

}  // namespace
}  // namespace rotunda::architecture
