// The release's vocabulary against ids made with Hugging Face's library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/stop_set.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/testing.h"
#include "tokenizer/token_classes.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_file.h"

namespace dsv4::tokenizer {
namespace {

using ::testing::ElementsAre;

const Tokenizer& ReleaseTokenizer() {
  static const Tokenizer tokenizer = [] {
    auto parsed = Tokenizer::Parse(testing::ReadReleaseFile(), "deepseek-v3-tokenizer.json");
    EXPECT_TRUE(parsed) << parsed.error().ToString();
    return std::move(*parsed);
  }();
  return tokenizer;
}

const Tokenizer& V4Tokenizer() {
  static const Tokenizer tokenizer = [] {
    auto parsed = Tokenizer::Parse(testing::ReadReleaseFileWithV4Tokens(), "tokenizer.json with V4's tokens");
    EXPECT_TRUE(parsed) << parsed.error().ToString();
    return std::move(*parsed);
  }();
  return tokenizer;
}

std::vector<TokenId> Ids(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.Encode(text);
  EXPECT_TRUE(ids) << ids.error().ToString();
  return ids.value_or(std::vector<TokenId>());
}

TEST(TokenizerGolden, AllFixtures) {
  std::ifstream stream("tests/fixtures/tokenizer-cases.json");
  const auto cases = nlohmann::json::parse(stream);
  ASSERT_GE(cases.size(), 35u);
  for (const auto& item : cases) {
    const auto text = item["text"].get<std::string>();
    const auto ids = item["ids"].get<std::vector<TokenId>>();
    SCOPED_TRACE(text);
    EXPECT_EQ(Ids(V4Tokenizer(), text), ids);
    EXPECT_EQ(V4Tokenizer().Decode(ids), text);
    if (!item["needs_v4_added_tokens"].get<bool>()) {
      EXPECT_EQ(Ids(ReleaseTokenizer(), text), ids);
    } else {
      EXPECT_NE(Ids(ReleaseTokenizer(), text), ids);
    }
    StreamDecoder decoder(V4Tokenizer());
    std::string streamed;
    for (const TokenId id : ids) streamed += decoder.Append(id);
    EXPECT_EQ(streamed + decoder.Finish(), text);
  }
}

TEST(TokenizerGolden, PublishedLine) {
  EXPECT_THAT(Ids(V4Tokenizer(), "<｜User｜>你好<｜Assistant｜><think>推理</think>答案<｜end▁of▁sentence｜>"),
              ElementsAre(128803, 30594, 128804, 128821, 36101, 128822, 7624, 1));
}

TEST(TokenizerGolden, ReleaseFileTakesTheScanner) {
  const auto file = ParseTokenizerFile(testing::ReadReleaseFile(), "file");
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->split_rules, V4SplitRules());
  EXPECT_EQ(file->vocab.size(), 128000u);
  EXPECT_EQ(file->merges.size(), 127741u);
  EXPECT_EQ(file->added_tokens.size(), 818u);
}

TEST(TokenizerGolden, SpecialTokensAndStopSet) {
  const auto tokens = SpecialTokens::Resolve(V4Tokenizer());
  ASSERT_TRUE(tokens) << tokens.error().ToString();
  EXPECT_EQ(tokens->begin_of_sentence, 0);
  EXPECT_EQ(tokens->end_of_sentence, 1);
  EXPECT_EQ(tokens->user, 128803);
  EXPECT_EQ(tokens->assistant, 128804);
  EXPECT_EQ(tokens->think_begin, 128821);
  EXPECT_EQ(tokens->think_end, 128822);
  EXPECT_EQ(tokens->dsml, 128825);
  EXPECT_EQ(tokens->latest_reminder, 128828);
  EXPECT_EQ(tokens->read_url, 128845);
  EXPECT_EQ(tokens->system, std::nullopt);
  EXPECT_TRUE(StopSet::ForChat(*tokens).Contains(1));

  const auto missing = SpecialTokens::Resolve(ReleaseTokenizer());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.error().message(), ::testing::HasSubstr("\"<think>\", \"</think>\", \"｜DSML｜\";"));
}

TEST(TokenizerGolden, NoBeginOfSentenceByItself) {
  EXPECT_THAT(Ids(ReleaseTokenizer(), ""), ElementsAre());
  EXPECT_EQ(Ids(ReleaseTokenizer(), "x").size(), 1u);
  EXPECT_NE(Ids(ReleaseTokenizer(), "x")[0], 0);
}

TEST(TokenizerGolden, RandomTextSurvivesTheRoundTrip) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::string text = testing::RandomText(&random, 200);
    EXPECT_EQ(V4Tokenizer().DecodeBytes(Ids(V4Tokenizer(), text)), text) << "seed " << seed;
  }
}

// The padding rows of the embedding, and ids no embedding has.
TEST(TokenizerGolden, IdsWithoutATokenDecodeToNothing) {
  for (const TokenId id :
       {128815, 128847, 129279, 129280, 1 << 30, -1, std::numeric_limits<TokenId>::min()}) {
    EXPECT_FALSE(V4Tokenizer().IsDefined(id)) << id;
    EXPECT_EQ(V4Tokenizer().Decode(std::vector<TokenId>{19923, id, 2058}), "Hello world") << id;
  }
}

// Count and hash are those of an implementation in Python on `unicodedata`.
TEST(TokenizerGolden, TokenClasses) {
  const auto classes = MakeTokenClasses(ReleaseTokenizer(), ReleaseTokenizer().num_ids());
  ASSERT_TRUE(classes) << classes.error().ToString();
  EXPECT_EQ(classes->of_id.size(), 128815u);
  EXPECT_EQ(classes->count, 98627);
  uint64_t hash = 14695981039346656037U;
  for (const int32_t token_class : classes->of_id)
    hash = (hash ^ static_cast<uint64_t>(token_class)) * 1099511628211U;
  EXPECT_EQ(hash, 6018272102448026600U);
}

// A quadratic encoder takes minutes for these, and a linear scanner that backtracks does too.
TEST(TokenizerGolden, LongRunsAreFast) {
  const std::clock_t start = std::clock();  // Processor time: the machine may be busy.
  std::mt19937 random(5);
  std::string letters;
  for (int i = 0; i < (1 << 16); ++i) letters.push_back(static_cast<char>('a' + random() % 26));
  for (const std::string& text :
       {letters, std::string(1 << 16, 'a'), std::string(1 << 18, ' '), std::string(1 << 18, '\n'),
        std::string(1 << 18, '-'), std::string(1 << 18, '7'), std::string(1 << 16, '\x01')}) {
    EXPECT_EQ(V4Tokenizer().DecodeBytes(Ids(V4Tokenizer(), text)), text);
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 20.0);  // Half a second when optimised; sanitizers take their share.
}

}  // namespace
}  // namespace dsv4::tokenizer
