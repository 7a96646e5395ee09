#include "cli/terminal.hpp"

#include <gtest/gtest.h>

namespace rotunda::cli {
namespace {

TEST(Legible, EscapesControlCharactersAlone) {
  EXPECT_EQ(legible("plain, µs and “quoted” …"), "plain, µs and “quoted” …");
  EXPECT_EQ(legible("\x1b[31mred\a\x7f"), "\\x1b[31mred\\x07\\x7f");
  EXPECT_EQ(legible("two\nlines\tand a tab"), "two\\nlines\\x09and a tab");
  EXPECT_EQ(legible(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(legible("\xc2\x9b"
                    "31m \xc2\xa0\xc2"),
            "\\xc2\\x9b31m \xc2\xa0\xc2");  // U+009B begins what ESC [ does
}

}  // namespace
}  // namespace rotunda::cli
