// The fixtures of the specification: prompts byte for byte, completions strict and lenient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "base/utf8.h"
#include "chat/completion_parser.h"
#include "chat/renderer.h"
#include "chat/strict_parser.h"

namespace dsv4::chat {
namespace {

JsonValue ReadFixture(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  Result<JsonValue> json = ReadJson(text.str(), path);
  EXPECT_TRUE(json.has_value()) << json.error().ToString();
  return json.value_or(JsonValue());
}

std::string Text(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  return value == nullptr ? "" : value->text();
}

Result<RenderedPrompt> RenderCase(const JsonValue& test) {
  const JsonValue& json = *test.Find("options");
  DSV4_ASSIGN_OR_RETURN(const ChatProfile* profile, FindChatProfile(Text(json, "revision")));
  DSV4_ASSIGN_OR_RETURN(std::vector<Message> messages, ParseMessages(*test.Find("messages"), "messages"));
  DSV4_ASSIGN_OR_RETURN(std::vector<JsonValue> tools, ParseTools(*test.Find("tools"), "tools"));
  AttachTools(messages, std::move(tools));
  RenderOptions options;
  options.mode = Text(json, "thinking_mode") == "chat" ? ThinkingMode::kChat : ThinkingMode::kThinking;
  options.drop_thinking = json.Find("drop_thinking")->boolean();
  options.add_bos = json.Find("add_default_bos_token")->boolean();
  if (json.Find("reasoning_effort")->is_string()) options.effort = Text(json, "reasoning_effort");
  return RenderPrompt(*profile, messages, options);
}

TEST(EncodingFixtures, EveryPromptIsEqualByteForByteOrAnError) {
  const JsonValue cases = ReadFixture("tests/fixtures/encoding-cases.json");
  ASSERT_EQ(cases.items().size(), 56u);
  for (const JsonValue& test : cases.items()) {
    SCOPED_TRACE(Text(test, "name"));
    const Result<RenderedPrompt> prompt = RenderCase(test);
    if (test.Find("error") != nullptr) {
      EXPECT_FALSE(prompt.has_value()) << prompt->text();
    } else if (prompt.has_value()) {
      EXPECT_EQ(prompt->text(), Text(test, "rendered"));
    } else {
      ADD_FAILURE() << prompt.error().ToString();
    }
  }
}

class ParsingFixtures : public ::testing::Test {
 protected:
  ParsingFixtures() : cases_(ReadFixture("tests/fixtures/parsing-cases.json")) {}

  static ThinkingMode Mode(const JsonValue& test) {
    return Text(test, "mode") == "chat" ? ThinkingMode::kChat : ThinkingMode::kThinking;
  }
  static std::string LenientExpected(const JsonValue& test) {
    const JsonValue* expected = test.Find("lenient_expected");
    return WriteJson(expected != nullptr ? *expected : *test.Find("expected"));
  }
  // The lenient answer for a text fed in the given pieces.
  std::string Streamed(const JsonValue& test, const std::vector<std::string_view>& pieces) const {
    ParserOptions options;
    options.starts_in_reasoning = Mode(test) == ThinkingMode::kThinking;
    CompletionParser parser(profile_, options);
    CompletionCollector collector;
    for (const std::string_view piece : pieces) {
      for (const Delta& delta : parser.Feed(piece)) {
        EXPECT_EQ(FindInvalidUtf8(delta.text), std::string_view::npos) << "a delta ends inside a character";
        collector.Add(delta);
      }
    }
    for (const Delta& delta : parser.Finish(EndCause::kStop)) collector.Add(delta);
    return WriteJson(ToJson(collector.Take().message));
  }

  const JsonValue cases_;
  const ChatProfile& profile_ = *FindChatProfile("v4").value();
};

TEST_F(ParsingFixtures, AreAllThere) { EXPECT_EQ(cases_.items().size(), 32u); }

TEST_F(ParsingFixtures, Strict) {
  for (const JsonValue& test : cases_.items()) {
    SCOPED_TRACE(Text(test, "name"));
    const Result<ParsedCompletion> parsed = ParseStrict(profile_, Text(test, "completion"), Mode(test));
    if (test.Find("error") != nullptr) {
      EXPECT_FALSE(parsed.has_value());
    } else if (parsed.has_value()) {
      EXPECT_EQ(WriteJson(ToJson(*parsed)), WriteJson(*test.Find("expected")));
    } else {
      ADD_FAILURE() << parsed.error().ToString();
    }
  }
}

TEST_F(ParsingFixtures, LenientInOnePiece) {
  for (const JsonValue& test : cases_.items()) {
    SCOPED_TRACE(Text(test, "name"));
    EXPECT_EQ(Streamed(test, {Text(test, "completion")}), LenientExpected(test));
  }
}

TEST_F(ParsingFixtures, LenientCutInTwoAtEveryByte) {
  for (const JsonValue& test : cases_.items()) {
    const std::string completion = Text(test, "completion");
    const std::string_view text = completion;
    const std::string expected = LenientExpected(test);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      ASSERT_EQ(Streamed(test, {text.substr(0, cut), text.substr(cut)}), expected)
          << Text(test, "name") << " at " << cut;
    }
  }
}

TEST_F(ParsingFixtures, LenientByteByByte) {
  for (const JsonValue& test : cases_.items()) {
    const std::string completion = Text(test, "completion");
    std::vector<std::string_view> pieces;
    for (size_t i = 0; i < completion.size(); ++i)
      pieces.push_back(std::string_view(completion).substr(i, 1));
    EXPECT_EQ(Streamed(test, pieces), LenientExpected(test)) << Text(test, "name");
  }
}

TEST_F(ParsingFixtures, LenientCutAtRandom) {
  std::mt19937 random(20260401);
  for (const JsonValue& test : cases_.items()) {
    const std::string completion = Text(test, "completion");
    const std::string expected = LenientExpected(test);
    for (int repeat = 0; repeat < 50; ++repeat) {
      const size_t longest = std::uniform_int_distribution<size_t>(1, 24)(random);
      std::vector<std::string_view> pieces;
      std::string_view rest = completion;
      while (!rest.empty()) {
        const size_t size = std::min(rest.size(), std::uniform_int_distribution<size_t>(0, longest)(random));
        pieces.push_back(rest.substr(0, size));
        rest.remove_prefix(size);
      }
      ASSERT_EQ(Streamed(test, pieces), expected) << Text(test, "name");
    }
  }
}

}  // namespace
}  // namespace dsv4::chat
