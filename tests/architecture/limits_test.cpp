// Size limits, and words that have no place in the project.
#include <gtest/gtest.h>

#include <cctype>

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
  for (const char* other : {"namespace ", "struct ", "class ", "enum ", "union ", "using ", "static_assert("})
    if (line.substr(line.find_first_not_of(' ')).starts_with(other)) return false;
  return line.find('(') != std::string::npos && !line.ends_with(";");
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

/// Paths of one machine, and leftovers. Written in two halves so that this file does not match itself.
const std::vector<std::string>& unwanted() {
  static const std::vector<std::string> words = {
      std::string("/wor") + "k/", std::string("/roo") + "t/", std::string("/hom") + "e/",
      std::string("TO") + "DO",   std::string("FIX") + "ME",  std::string("XX") + "X",
  };
  return words;
}

/// The unwanted word that stands by itself in the line (a path: where an absolute one would begin), or "".
std::string unwanted_word(const std::string& line) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; };
  for (const std::string& word : unwanted()) {
    for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
      const std::size_t end = at + word.size();
      const bool path = word.ends_with("/");
      if ((at == 0 || !is_word(line[at - 1])) && (path || end == line.size() || !is_word(line[end]))) return word;
    }
  }
  return "";
}

TEST(Limits, UnwantedWordsAreFound) {
  EXPECT_NE(unwanted_word(std::string("cd /ho") + "me/me/x"), "");
  EXPECT_NE(unwanted_word(std::string("// TO") + "DO: later"), "");
  EXPECT_EQ(unwanted_word("the homework, its/"
                          "root/of evil"),
            "");
}

TEST(Limits, NothingSpeaksOfOneMachine) {
  for (const auto& path : files_below()) {
    const auto lines = lines_of(path);
    for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(unwanted_word(lines[i]), "") << place(path, i);
  }
}

}  // namespace
}  // namespace rotunda::architecture
