// Test of the byte alphabet against GPT-2's.
#include "tokenizer/byte_alphabet.h"

#include <gtest/gtest.h>

namespace dsv4::tokenizer {
namespace {

TEST(ByteAlphabet, IsThatOfGpt2) {
  EXPECT_EQ(ByteToAlphabet(' '), "Ġ");
  EXPECT_EQ(ByteToAlphabet('\n'), "Ċ");
  EXPECT_EQ(ByteToAlphabet('\t'), "ĉ");
  EXPECT_EQ(ByteToAlphabet('a'), "a");
  EXPECT_EQ(ByteToAlphabet('~'), "~");
  EXPECT_EQ(ByteToAlphabet(0x7F), "ġ");
  EXPECT_EQ(ByteToAlphabet(0xA0), "ł");
  EXPECT_EQ(ByteToAlphabet(0xA1), "¡");
  EXPECT_EQ(ByteToAlphabet(0xAD), "Ń");
  EXPECT_EQ(ByteToAlphabet(0xFF), "ÿ");
  EXPECT_EQ(AlphabetToBytes("ä½łå¥½"), "你好");
  EXPECT_EQ(AlphabetToBytes("<｜User｜>"), std::nullopt);
  for (int byte = 0; byte < 256; ++byte) {
    const auto c = static_cast<unsigned char>(byte);
    EXPECT_EQ(AlphabetToBytes(ByteToAlphabet(c)), std::string(1, static_cast<char>(c)));
  }
}

}  // namespace
}  // namespace dsv4::tokenizer
