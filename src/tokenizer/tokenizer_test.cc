// Tests of the tokenizer: round trips, added tokens, spans, invalid text, threads and faulty files.
#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/temporary_directory_testing.h"
#include "base/utf8.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/stop_set.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/testing.h"
#include "tokenizer/tokenize_cases.h"

namespace dsv4::tokenizer {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Tokenizer& Toy() {
  static const Tokenizer tokenizer = testing::ParseOrDie(testing::ToyFile());
  return tokenizer;
}

// Ids in the toy tokenizer.
constexpr TokenId kToyUser = 298;
constexpr TokenId kToyAssistant = 297;
constexpr TokenId kToyThink = 296;
constexpr TokenId kToyLessT = 293;     // "<t"
constexpr TokenId kToyLessThi = 292;   // "<thi"
constexpr TokenId kToySpaceThe = 402;  // " the"
TokenId ToyByte(unsigned char byte) { return 7 * byte % 256; }

std::vector<TokenId> Ids(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.Encode(text);
  EXPECT_TRUE(ids) << ids.error().ToString();
  return ids.value_or(std::vector<TokenId>());
}
std::vector<TokenId> Ids(const Tokenizer& tokenizer, const std::vector<TextSpan>& spans) {
  auto ids = tokenizer.Encode(spans);
  EXPECT_TRUE(ids) << ids.error().ToString();
  return ids.value_or(std::vector<TokenId>());
}

TEST(Tokenizer, EncodesAndDecodes) {
  EXPECT_THAT(Ids(Toy(), "a the"), ElementsAre(ToyByte('a'), kToySpaceThe));
  EXPECT_THAT(Ids(Toy(), "<｜User｜>x<｜Assistant｜><think>"),
              ElementsAre(kToyUser, ToyByte('x'), kToyAssistant, kToyThink));
  for (const std::string text : {"", "x", "a the <｜User｜>你好\n\n\t1234 🎉", "<｜User｜", "<think"}) {
    EXPECT_EQ(Toy().Decode(Ids(Toy(), text)), text);
  }
}

TEST(Tokenizer, AddedTokensAreLeftmostLongest) {
  EXPECT_THAT(Ids(Toy(), "<think>"), ElementsAre(kToyThink));
  EXPECT_THAT(Ids(Toy(), "<thinx"), ElementsAre(kToyLessThi, ToyByte('n'), ToyByte('x')));
  EXPECT_THAT(Ids(Toy(), "<tx"), ElementsAre(kToyLessT, ToyByte('x')));
  EXPECT_THAT(Ids(Toy(), "<<t"), ElementsAre(ToyByte('<'), kToyLessT));
  // Without the added token "<t" the text would go to BPE, which has a merge for "<th".
  EXPECT_THAT(Ids(Toy(), {{"<the", false}}), ElementsAre(ToyByte('<'), 401));
}

// As Hugging Face: tokens marked `normalized` only come into what the others leave.
TEST(Tokenizer, NormalizedAddedTokensComeSecond) {
  json file = testing::ToyFile();
  file["added_tokens"] =
      json::array({{{"content", "ab<x>"}, {"id", 500}, {"special", false}, {"normalized", true}},
                   {{"content", "<x>"}, {"id", 501}, {"special", false}, {"normalized", false}}});
  const Tokenizer tokenizer = testing::ParseOrDie(file);
  EXPECT_THAT(Ids(tokenizer, "ab<x>"), ElementsAre(403, 501));
  file["added_tokens"][1]["normalized"] = true;
  EXPECT_THAT(Ids(testing::ParseOrDie(file), "ab<x>"), ElementsAre(500));
}

TEST(Tokenizer, AnAddedTokenNeedsTemplateBytesOnly) {
  EXPECT_THAT(Ids(Toy(), {{"<think>", true}}), ElementsAre(kToyThink));
  // Adjacent template spans are one.
  EXPECT_THAT(Ids(Toy(), {{"<th", true}, {"", true}, {"ink>", true}}), ElementsAre(kToyThink));
  const std::vector<TokenId> as_text = Ids(Toy(), {{"<think>", false}});
  EXPECT_GT(as_text.size(), 1u);
  EXPECT_EQ(Toy().Decode(as_text), "<think>");
  for (const TokenId id : as_text) EXPECT_FALSE(Toy().IsAdded(id));
  // Every cut of the token with either side from outside.
  const std::string token = "<think>";
  for (size_t cut = 1; cut < token.size(); ++cut) {
    for (const bool first_is_template : {false, true}) {
      const std::vector<TokenId> ids =
          Ids(Toy(), {{std::string_view(token).substr(0, cut), first_is_template},
                      {std::string_view(token).substr(cut), !first_is_template}});
      EXPECT_EQ(Toy().Decode(ids), token);
      for (const TokenId id : ids) EXPECT_NE(id, kToyThink) << cut;
    }
  }
  // A shorter token that lies in the template still counts.
  EXPECT_THAT(Ids(Toy(), {{"<t", true}, {"hink>", false}}),
              ElementsAre(kToyLessT, ToyByte('h'), ToyByte('i'), ToyByte('n'), ToyByte('k'), ToyByte('>')));
  EXPECT_THAT(Ids(Toy(), {{"<｜User｜>", true}, {"<｜User｜>", false}, {"<｜Assistant｜>", true}}).front(),
              kToyUser);
}

TEST(Tokenizer, SpansAreOneTextToTheRest) {
  // "a the" merges across every border, and a character may be cut.
  const std::string text = "a the 你好, the<｜Userx 12345";
  const std::vector<TokenId> whole = Ids(Toy(), text);
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      const std::string_view view = text;
      EXPECT_EQ(Ids(Toy(), {{view.substr(0, first), true},
                            {view.substr(first, second - first), false},
                            {view.substr(second), true}}),
                whole);
    }
  }
}

TEST(Tokenizer, RefusesInvalidUtf8) {
  const auto ids = Toy().Encode("abc\xFFxyz");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ids.error().message(), HasSubstr("at byte 3 (0xFF)"));
  EXPECT_FALSE(Toy().Encode("\xE4\xBD"));
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  for (const TokenId id : {290, 408, 1 << 30, -1, std::numeric_limits<TokenId>::min()}) {
    EXPECT_FALSE(Toy().IsDefined(id)) << id;
    EXPECT_FALSE(Toy().IsAdded(id)) << id;
    EXPECT_EQ(Toy().TokenBytes(id), "") << id;
    EXPECT_EQ(Toy().Decode(std::vector<TokenId>{kToySpaceThe, id, kToyUser}), " the<｜User｜>") << id;
    StreamDecoder decoder(Toy());
    EXPECT_EQ(decoder.Append(id), "");
  }
  EXPECT_TRUE(Toy().IsDefined(kToyUser));
  EXPECT_EQ(Toy().num_ids(), 408);
}

TEST(Tokenizer, ManyThreadsShareOne) {
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> expected;
  std::mt19937 random(11);
  for (int i = 0; i < 50; ++i) {
    texts.push_back(testing::RandomText(&random, 300));
    expected.push_back(Ids(Toy(), texts.back()));
  }
  std::vector<std::thread> threads;
  std::vector<int> num_wrong(4, 0);
  for (size_t t = 0; t < num_wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t k = (i * 7 + t * 13) % texts.size();
        const auto ids = Toy().Encode(texts[k]);
        if (!ids || *ids != expected[k]) ++num_wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_wrong, ElementsAre(0, 0, 0, 0));
}

TEST(Tokenizer, MergesAsPairsAreTheSame) {
  json file = testing::ToyFile();
  json pairs = json::array();
  for (const std::string rule : file["model"]["merges"]) {
    const size_t blank = rule.find(' ');
    pairs.push_back({rule.substr(0, blank), rule.substr(blank + 1)});
  }
  file["model"]["merges"] = pairs;
  const Tokenizer tokenizer = testing::ParseOrDie(file);
  EXPECT_EQ(Ids(tokenizer, "a the aaabab"), Ids(Toy(), "a the aaabab"));
}

// The character that takes several tokens appears with its last one, however it is cut.
TEST(StreamDecoder, WritesWholeCharacters) {
  StreamDecoder decoder(Toy());
  const std::string bytes = "é你🎉";
  std::vector<std::string> parts;
  for (const char c : bytes) parts.push_back(decoder.Append(ToyByte(static_cast<unsigned char>(c))));
  EXPECT_THAT(parts, ElementsAre("", "é", "", "", "你", "", "", "", "🎉"));
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoder, EqualsDecodeForAnyIds) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(static_cast<TokenId>(random() % 420));
    StreamDecoder decoder(Toy());
    std::string text;
    for (const TokenId id : ids) {
      const std::string part = decoder.Append(id);
      ASSERT_EQ(FindInvalidUtf8(part), std::string::npos);
      text += part;
    }
    text += decoder.Finish();
    ASSERT_EQ(text, Toy().Decode(ids));
  }
}

TEST(StreamDecoder, AnUnfinishedCharacterBecomesAReplacement) {
  StreamDecoder decoder(Toy());
  EXPECT_EQ(decoder.Append(ToyByte(0xF0)), "");
  EXPECT_EQ(decoder.Append(ToyByte(0x9F)), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
  EXPECT_EQ(decoder.Append(ToyByte('x')), "x");  // As new.
  EXPECT_EQ(decoder.Append(ToyByte(0xF0)), "");
  EXPECT_EQ(decoder.Append(kToyUser), "\uFFFD<｜User｜>");
}

TEST(SpecialTokens, AreFoundByStringOnly) {
  const auto tokens = SpecialTokens::Resolve(Toy());
  ASSERT_TRUE(tokens) << tokens.error().ToString();
  EXPECT_EQ(tokens->begin_of_sentence, 300);
  EXPECT_EQ(tokens->end_of_sentence, 299);
  EXPECT_EQ(tokens->user, kToyUser);
  EXPECT_EQ(tokens->assistant, kToyAssistant);
  EXPECT_EQ(tokens->think_begin, kToyThink);
  EXPECT_EQ(tokens->think_end, 295);
  EXPECT_EQ(tokens->dsml, 294);
  EXPECT_EQ(tokens->latest_reminder, std::nullopt);
}

TEST(SpecialTokens, EveryRequiredStringIsNamedWhenMissing) {
  const json file = testing::ToyFile();
  for (size_t i = 0; i < 7; ++i) {
    json without = file;
    const std::string missing = without["added_tokens"][i]["content"];
    without["added_tokens"].erase(i);
    const auto tokens = SpecialTokens::Resolve(testing::ParseOrDie(without));
    ASSERT_FALSE(tokens) << missing;
    EXPECT_EQ(tokens.error().code(), StatusCode::kNotFound);
    EXPECT_THAT(tokens.error().message(), HasSubstr("no token \"" + missing + "\";"));
    // A plain entry of the vocabulary serves as well.
    without["model"]["vocab"][missing] = 999;
    EXPECT_TRUE(SpecialTokens::Resolve(testing::ParseOrDie(without))) << missing;
  }
}

TEST(StopSet, ComesFromStrings) {
  const auto tokens = SpecialTokens::Resolve(Toy());
  ASSERT_TRUE(tokens);
  StopSet set = StopSet::ForChat(*tokens);
  EXPECT_TRUE(set.Contains(299));
  EXPECT_TRUE(set.Contains(kToyUser));
  EXPECT_FALSE(set.Contains(kToyAssistant));
  EXPECT_FALSE(set.Contains(1));
  EXPECT_TRUE(set.Add(Toy(), "<｜Assistant｜>").ok());
  EXPECT_TRUE(set.Add(Toy(), "<｜Assistant｜>").ok());
  EXPECT_TRUE(set.Contains(kToyAssistant));
  ASSERT_EQ(set.entries().size(), 3u);
  EXPECT_EQ(set.entries()[0].text, "<｜end▁of▁sentence｜>");
  const Status status = set.Add(Toy(), "no such token");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("\"no such token\""));
}

TEST(TokenizeCases, OneLineEach) {
  const auto lines = TokenizeCases(
      Toy(), R"([{"text": "a\n"}, {"case": "second", "text": 5}, 7, {"text": "", "name": "third"}])",
      "cases");
  ASSERT_TRUE(lines) << lines.error().ToString();
  EXPECT_THAT(*lines,
              ElementsAre(R"({"ids":[167,70],"decoded":"a\n"})", HasSubstr(R"({"name":"second","error":")"),
                          HasSubstr(R"({"name":"case 2","error":")"), R"({"ids":[],"decoded":""})"));
  EXPECT_FALSE(TokenizeCases(Toy(), "{}", "cases"));
  EXPECT_FALSE(TokenizeCases(Toy(), "[", "cases"));
}

TEST(TokenizerLoad, NamesTheFile) {
  const auto missing = Tokenizer::Load("tests/fixtures/no-such-tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("tests/fixtures/no-such-tokenizer.json"));
  EXPECT_FALSE(Tokenizer::Load("tests"));
  EXPECT_FALSE(Tokenizer::Load("/dev/zero"));

  const TemporaryDirectory directory;
  const std::string path = directory / "tokenizer.json";
  std::ofstream(path) << testing::ToyFile().dump();
  const auto tokenizer = Tokenizer::Load(path);
  ASSERT_TRUE(tokenizer) << tokenizer.error().ToString();
  EXPECT_EQ(Ids(*tokenizer, "a the"), Ids(Toy(), "a the"));
}

}  // namespace
}  // namespace dsv4::tokenizer
