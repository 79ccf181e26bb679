// The fixtures of the specification: prompts byte for byte, completions strict and lenient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

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

TEST(ParsingFixtures, Strict) {
  const JsonValue cases = ReadFixture("tests/fixtures/parsing-cases.json");
  ASSERT_EQ(cases.items().size(), 32u);
  for (const JsonValue& test : cases.items()) {
    SCOPED_TRACE(Text(test, "name"));
    const ThinkingMode mode = Text(test, "mode") == "chat" ? ThinkingMode::kChat : ThinkingMode::kThinking;
    const Result<ParsedCompletion> parsed =
        ParseStrict(*FindChatProfile("v4").value(), Text(test, "completion"), mode);
    if (test.Find("error") != nullptr) {
      EXPECT_FALSE(parsed.has_value());
    } else if (parsed.has_value()) {
      EXPECT_EQ(WriteJson(ToJson(*parsed)), WriteJson(*test.Find("expected")));
    } else {
      ADD_FAILURE() << parsed.error().ToString();
    }
  }
}

}  // namespace
}  // namespace dsv4::chat
