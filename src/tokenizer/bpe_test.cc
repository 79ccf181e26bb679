// Tests of byte-pair encoding against the definition, order of merges, and bad tables.
#include "tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/testing.h"

namespace dsv4::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<VocabEntry> ByteVocab() {
  std::vector<VocabEntry> vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab.push_back({ByteToAlphabet(static_cast<unsigned char>(byte)), byte});
  return vocab;
}

struct Model {
  Vocabulary vocabulary;
  Bpe bpe;
};

// The merges make their own vocabulary entries.
Model MakeModel(const std::vector<MergeRule>& merges) {
  std::vector<VocabEntry> vocab = ByteVocab();
  for (const MergeRule& rule : merges) {
    const std::string text = rule.left + rule.right;
    bool is_known = false;
    for (const VocabEntry& entry : vocab) is_known = is_known || entry.text == text;
    if (!is_known) vocab.push_back({text, static_cast<TokenId>(vocab.size())});
  }
  auto vocabulary = Vocabulary::Create(vocab, {});
  EXPECT_TRUE(vocabulary) << vocabulary.error().ToString();
  auto bpe = Bpe::Create(*vocabulary, merges);
  EXPECT_TRUE(bpe) << bpe.error().ToString();
  return {std::move(*vocabulary), std::move(*bpe)};
}

std::vector<std::string> Encode(const Model& model, std::string_view piece) {
  std::vector<TokenId> ids;
  model.bpe.Encode(piece, &ids);
  std::vector<std::string> tokens;
  for (const TokenId id : ids) tokens.emplace_back(model.vocabulary.Bytes(id));
  return tokens;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const Model model = MakeModel({{"b", "c"}, {"a", "b"}, {"a", "a"}});
  EXPECT_THAT(Encode(model, "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(Encode(model, "ab"), ElementsAre("ab"));
  EXPECT_THAT(Encode(model, "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(Encode(model, "aaab"), ElementsAre("aa", "ab"));
  EXPECT_THAT(Encode(model, ""), ElementsAre());
}

// A token of the vocabulary that no sequence of merges reaches is never produced.
TEST(Bpe, AWholePieceIsNotLookedUp) {
  const Model model = MakeModel({{"b", "c"}, {"a", "b"}, {"ab", "c"}});
  ASSERT_TRUE(model.vocabulary.FindBase("abc"));
  EXPECT_THAT(Encode(model, "abc"), ElementsAre("a", "bc"));
}

// Random merge tables over four letters, on pieces shorter and longer than the border between the two
// algorithms.
TEST(Bpe, EqualsTheDefinition) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    std::vector<MergeRule> merges;
    for (int i = 0; i < 40; ++i) {
      const MergeRule rule{tokens[random() % tokens.size()], tokens[random() % tokens.size()]};
      bool is_known = false;
      for (const MergeRule& other : merges)
        is_known = is_known || (other.left == rule.left && other.right == rule.right);
      if (is_known || rule.left.size() + rule.right.size() > 12) continue;
      merges.push_back(rule);
      tokens.push_back(rule.left + rule.right);
    }
    // In another order than the tokens came about: merges of high rank may need others of higher rank.
    std::shuffle(merges.begin(), merges.end(), random);
    const Model model = MakeModel(merges);
    for (const size_t length : {1, 2, 3, 7, 31, 63, 64, 65, 66, 200, 500}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece.push_back(static_cast<char>('a' + random() % 4));
      std::vector<TokenId> ids;
      model.bpe.Encode(piece, &ids);
      ASSERT_EQ(ids, testing::NaiveBpe(model.bpe, piece)) << "seed " << seed << ": " << piece;
    }
  }
}

// Pieces of several windows. The definition is quadratic, so the piece as one window is the judge.
TEST(Bpe, WindowsChangeNoId) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::vector<MergeRule> merges;
    for (int i = 0; i < 60; ++i) {
      const MergeRule rule{tokens[random() % tokens.size()], tokens[random() % tokens.size()]};
      bool is_known = false;
      for (const MergeRule& other : merges)
        is_known = is_known || (other.left == rule.left && other.right == rule.right);
      if (is_known || rule.left.size() + rule.right.size() > 40) continue;
      merges.push_back(rule);
      tokens.push_back(rule.left + rule.right);
    }
    if (seed % 2 == 1) std::shuffle(merges.begin(), merges.end(), random);
    const Model model = MakeModel(merges);
    for (const unsigned letters : {1u, 2u, 3u}) {
      std::string piece;
      for (size_t i = 0; i < 150001; ++i) piece.push_back(static_cast<char>('a' + random() % letters));
      std::vector<TokenId> ids;
      model.bpe.Encode(piece, &ids);
      std::vector<TokenId> whole;
      model.bpe.EncodeWindow(piece, &whole);
      ASSERT_EQ(ids, whole) << "seed " << seed << ", " << letters << " letters";
      std::vector<TokenId> some;
      model.bpe.Encode(piece, &some, 10);
      EXPECT_GT(some.size(), 10u);
      EXPECT_LT(some.size(), 40000u);
    }
  }
}

// Tokens longer than a window: none of its borders stays, until the windows have grown.
TEST(Bpe, WindowsGrowWithTheTokens) {
  std::vector<MergeRule> merges;
  for (std::string token = "a"; token.size() <= 65536; token += token) merges.push_back({token, token});
  const Model model = MakeModel(merges);
  std::vector<TokenId> ids;
  model.bpe.Encode(std::string(200'000, 'a'), &ids);
  std::vector<TokenId> whole;
  model.bpe.EncodeWindow(std::string(200'000, 'a'), &whole);
  EXPECT_EQ(ids, whole);
  EXPECT_EQ(model.vocabulary.Bytes(ids.front()).size(), 131072u);
}

TEST(Bpe, NamesWhatTheVocabularyLacks) {
  std::vector<VocabEntry> vocab = ByteVocab();
  const auto vocabulary = Vocabulary::Create(vocab, {});
  ASSERT_TRUE(vocabulary);
  for (const auto& [rule, message] : std::initializer_list<std::pair<MergeRule, std::string>>{
           {{"xyz", "a"}, "\"xyz\" is not in model.vocab"},
           {{"a", "xyz"}, "\"xyz\" is not in model.vocab"},
           {{"a", "b"}, "\"ab\" is not in model.vocab"}}) {
    const auto bpe = Bpe::Create(*vocabulary, {rule});
    ASSERT_FALSE(bpe);
    EXPECT_EQ(bpe.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(bpe.error().message(), HasSubstr(message));
  }
  vocab.erase(vocab.begin() + 0x20);
  const auto without_blank = Vocabulary::Create(vocab, {});
  const auto bpe = Bpe::Create(*without_blank, {});
  ASSERT_FALSE(bpe);
  EXPECT_THAT(bpe.error().message(), HasSubstr("byte 0x20 (\"Ġ\")"));
}

TEST(Bpe, RefusesAMergeGivenTwice) {
  std::vector<VocabEntry> vocab = ByteVocab();
  vocab.push_back({"ab", 256});
  const auto bpe = Bpe::Create(*Vocabulary::Create(vocab, {}), {{"a", "b"}, {"a", "b"}});
  ASSERT_FALSE(bpe);
  EXPECT_THAT(bpe.error().message(), HasSubstr("entry 1 (\"a\" + \"b\"): given twice"));
}

// More pieces than slots, so that every slot is taken over many times; and pieces that do not fit a slot.
TEST(PieceCache, NeverChangesAnId) {
  PieceCache cache;
  std::mt19937 random(3);
  const auto compute = [](std::string_view piece, std::vector<TokenId>* ids) {
    for (const char c : piece) ids->push_back(c);
    ids->push_back(static_cast<TokenId>(piece.size()));
  };
  size_t num_computed = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string piece;
    const size_t size = 1 + random() % (i % 8 == 0 ? 40 : 4);
    for (size_t k = 0; k < size; ++k) piece.push_back(static_cast<char>('a' + random() % 20));
    std::vector<TokenId> expected = {-1};
    std::vector<TokenId> ids = {-1};
    compute(piece, &expected);
    cache.Append(piece, &ids, [&](std::string_view missed, std::vector<TokenId>* out) {
      ++num_computed;
      compute(missed, out);
    });
    ASSERT_EQ(ids, expected) << piece;
  }
  EXPECT_LT(num_computed, 190000u);  // Some were remembered,
  EXPECT_GT(num_computed, 50000u);   // and some forgotten.
}

}  // namespace
}  // namespace dsv4::tokenizer
