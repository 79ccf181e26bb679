#include "chat/utf8.h"

#include <gtest/gtest.h>

namespace dsv4::chat {
namespace {

std::string Filtered(std::string_view bytes, size_t cut) {
  Utf8Filter filter;
  std::string out;
  filter.Feed(bytes.substr(0, cut), out);
  filter.Feed(bytes.substr(cut), out);
  filter.Finish(out);
  return out;
}

TEST(Utf8, RefusesIllFormedText) {
  EXPECT_EQ(ValidUtf8Prefix("aé日🌞"), std::string("aé日🌞").size());
  for (const std::string_view bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xBD", "\xC3"}) {
    EXPECT_EQ(ValidUtf8Prefix(bad), 0u);
  }
}

TEST(Utf8, EncodesEveryLength) {
  std::string out;
  for (const uint32_t code : {0x41u, 0xE9u, 0x65E5u, 0x1F31Eu}) AppendUtf8(code, out);
  EXPECT_EQ(out, "Aé日🌞");
}

// The examples of the Unicode standard, chapter 3, for the replacement of maximal subparts.
TEST(Utf8, FilterReplacesMaximalPiecesWhateverTheCut) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"a日🌞é", "a日🌞é"},
      {"x\xF0\x9F\x8C", "x\uFFFD"},
  };
  for (const auto& [bytes, expected] : cases) {
    for (size_t cut = 0; cut <= bytes.size(); ++cut) EXPECT_EQ(Filtered(bytes, cut), expected) << cut;
  }
}

}  // namespace
}  // namespace dsv4::chat
