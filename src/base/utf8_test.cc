// Tests of UTF-8: ends of every range, first bad bytes, maximal subparts, and streams cut at every byte.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace dsv4 {
namespace {

using namespace std::string_literals;

TEST(FindInvalidUtf8, AcceptsTheEndsOfEveryRange) {
  for (const uint32_t c :
       {0x00u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text = "1234567";  // Puts the character across the border of a word.
    AppendUtf8(c, &text);
    EXPECT_EQ(FindInvalidUtf8(text), std::string::npos) << c;
    const CodePoint decoded = DecodeUtf8(text.data() + 7);
    EXPECT_EQ(decoded.value, c);
    EXPECT_EQ(decoded.num_bytes, text.size() - 7);
  }
}

TEST(FindInvalidUtf8, NamesTheFirstBadByte) {
  const struct {
    std::string text;
    size_t offset;
  } cases[] = {
      {"\x80", 0},              // A continuation byte alone.
      {"a\xC0\x80", 1},         // Overlong.
      {"ab\xC1\xBF", 2},        // Overlong.
      {"\xE0\x9F\xBF", 0},      // Overlong.
      {"\xED\xA0\x80", 0},      // A surrogate.
      {"\xF0\x8F\xBF\xBF", 0},  // Overlong.
      {"\xF4\x90\x80\x80", 0},  // Past U+10FFFF.
      {"\xF5\x80\x80\x80", 0},
      {"\xFF", 0},
      {"12345678\xE4\xBD", 8},  // Cut short.
      {"\xE4\xBD\x41", 0},
  };
  for (const auto& [text, offset] : cases)
    EXPECT_EQ(FindInvalidUtf8(text), offset) << ::testing::PrintToString(text);
}

// Expected values are what Python's bytes.decode("utf-8", "replace") gives.
TEST(RepairUtf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(RepairUtf8("a\x80z"), "a\uFFFDz");
  EXPECT_EQ(RepairUtf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(RepairUtf8("\xF0\x9F\x98 \xE4\xBD"), "\uFFFD \uFFFD");
  EXPECT_EQ(RepairUtf8("\xF0\x9F\xE4\xBD\xA0"), "\uFFFD你");
  EXPECT_EQ(RepairUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(RepairUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(RepairUtf8("\xC0\xAF\xE0\x80\xBF"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(RepairUtf8("\xC2\xC2\xA0"), "\uFFFD\u00A0");
  EXPECT_EQ(RepairUtf8("\x00"s), "\0"s);
}

TEST(Utf8Repairer, EveryCutGivesTheSame) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    // Bytes that open, continue and break sequences, among whole characters.
    static constexpr unsigned char kBytes[] = {0x41, 0x80, 0xBF, 0xC3, 0xE0, 0xA0, 0xED,
                                               0x9F, 0xF0, 0x90, 0xF4, 0x8F, 0xFF};
    std::string bytes;
    for (int i = 0; i < 12; ++i) {
      if (random() % 4 == 0) {
        static constexpr uint32_t kCharacters[] = {0x7A,   0xE9,    0x7FF,   0x800,   0x65E5,
                                                   0xFFFD, 0x10000, 0x1F31E, 0x10FFFF};
        AppendUtf8(kCharacters[random() % std::size(kCharacters)], &bytes);
      } else {
        bytes.push_back(static_cast<char>(kBytes[random() % std::size(kBytes)]));
      }
    }
    const std::string whole = RepairUtf8(bytes);
    EXPECT_EQ(FindInvalidUtf8(whole), std::string::npos);
    for (size_t first = 0; first <= bytes.size(); ++first) {
      for (size_t second = first; second <= bytes.size(); ++second) {
        std::string text;
        Utf8Repairer repairer;
        for (const auto& [begin, end] :
             {std::pair{size_t{0}, first}, {first, second}, {second, bytes.size()}}) {
          repairer.Append(std::string_view(bytes).substr(begin, end - begin), &text);
          EXPECT_EQ(FindInvalidUtf8(text), std::string::npos);
        }
        repairer.Finish(&text);
        ASSERT_EQ(text, whole) << ::testing::PrintToString(bytes) << " cut at " << first << " and " << second;
      }
    }
    if (FindInvalidUtf8(bytes) == std::string::npos) {
      EXPECT_EQ(whole, bytes);
    }
  }
}

}  // namespace
}  // namespace dsv4
