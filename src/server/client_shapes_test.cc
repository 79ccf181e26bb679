// Requests in the shapes that agents and SDKs send them, and what the model gets to see of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "server/dialects/anthropic_messages.h"
#include "server/dialects/ollama.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"
#include "server/dialects/openai_responses.h"
#include "server/served_model_testing.h"

namespace dsv4::server {
namespace {

using chat::JsonValue;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ServedModel& Tiny() {
  static const ServedModel model = MakeTinyServedModel("models/tiny/tokenizer.json", "v4-0731");
  return model;
}

std::string Text(const JsonValue& json, std::string_view key) { return json.Find(key)->text(); }

// The base body with the members that the case changes.
JsonValue Merge(const JsonValue& base, const JsonValue& change) {
  std::vector<JsonValue::Member> members = base.members();
  for (const JsonValue::Member& member : change.members()) {
    std::erase_if(members, [&](const JsonValue::Member& old) { return old.first == member.first; });
    members.push_back(member);
  }
  return JsonValue::Object(std::move(members));
}

Result<ChatCall> Read(std::string_view api, const JsonValue& body, const ServedModel& model = Tiny()) {
  if (api == "chat") {
    DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest request, ReadOpenAiChat(model, body));
    return std::move(request.call);
  }
  if (api == "responses") {
    DSV4_ASSIGN_OR_RETURN(ResponsesRequest request, ReadResponses(model, body));
    return std::move(request.call);
  }
  DSV4_ASSIGN_OR_RETURN(AnthropicRequest request, ReadAnthropic(model, body));
  return std::move(request.call);
}

// The prompt, or the error.
std::string Prompt(std::string_view api, const JsonValue& body) {
  Result<ChatCall> call = Read(api, body);
  if (!call) return call.error().message();
  const Result<std::vector<int32_t>> ids = ChatPrompt(Tiny(), CallMemory(1 << 20), std::move(*call));
  return ids ? Tiny().tokenizer.Decode(*ids) : ids.error().message();
}

std::string Prompt(std::string_view api, std::string_view body) {
  return Prompt(api, *chat::ReadJson(body, "test"));
}

TEST(ClientShapes, EveryClientGetsItsPrompt) {
  std::ifstream file("tests/fixtures/client-shapes.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto fixture = chat::ReadJson(text.str(), "client-shapes.json");
  ASSERT_TRUE(fixture) << fixture.error().ToString();
  const std::vector<JsonValue>& cases = fixture->Find("cases")->items();
  EXPECT_GE(cases.size(), 29);
  for (const JsonValue& shape : cases) {
    SCOPED_TRACE(Text(shape, "name"));
    const JsonValue* base = fixture->Find("bases")->Find(Text(shape, "base"));
    const auto call = Read(Text(*base, "api"), Merge(*base->Find("body"), *shape.Find("change")));
    // Codex's wish for the length of texts is nothing that this model has been taught.
    if (call) {
      EXPECT_THAT(call->sampling.unknown_fields, AnyOf(IsEmpty(), ElementsAre("text.verbosity")));
    }
    const std::string prompt = Prompt(Text(*base, "api"), Merge(*base->Find("body"), *shape.Find("change")));
    EXPECT_TRUE(prompt.ends_with(Text(shape, "turns"))) << prompt;
    std::string tools;
    for (const JsonValue& tool : shape.Find("tools")->items()) tools += chat::WriteJson(tool) + "\n";
    if (!tools.empty()) {
      EXPECT_THAT(prompt, HasSubstr("### Available Tool Schemas\n\n" + tools + "\nYou MUST"));
    }
    EXPECT_EQ(prompt.find("x-anthropic-billing-header"), std::string::npos);
  }
}

TEST(ClientShapes, TheBillingHeaderAloneGoes) {
  const auto system = [](const std::string& json) {
    const std::string prompt = Prompt(
        "messages",
        R"({"thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "q"}], "system": )" +
            json + "}");
    const size_t start = std::string_view("<｜begin▁of▁sentence｜>").size();
    return prompt.substr(start, prompt.find("<｜User｜>") - start);
  };
  EXPECT_EQ(
      system(
          R"([{"type": "text", "text": "X-Anthropic-Billing-Header: cch=1;"}, {"type": "text", "text": "A"}])"),
      "A");
  EXPECT_EQ(system(R"([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}])"), "");
  EXPECT_EQ(
      system(R"([{"type": "text", "text": "A"}, {"type": "text", "text": "x-anthropic-billing-header"}])"),
      "A\n\nx-anthropic-billing-header");
  EXPECT_EQ(system(R"("x-anthropic-billing-header")"), "x-anthropic-billing-header");
}

TEST(ClientShapes, WhatWouldChangeTheAnswerIsNotLeftOut) {
  EXPECT_THAT(
      Prompt("responses", R"({"input": [{"type": "item_reference", "id": "msg_1"}]})"),
      HasSubstr(
          "input[0].type: got item_reference: send the item itself (store: false), or previous_response_id"));
  EXPECT_THAT(Prompt("responses", R"({"input": "q", "tools": [{"type": "sorcery"}]})"),
              HasSubstr("tools[0].type: got 'sorcery', wanted function, custom or namespace"));
  EXPECT_THAT(
      Prompt(
          "responses",
          R"({"input": "q", "tools": [{"type": "function", "name": "a__f"}, {"type": "namespace", "name": "a",
                     "tools": [{"type": "function", "name": "f"}]}]})"),
      HasSubstr("tools[1].tools[0].name: got 'a__f', which another tool is called too"));
  EXPECT_THAT(Prompt("messages", R"({"messages": [{"role": "user", "content": "q"}],
                     "tools": [{"type": "bash_20250124", "name": "bash"}]})"),
              HasSubstr("tools[0].type: got 'bash_20250124'"));
}

TEST(ClientShapes, AFieldThatIsNotKnownIsNamedOrRefused) {
  struct Shape {
    const char* api;
    const char* body;
  };
  const Shape shapes[] = {
      {"chat",
       R"({"messages": [{"role": "user", "content": "q", "extra": 1}], "user": "me", "absent": null, "max_token": 5,
                   "stream_options": {"include_usage": true, "every": 1}, "chat_template_kwargs": {"thinking": false, "custom": 1}})"},
      {"responses",
       R"({"input": "q", "service_tier": "auto", "max_token": 5, "text": {"verbosity": "low", "format": {"type": "text"}},
                        "reasoning": {"effort": "high", "summary": "auto", "every": 1}})"},
      {"messages",
       R"({"messages": [{"role": "user", "content": "q"}], "max_tokens": 5, "max_token": 5, "metadata": {"user_id": "x"},
                       "thinking": {"type": "adaptive", "display": "omitted", "every": 1}, "output_config": {"effort": "high", "every": 1}})"}};
  const std::vector<std::vector<std::string>> want = {
      {"max_token", "chat_template_kwargs.custom", "stream_options.every"},
      {"max_token", "reasoning.every", "text.verbosity"},
      {"max_token", "output_config.every", "thinking.every"}};
  ServedModel strict = MakeTinyServedModel("models/tiny/tokenizer.json", "v4-0731");
  strict.refuse_unknown_fields = true;
  for (size_t i = 0; i < std::size(shapes); ++i) {
    const JsonValue body = *chat::ReadJson(shapes[i].body, "test");
    const auto call = Read(shapes[i].api, body);
    ASSERT_TRUE(call) << call.error().ToString();
    EXPECT_EQ(call->sampling.unknown_fields, want[i]);
    EXPECT_EQ(Read(shapes[i].api, body, strict).error().message(),
              "max_token: a field that is not known here (--unknown-fields refuse)");
  }
  const auto completions =
      ReadCompletions(Tiny(), *chat::ReadJson(R"({"prompt": "q", "top": 1, "user": "me"})", "test"));
  ASSERT_TRUE(completions);
  EXPECT_THAT(completions->sampling.unknown_fields, ElementsAre("top"));
  const auto ollama = ReadOllamaChat(
      Tiny(),
      *chat::ReadJson(
          R"({"messages": [{"role": "user", "content": "q"}], "keep_alive": 5, "raw": true, "options": {"num_ctx": 9, "odd": 1}})",
          "test"));
  ASSERT_TRUE(ollama);
  EXPECT_THAT(ollama->chat.call.sampling.unknown_fields, ElementsAre("odd", "raw"));
}

std::string Decoded(std::string_view arguments, size_t piece) {
  CustomInputReader reader;
  std::string input;
  for (size_t i = 0; i < arguments.size(); i += piece) reader.Feed(arguments.substr(i, piece), input);
  reader.Finish(input);
  return input;
}

TEST(CustomInput, TheTextComesBackHoweverItIsCut) {
  const std::string text = "*** Begin \"Patch\"\n\\ \t\x01 grün 😀 </x>";
  for (size_t piece = 1; piece < 30; ++piece) {
    EXPECT_EQ(Decoded(CustomArguments(text), piece), text);
    EXPECT_EQ(Decoded(R"({"input": "a\ud83d\ude00\u00fc\/b"})", piece), "a😀ü/b");
    EXPECT_EQ(Decoded(R"({"input": ""})", piece), "");
    EXPECT_EQ(Decoded(R"({"patch": "p\nq"})", piece), "p\nq");
    EXPECT_EQ(Decoded(R"({"a": 1, "b": "x"})", piece), R"({"a": 1, "b": "x"})");
  }
}

}  // namespace
}  // namespace dsv4::server
