// Tests of pre-tokenization against PCRE2: numbers, CJK, look-ahead, white space, random and all short texts.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pcre2.h>
#include <rapidcheck.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "base/utf8.h"
#include "tokenizer/char_class.h"
#include "tokenizer/testing.h"

namespace dsv4::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Split(const PreTokenizer& pre_tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  const Status status =
      pre_tokenizer.Split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return pieces;
}

std::vector<std::string> SplitBy(const std::vector<SplitRule>& rules, std::string_view text) {
  const auto pre_tokenizer = MakeRegexPreTokenizer(rules);
  EXPECT_TRUE(pre_tokenizer) << pre_tokenizer.error().ToString();
  return pre_tokenizer ? Split(**pre_tokenizer, text) : std::vector<std::string>();
}

std::vector<std::string> Scan(std::string_view text) { return Split(*MakeV4PreTokenizer(), text); }

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* match_data) const { pcre2_match_data_free(match_data); }
};

// PCRE2's opinion of one code point.
CharClass OracleClass(uint32_t code_point) {
  static const auto codes = [] {
    std::vector<std::pair<CharClass, std::unique_ptr<pcre2_code, CodeDeleter>>> compiled;
    for (const auto& [char_class, pattern] : std::initializer_list<std::pair<CharClass, const char*>>{
             {CharClass::kNewline, "[\r\n]"},
             {CharClass::kSpace, R"(\p{White_Space})"},
             {CharClass::kLetterOrMark, R"([\p{L}\p{M}])"},
             {CharClass::kNumber, R"(\p{N})"},
             {CharClass::kPunctOrSymbol, R"([\p{P}\p{S}])"}}) {
      int error = 0;
      PCRE2_SIZE offset = 0;
      pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
      EXPECT_NE(code, nullptr) << pattern;
      pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
      compiled.emplace_back(char_class, std::unique_ptr<pcre2_code, CodeDeleter>(code));
    }
    return compiled;
  }();
  static const std::unique_ptr<pcre2_match_data, CodeDeleter> match_data(pcre2_match_data_create(1, nullptr));
  std::string text;
  AppendUtf8(code_point, &text);
  for (const auto& [char_class, code] : codes) {
    if (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                    match_data.get(), nullptr) >= 0) {
      return char_class;
    }
  }
  return CharClass::kOther;
}

// The two libraries may follow different editions of Unicode: a code point that is assigned in one only.
bool OracleKnows(uint32_t code_point) { return OracleClass(code_point) == CharClassTable::Get()[code_point]; }

TEST(CharClassTable, AgreesWithPcre2OnEveryCodePoint) {
  int num_differences = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const CharClass oracle = OracleClass(c);
    if (oracle == CharClassTable::Get()[c]) continue;
    ++num_differences;
    // Unassigned there, assigned here; never two opinions of a character both know.
    ASSERT_EQ(oracle, CharClass::kOther) << "U+" << std::hex << c;
  }
  // PCRE2 10.42 has Unicode 14, utf8proc 2.8 has 15, which added 4489 characters.
  EXPECT_LE(num_differences, 4489);
}

TEST(V4Scanner, NumbersComeInThrees) {
  EXPECT_THAT(Scan("1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(Scan("½①٣５６"), ElementsAre("½①٣", "５６"));
  EXPECT_THAT(Scan("a1b"), ElementsAre("a", "1", "b"));
}

TEST(V4Scanner, CjkRunsStandAlone) {
  EXPECT_THAT(Scan("日本語abc123"), ElementsAre("日本語", "abc", "123"));
  EXPECT_THAT(Scan("한국어 text"), ElementsAre("한국어", " text"));  // Hangul is no part of the second rule.
  EXPECT_THAT(Scan("a々b"), ElementsAre("a々b"));
  EXPECT_THAT(Scan("ア・イ"), ElementsAre("ア", "・", "イ"));  // Punctuation within the range.
}

TEST(V4Scanner, TheLookAheadSeesTheEndOfThePiece) {
  EXPECT_THAT(Scan("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(Scan("a   1"), ElementsAre("a", "   ", "1"));
  EXPECT_THAT(Scan("a   你"), ElementsAre("a", "   ", "你"));
  EXPECT_THAT(Scan("a  "), ElementsAre("a", "  "));
}

TEST(V4Scanner, WordsAndPunctuation) {
  EXPECT_THAT(Scan("don't"), ElementsAre("don", "'t"));
  EXPECT_THAT(Scan("'été"), ElementsAre("'", "été"));
  EXPECT_THAT(Scan("'aé"), ElementsAre("'a", "é"));
  EXPECT_THAT(Scan(" -abc"), ElementsAre(" -", "abc"));
  EXPECT_THAT(Scan("-abc"), ElementsAre("-abc"));
  EXPECT_THAT(Scan("((()))...---\n\n"), ElementsAre("((()))...---\n\n"));
  EXPECT_THAT(Scan("x \r\n\n  y"), ElementsAre("x", " \r\n\n", " ", " y"));
  EXPECT_THAT(Scan("\tx"), ElementsAre("\tx"));
  EXPECT_THAT(Scan("\nx"), ElementsAre("\n", "x"));
}

TEST(V4Scanner, WhiteSpaceIsThatOfUnicode) {
  EXPECT_THAT(Scan("a\u00A0\u2003\u3000b"), ElementsAre("a", "\u00A0\u2003", "\u3000b"));
  EXPECT_THAT(Scan("1\u0085\u0085"), ElementsAre("1", "\u0085\u0085"));
  EXPECT_THAT(Scan("1\u200B\u200B"),
              ElementsAre("1", "\u200B\u200B"));  // Not white space; unmatched text is a piece.
  EXPECT_THAT(Scan("\x01\x01"
                   "a"),
              ElementsAre("\x01",
                          "\x01"
                          "a"));
}

class V4ScannerAgainstPcre2 : public ::testing::Test {
 protected:
  static const PreTokenizer& Oracle() {
    static const auto oracle = MakeRegexPreTokenizer(V4SplitRules());
    return **oracle;
  }
  static bool OracleKnowsAll(std::string_view text) {
    static std::map<uint32_t, bool> known;
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = DecodeUtf8(text.data() + i);
      const auto [it, is_new] = known.emplace(c.value, false);
      if (is_new) it->second = OracleKnows(c.value);
      if (!it->second) return false;
      i += c.num_bytes;
    }
    return true;
  }
};

TEST_F(V4ScannerAgainstPcre2, RandomTexts) {
  int num_compared = 0;
  for (unsigned seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const std::string text = testing::RandomText(&random, 1 + random() % 40);
    if (!OracleKnowsAll(text)) continue;
    ++num_compared;
    ASSERT_EQ(Scan(text), Split(Oracle(), text)) << "seed " << seed << ": " << text;
  }
  EXPECT_GT(num_compared, 15000);
}

// Every text of up to four characters over one representative per kind of character.
TEST_F(V4ScannerAgainstPcre2, AllShortTexts) {
  static constexpr std::string_view kAlphabet[] = {"a",  "é",  "1", "你", " ",      "\u2003",
                                                   "\n", "\r", "-", "—",  "\u0301", "\x01"};
  constexpr size_t kBase = std::size(kAlphabet);
  size_t num_texts = 1;
  for (int length = 1; length <= 4; ++length) {
    num_texts *= kBase;
    for (size_t code = 0; code < num_texts; ++code) {
      std::string text;
      for (size_t rest = code, i = 0; i < static_cast<size_t>(length); ++i, rest /= kBase)
        text += kAlphabet[rest % kBase];
      ASSERT_EQ(Scan(text), Split(Oracle(), text)) << ::testing::PrintToString(text);
    }
  }
}

TEST_F(V4ScannerAgainstPcre2, ShrinkingProperty) {
  EXPECT_TRUE(rc::check("scanner = PCRE2", [] {
    std::string text;
    for (const auto c : *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange<uint32_t>(0, 0x3400)))
      AppendUtf8(c, &text);
    RC_PRE(OracleKnowsAll(text));
    RC_ASSERT(Scan(text) == Split(Oracle(), text));
  }));
}

TEST(RegexPreTokenizer, RulesApplyOneAfterTheOther) {
  // Were the look-ahead to see the whole text, "  " in front of the number would be cut.
  EXPECT_THAT(SplitBy({{.pattern = "[0-9]"}, {.pattern = R"(\s+(?!\S)|\s+)"}}, "a  1 b"),
              ElementsAre("a", "  ", "1", " ", "b"));
}

// The expected pieces of the next two tests are Hugging Face's for the same rules.
TEST(RegexPreTokenizer, Behaviors) {
  const auto split = [](SplitBehavior behavior, bool invert) {
    return SplitBy({{.pattern = "-", .behavior = behavior, .invert = invert}}, "-the--final-");
  };
  using enum SplitBehavior;
  EXPECT_THAT(split(kIsolated, false), ElementsAre("-", "the", "-", "-", "final", "-"));
  EXPECT_THAT(split(kRemoved, false), ElementsAre("the", "final"));
  EXPECT_THAT(split(kMergedWithPrevious, false), ElementsAre("-", "the-", "-", "final-"));
  EXPECT_THAT(split(kMergedWithNext, false), ElementsAre("-the", "-", "-final", "-"));
  EXPECT_THAT(split(kContiguous, false), ElementsAre("-", "the", "--", "final", "-"));
  EXPECT_THAT(split(kIsolated, true), ElementsAre("-", "the", "-", "-", "final", "-"));
  EXPECT_THAT(split(kRemoved, true), ElementsAre("-", "-", "-", "-"));
  EXPECT_THAT(split(kMergedWithPrevious, true), ElementsAre("-the", "-", "-final", "-"));
  EXPECT_THAT(split(kMergedWithNext, true), ElementsAre("-", "the-", "-", "final-"));
  EXPECT_THAT(split(kContiguous, true), ElementsAre("-", "the", "--", "final", "-"));
}

TEST(RegexPreTokenizer, EmptyMatchesCut) {
  EXPECT_THAT(SplitBy({{.pattern = "(?=c)"}}, "abcabc"), ElementsAre("ab", "cab", "c"));
  EXPECT_THAT(SplitBy({{.pattern = "x*"}}, "axx你"), ElementsAre("a", "xx", "你"));
}

TEST(RegexPreTokenizer, LiteralPatternsAreNoExpressions) {
  EXPECT_THAT(SplitBy({{.pattern = ".", .is_literal = true, .behavior = SplitBehavior::kRemoved}}, "a.bc."),
              ElementsAre("a", "bc"));
}

TEST(RegexPreTokenizer, ClassesMeanUnicode) {
  EXPECT_THAT(SplitBy({{.pattern = R"(\s)"}}, "a\u0085b\u180Ec"), ElementsAre("a", "\u0085", "b\u180Ec"));
  EXPECT_THAT(SplitBy({{.pattern = R"([^\S\n]+)"}}, "a\u00A0 \nb"), ElementsAre("a", "\u00A0 ", "\nb"));
  EXPECT_THAT(SplitBy({{.pattern = R"(\\s)"}}, R"(a\sb)"), ElementsAre("a", R"(\s)", "b"));
  EXPECT_THAT(SplitBy({{.pattern = R"(\d)"}}, "a٣"), ElementsAre("a", "٣"));
  EXPECT_THAT(SplitBy({{.pattern = "^b"}}, "b\nb"), ElementsAre("b", "\n", "b"));
}

TEST(RegexPreTokenizer, RefusesWhatItCannotHonour) {
  const auto broken = MakeRegexPreTokenizer({{.pattern = "(a"}});
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(broken.error().message(), HasSubstr("\"(a\""));
  const auto word = MakeRegexPreTokenizer({{.pattern = R"(\w+)"}});
  ASSERT_FALSE(word);
  EXPECT_EQ(word.error().code(), StatusCode::kUnimplemented);
  EXPECT_FALSE(MakeRegexPreTokenizer({{.pattern = std::string(1 << 20, 'a')}}));
}

TEST(RegexPreTokenizer, EndlessBacktrackingIsAnError) {
  const auto pre_tokenizer = MakeRegexPreTokenizer({{.pattern = "(a+)+[xy]"}});
  ASSERT_TRUE(pre_tokenizer) << pre_tokenizer.error().ToString();
  const Status status = (*pre_tokenizer)->Split(std::string(64, 'a'), [](std::string_view) {});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("(a+)+[xy]"));
}

}  // namespace
}  // namespace dsv4::tokenizer
