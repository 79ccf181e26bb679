// Tests of the matcher: masks against single tokens, pieces, added tokens, snapshots, forced bytes and
// limits.
#include "grammar/matcher.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/rules/answer_grammar.h"
#include "grammar/testing.h"

namespace dsv4::grammar {
namespace {

using testing::kStop;
using testing::ToyMatcher;
using testing::ToyTrie;

constexpr std::string_view kSchemas[] = {
    "{}",
    R"({"type":"object"})",
    R"({"properties":{"a":{"type":"string"},"ab":{"type":"integer"},"x":{}},"required":["ab"]})",
    R"({"properties":{"x":{"const":1}},"additionalProperties":false})",
    R"({"items":{"enum":[1,12,"x",true,null]},"minItems":1,"maxItems":4})",
    R"({"type":"string","minLength":2,"maxLength":5})",
    R"({"type":"string","pattern":"^(the|ab)*[0-9]$"})",
    R"({"type":"number","minimum":-3,"maximum":121.5})",
    R"({"anyOf":[{"type":"array","items":{"$ref":"#"}},{"type":"array","items":{"$ref":"#"},"minItems":1},{"type":"integer"}]})",
};

// Schemas, and whole answers: free text and a call of a tool of the schema.
std::vector<std::pair<std::string, std::shared_ptr<const Program>>> Grammars() {
  std::vector<std::pair<std::string, std::shared_ptr<const Program>>> grammars;
  for (const std::string_view schema : kSchemas) grammars.emplace_back(schema, testing::CompileOrDie(schema));
  for (const char* schema :
       {R"({"properties":{"ab":{"type":"string","maxLength":4},"the":{}},"required":["ab"]})", "{}"}) {
    for (const ContentKind content : {ContentKind::kCall, ContentKind::kText}) {
      auto answer =
          CompileAnswer({.starts_in_reasoning = content == ContentKind::kText,
                         .content = content,
                         .tags = {.marker = "｜DSML｜"},
                         .tools = {{.name = "f", .parameters = schema, .strict = true, .label = "f"}}});
      EXPECT_TRUE(answer) << answer.error().ToString();
      grammars.emplace_back(content == ContentKind::kCall ? "call" : "text", *answer);
    }
  }
  return grammars;
}

// Promise of Mask(), said in the plainest way: a token is allowed exactly if Accept() takes it.
TEST(Matcher, MasksAreWhatAcceptTakes) {
  std::mt19937 random(1);
  for (const auto& [schema, grammar] : Grammars()) {
    const bool is_json = schema != "call" && schema != "text";
    for (int run = 0; run < 8; ++run) {
      Matcher matcher(grammar, ToyTrie(), {kStop});
      TokenMask mask(matcher.num_ids());
      std::string text;
      for (int step = 0; step < 60 && !matcher.IsFinished(); ++step) {
        matcher.Mask(mask);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < matcher.num_ids(); ++id) {
          Matcher copy = matcher;
          const bool taken = copy.Accept(id).ok();
          ASSERT_EQ(mask.IsAllowed(id), taken) << schema << " after " << text << ", token " << id;
          if (taken) allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty()) << schema << " after " << text;
        const TokenId id = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher.Accept(id).ok());
        if (id == kStop) {
          EXPECT_TRUE(!is_json || ParseJson(text, "walk").has_value()) << text;
        } else {
          const auto bytes = ToyTrie()->BytesOf(id);
          text.append(bytes.begin(), bytes.end());
        }
      }
    }
  }
}

TEST(Matcher, AMaskInPiecesIsTheMask) {
  const auto past = std::chrono::steady_clock::time_point::min();
  std::mt19937 random(2);
  std::vector<std::shared_ptr<const Program>> grammars;
  for (const auto& [schema, grammar] : Grammars()) grammars.push_back(grammar);
  // Very many readings of any text: a mask of many pieces.
  std::string rules = "start: (a|b|c|d)+\n";
  for (const char* rule : {"ab", "bc", "cd", "da"})
    rules += fmt::format("{0}: /[a-z ,.]+/ | {0} {0} | /[a-z ]+/ {1}\n", rule[0], rule[1]);
  grammars.push_back(*CompileAnswer(
      {.content = ContentKind::kRule, .rule = {.kind = ContentRule::Kind::kLark, .text = rules}}));
  int64_t most_pieces = 0;
  for (const auto& grammar : grammars) {
    Matcher matcher(grammar, ToyTrie(), {kStop});
    Matcher in_pieces = matcher;
    TokenMask mask(matcher.num_ids());
    TokenMask pieces(matcher.num_ids());
    for (int step = 0; step < 20 && !matcher.IsFinished(); ++step) {
      matcher.Mask(mask);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < matcher.num_ids(); ++id) {
        if (mask.IsAllowed(id)) allowed.push_back(id);
      }
      int64_t count = 1;
      // Every third is given up in its midst.
      while (!in_pieces.MaskUntil(pieces, past) && step % 3 != 2) ++count;
      most_pieces = std::max(most_pieces, count);
      for (TokenId id = 0; id < matcher.num_ids() && step % 3 != 2; ++id)
        ASSERT_EQ(mask.IsAllowed(id), pieces.IsAllowed(id)) << step;
      const TokenId id = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher.Accept(id).ok());
      ASSERT_TRUE(in_pieces.Accept(id).ok());
    }
  }
  EXPECT_GT(most_pieces, 10);
}

TEST(Matcher, AddedTokensAreNeverAllowedAndStopTokensOnlyAtTheEnd) {
  Matcher matcher = ToyMatcher(R"({"type":"integer","maximum":12,"minimum":0})");
  TokenMask mask(matcher.num_ids());
  matcher.Mask(mask);
  EXPECT_FALSE(mask.IsAllowed(kStop));
  EXPECT_FALSE(matcher.Accept(kStop).ok());
  for (TokenId id = 290; id <= 300; ++id) EXPECT_FALSE(mask.IsAllowed(id));
  EXPECT_FALSE(matcher.Accept(-1).ok());
  EXPECT_FALSE(matcher.Accept(1 << 30).ok());
  ASSERT_TRUE(matcher.AcceptBytes("1").ok());
  EXPECT_TRUE(matcher.IsComplete());
  matcher.Mask(mask);
  EXPECT_TRUE(mask.IsAllowed(kStop));
  EXPECT_EQ(mask.Count(), 4);  // The stop token, 0, 1, 2.
  ASSERT_TRUE(matcher.Accept(kStop).ok());
  EXPECT_TRUE(matcher.IsFinished());
  matcher.Mask(mask);
  EXPECT_EQ(mask.Count(), 0);
  EXPECT_FALSE(matcher.Accept(kStop).ok());
}

TEST(Matcher, ARefusedTokenChangesNothingAndACopyIsASnapshot) {
  Matcher matcher =
      ToyMatcher(R"({"properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})");
  ASSERT_TRUE(matcher.AcceptBytes("{\"a").ok());
  EXPECT_FALSE(matcher.AcceptBytes("\":x").ok());
  const Matcher snapshot = matcher;
  ASSERT_TRUE(matcher.AcceptBytes("\":12}").ok());
  EXPECT_TRUE(matcher.IsComplete());
  EXPECT_FALSE(snapshot.IsComplete());
  Matcher again = snapshot;
  EXPECT_FALSE(again.AcceptBytes("b").ok());
  EXPECT_TRUE(again.AcceptBytes("\": 3}").ok());
}

TEST(Matcher, ForcedBytesAreWhatMustCome) {
  Matcher matcher = ToyMatcher(
      R"({"properties":{"city":{"const":"Rome"}},"required":["city"],"additionalProperties":false})");
  EXPECT_EQ(matcher.ForcedBytes(), "{");  // Then white space may come.
  ASSERT_TRUE(matcher.AcceptBytes("{\"").ok());
  EXPECT_EQ(matcher.ForcedBytes(), "city\":");
  ASSERT_TRUE(matcher.AcceptBytes("city\":\"").ok());
  EXPECT_EQ(matcher.ForcedBytes(), "Rome\"");
  std::string spelled;
  for (const TokenId id : matcher.ForcedTokens(100)) {
    const auto bytes = ToyTrie()->BytesOf(id);
    spelled.append(bytes.begin(), bytes.end());
  }
  EXPECT_EQ(spelled, "Rome\"");
  const std::vector<TokenId> forced = matcher.ForcedTokens(100);
  EXPECT_EQ(matcher.ForcedTokens(1), std::vector<TokenId>{forced.front()});
  EXPECT_TRUE(matcher.ForcedTokens(0).empty());
  EXPECT_EQ(matcher.CountAllowed(forced), forced.size());
  std::vector<TokenId> wrong = forced;
  wrong.insert(wrong.begin() + 1, kStop);
  EXPECT_EQ(matcher.CountAllowed(wrong), 1U);
  EXPECT_EQ(matcher.ForcedBytes(), "Rome\"");  // Nothing was accepted.
  ASSERT_TRUE(matcher.AcceptBytes("Rome\"}").ok());
  EXPECT_EQ(matcher.ForcedBytes(), "");
}

TEST(Matcher, ManyReadingsAreCutNotFailed) {
  // Twice as many stacks at every level.
  Matcher matcher = ToyMatcher(kSchemas[8]);
  TokenMask mask(matcher.num_ids());
  for (int depth = 0; depth < 40; ++depth) {
    ASSERT_TRUE(matcher.AcceptBytes("[").ok()) << depth;
    matcher.Mask(mask);
    ASSERT_GT(mask.Count(), 0) << depth;
  }
  ASSERT_TRUE(matcher.AcceptBytes("1").ok());
  for (int depth = 0; depth < 40; ++depth) ASSERT_TRUE(matcher.AcceptBytes("]").ok()) << depth;
  EXPECT_TRUE(matcher.IsComplete());
}

TEST(Matcher, LongTextsNeedNoMoreMemoryThanTheirNesting) {
  Matcher matcher = ToyMatcher("{}");
  TokenMask mask(matcher.num_ids());
  ASSERT_TRUE(matcher.AcceptBytes("[").ok());
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(matcher.AcceptBytes(R"({"k":[1,"x",{"y":null}]},)").ok());
    if (i % 100 == 0) matcher.Mask(mask);
  }
  EXPECT_TRUE(matcher.AcceptBytes("1]").ok());
  EXPECT_TRUE(matcher.IsComplete());
}

TEST(TokenTrie, EveryTokenIsInItOnce) {
  const auto trie = ToyTrie();
  int64_t tokens = 0;
  for (uint32_t node = 0; node < trie->nodes().size(); ++node) {
    for (const TokenId id : trie->TokensOf(node)) {
      ++tokens;
      EXPECT_EQ(trie->BytesOf(id).size(), trie->nodes()[node].depth);
      EXPECT_EQ(trie->BytesOf(id).back(), trie->nodes()[node].byte);
    }
  }
  int64_t with_bytes = 0;
  for (TokenId id = 0; id < trie->num_ids(); ++id) with_bytes += trie->BytesOf(id).empty() ? 0 : 1;
  EXPECT_EQ(tokens, with_bytes);
  EXPECT_THAT(trie->BytesOf(kStop), ::testing::ElementsAre(kOtherMarkerByte));  // An added token is no text.
  EXPECT_THAT(trie->BytesOf(testing::kThinkEnd), ::testing::ElementsAre(kThinkEndByte));
}

}  // namespace
}  // namespace dsv4::grammar
