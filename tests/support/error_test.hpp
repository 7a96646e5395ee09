// Checks that a statement throws an Error of a kind whose sentence contains a text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "rotunda/error.hpp"

#define EXPECT_ERROR(statement, wanted_kind, text)                                                              \
  do {                                                                                                          \
    bool threw = false;                                                                                         \
    try {                                                                                                       \
      statement;                                                                                                \
    } catch (const ::rotunda::Error& error) {                                                                   \
      threw = true;                                                                                             \
      EXPECT_EQ(error.kind(), wanted_kind) << error.what();                                                     \
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << "the message is: " << error.what(); \
    }                                                                                                           \
    EXPECT_TRUE(threw) << #statement " throws nothing";                                                         \
  } while (false)
