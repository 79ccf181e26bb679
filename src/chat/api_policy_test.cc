// Tests of API policies: placement of system messages and reminders, switches of thinking, budgets, dropped
// reasoning.
#include "chat/api_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chat/renderer.h"

namespace dsv4::chat {
namespace {

using ::testing::HasSubstr;

// The prompt of a request, without its beginning of sentence, in chat mode; or the error.
std::string Prompt(std::string_view messages, ApiConversation conversation = {},
                   ThinkingMode mode = ThinkingMode::kChat, std::string_view revision = "v4") {
  const ChatProfile& profile = *FindChatProfile(revision).value();
  conversation.messages = *ParseMessages(*ReadJson(messages, "test"), "messages");
  const auto normal = NormalizeApiMessages(profile, std::move(conversation));
  if (!normal) return normal.error().message();
  const auto prompt = RenderPrompt(
      profile, *normal, {.mode = mode, .add_bos = false, .null_is_empty = true, .api_rules = true});
  return prompt ? prompt->text() : prompt.error().message();
}

std::string PromptOfV41(std::string_view messages, ApiConversation conversation = {},
                        ThinkingMode mode = ThinkingMode::kChat) {
  return Prompt(messages, std::move(conversation), mode, "v4.1");
}

TEST(NormalizeApiMessages, LeadingSystemsBecomeOne) {
  EXPECT_EQ(
      Prompt(
          R"([{"role": "system", "content": "a"}, {"role": "system", "content": [{"type": "text", "text": "b"}]},
                       {"role": "user", "content": "q"}])"),
      "a\n\nb<｜User｜>q<｜Assistant｜></think>");
  EXPECT_EQ(
      Prompt(
          R"([{"role": "developer", "content": "a"}, {"role": "system", "content": null}, {"role": "user", "content": "q"}])"),
      "a\n\n<｜User｜>q<｜Assistant｜></think>");
}

// A tool that a message shows is an update there. A deferred one stands nowhere else.
TEST(NormalizeApiMessages, MessagesShowToolsOfTheRequest) {
  const auto tools = [](std::initializer_list<const char*> names) {
    std::vector<JsonValue> list;
    for (const char* name : names)
      list.push_back(JsonValue::Object(
          {{"function",
            JsonValue::Object({{"name", JsonValue::String(name)}, {"parameters", JsonValue::Object({})}})}}));
    return list;
  };
  const auto prompt = [&](std::string_view revision, std::vector<std::string> shows,
                          std::set<std::string> deferred) {
    const ChatProfile& profile = *FindChatProfile(revision).value();
    ApiConversation conversation = {.messages = {{.role = Role::kUser, .content = "q"},
                                                 {.role = Role::kSystem, .content = "", .shows = shows}},
                                    .tools = tools({"f", "g"}),
                                    .deferred_tools = std::move(deferred)};
    const auto normal = NormalizeApiMessages(profile, std::move(conversation));
    return normal
               ? RenderPrompt(profile, *normal, {.add_bos = false, .null_is_empty = true, .api_rules = true})
                     ->text()
               : normal.error().message();
  };
  const std::string update =
      "<｜User｜>q<｜System｜>\n\n### Updated Tool Schemas\n\n{\"name\": \"g\", \"description\": \"\", "
      "\"parameters\": {}}<｜Assistant｜>";
  const std::string shown = prompt("v4.1", {"g"}, {"g"});
  EXPECT_THAT(shown, HasSubstr(update));
  EXPECT_EQ(shown.find("\"g\""), shown.rfind("\"g\"")) << shown;
  EXPECT_THAT(prompt("v4.1", {"g"}, {}),
              HasSubstr("{\"name\": \"g\", \"description\": \"\", \"parameters\": {}}\n\nYou MUST"));
  EXPECT_THAT(prompt("v4.1", {"h"}, {"g"}), HasSubstr("<｜User｜>q<｜Assistant｜>"));
  EXPECT_THAT(prompt("v4.1", {"g"}, {"f", "g"}), HasSubstr("{\"name\": \"f\""));  // All: none is.
}

TEST(NormalizeApiMessages, LaterSystemsBecomeRemindersInFrontOfTheUserTurn) {
  const std::string expected =
      "<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜latest_reminder｜>S<｜User｜>";
  const std::string history = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, )";
  EXPECT_EQ(Prompt(history + R"({"role": "system", "content": "S"}, {"role": "user", "content": "p"}])"),
            expected + "p<｜Assistant｜></think>");
  EXPECT_EQ(Prompt(history + R"({"role": "developer", "content": "S"}, {"role": "user", "content": "p"}])"),
            expected + "p<｜Assistant｜></think>");
  // Inside a user turn the encoder would write the generation prompt in its middle.
  EXPECT_EQ(
      Prompt(
          history +
          R"({"role": "tool", "content": "r"}, {"role": "system", "content": "S"}, {"role": "user", "content": "p"}])"),
      expected + "<tool_result>r</tool_result>\n\np<｜Assistant｜></think>");
  EXPECT_EQ(
      Prompt(
          R"([{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, {"role": "user", "content": "q"}])"),
      "A<｜latest_reminder｜>B<｜User｜>q<｜Assistant｜></think>");
}

TEST(NormalizeApiMessages, LaterSystemsHaveAPlaceEverywhere) {
  EXPECT_EQ(Prompt(R"([{"role": "user", "content": "q"}, {"role": "system", "content": "S"}])"),
            "<｜latest_reminder｜>S<｜User｜>q<｜Assistant｜></think>");
  EXPECT_EQ(
      Prompt(
          R"([{"role": "user", "content": "q"}, {"role": "system", "content": "S"}, {"role": "assistant", "content": "a"},
                         {"role": "user", "content": "p"}])"),
      "<｜latest_reminder｜>S<｜User｜>q<｜Assistant｜></"
      "think>a<｜end▁of▁sentence｜><｜User｜>p<｜Assistant｜></think>");
  EXPECT_EQ(Prompt(R"([{"role": "user", "content": "q"}, {"role": "latest_reminder", "content": "R"}])"),
            "<｜latest_reminder｜>R<｜User｜>q<｜Assistant｜></think>");
  // With no user turn beside it, it is one.
  EXPECT_EQ(
      Prompt(
          R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "system", "content": "S"}])"),
      "<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜User｜><system-reminder>\nS\n</"
      "system-reminder>"
      "<｜Assistant｜></think>");
}

// Expected texts are those of DeepSeek's own converter.
TEST(NormalizeApiMessages, SystemMessagesOfV41StayWhereTheyAre) {
  EXPECT_EQ(
      PromptOfV41(
          R"([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "user", "content": "q"}])"),
      "<｜System｜>a<｜System｜>b<｜User｜>q<｜Assistant｜></think>");
  const std::string history = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, )";
  const std::string expected = "<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜>";
  EXPECT_EQ(PromptOfV41(history + R"({"role": "system", "content": "S"}])"),
            expected + "<｜System｜>S<｜Assistant｜></think>");
  EXPECT_EQ(
      PromptOfV41(history + R"({"role": "developer", "content": "S"}, {"role": "user", "content": "p"}])"),
      expected + "<｜System｜>S<｜User｜>p<｜Assistant｜></think>");
  EXPECT_EQ(PromptOfV41(R"([{"role": "system", "content": "S"}])"), "<｜System｜>S<｜Assistant｜></think>");
}

TEST(NormalizeApiMessages, RemindersOfV41StayAndTheOpenerComesBehindThem) {
  const std::string question = R"([{"role": "user", "content": "q"}, )";
  const std::string reminder = R"({"role": "latest_reminder", "content": "R"})";
  EXPECT_EQ(PromptOfV41(question + reminder + "]"),
            "<｜User｜>q<｜latest_reminder｜>R<｜Assistant｜></think>");
  EXPECT_EQ(PromptOfV41(question + R"({"role": "system", "content": "S"}, )" + reminder + "]"),
            "<｜User｜>q<｜System｜>S<｜latest_reminder｜>R<｜Assistant｜></think>");
  EXPECT_EQ(PromptOfV41(question + reminder +
                        R"(, {"role": "assistant", "content": "a"}, {"role": "user", "content": "p"}])"),
            "<｜User｜>q<｜latest_reminder｜>R<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜User｜>p"
            "<｜Assistant｜></think>");
}

TEST(NormalizeApiMessages, V41ShowsSignaturesAndTheFormItself) {
  const std::string messages = R"([{"role": "user", "content": "q"}])";
  const JsonValue tool =
      *ReadJson(R"({"function": {"strict": true, "parameters": null, "name": "f", "x": 1}})", "tool");
  EXPECT_THAT(
      PromptOfV41(messages, {.tools = {tool}}),
      HasSubstr("Schemas\n\n{\"name\": \"f\", \"description\": \"\", \"parameters\": {}}\n\nYou MUST"));
  EXPECT_THAT(PromptOfV41(messages, {.response_format = *ReadJson(R"({"type": "json_object"})", "format")}),
              HasSubstr("reply:\n{\"type\": \"json_object\"}<｜User｜>q"));
  EXPECT_THAT(
      PromptOfV41(messages, {.response_format = *ReadJson(
                                 R"({"type": "json_schema", "json_schema": {"schema": {}}})", "format")}),
      HasSubstr("reply:\n{}<｜User｜>q"));
  EXPECT_EQ(PromptOfV41(messages, {.response_format = *ReadJson(R"({"type": "text"})", "format")}),
            "<｜User｜>q<｜Assistant｜></think>");
}

TEST(NormalizeApiMessages, EveryAnswerHasAnOpener) {
  const std::string answers =
      R"({"role": "assistant", "content": "a", "reasoning_content": "r"}, {"role": "assistant", "content": "b", "reasoning_content": "s"})";
  EXPECT_EQ(Prompt("[" + answers + R"(, {"role": "user", "content": "q"}])"),
            "<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜Assistant｜></think>b<｜end▁of▁sentence｜>"
            "<｜User｜>q<｜Assistant｜></think>");
  // Behind a finished answer a further one begins; with tools the reasoning stays.
  EXPECT_EQ(Prompt("[" + answers + "]", {}, ThinkingMode::kThinking),
            "<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜Assistant｜></think>b<｜end▁of▁sentence｜>"
            "<｜Assistant｜><think>");
  const JsonValue tool = *ReadJson(R"({"function": {"name": "f"}})", "tool");
  EXPECT_THAT(
      Prompt("[" + answers + "]", {.tools = {tool}}, ThinkingMode::kThinking),
      HasSubstr("\n<｜Assistant｜><think>r</think>a<｜end▁of▁sentence｜><｜Assistant｜><think>s</think>b"
                "<｜end▁of▁sentence｜><｜Assistant｜><think>"));
}

TEST(NormalizeApiMessages, AnUnfinishedReasoningGoesOn) {
  const std::string question = R"([{"role": "user", "content": "q"}, {"role": "assistant", "prefix": true, )";
  EXPECT_EQ(Prompt(question + R"("reasoning_content": "r", "content": ""}])", {}, ThinkingMode::kThinking),
            "<｜User｜>q<｜Assistant｜><think>r");
  EXPECT_EQ(Prompt(question + R"("reasoning_content": "r", "content": "a"}])", {}, ThinkingMode::kThinking),
            "<｜User｜>q<｜Assistant｜><think>r</think>a");
}

TEST(NormalizeApiMessages, WhatCannotBeSeenIsNamed) {
  EXPECT_EQ(
      Prompt(
          R"([{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url"}, {"type": "input_audio"},
                        {"type": "file"}]}])"),
      "<｜User｜>q\n\n[Unsupported Image]\n\n[Unsupported Audio]\n\n[Unsupported "
      "Document]<｜Assistant｜></think>");
  EXPECT_THAT(
      Prompt(R"([{"role": "user", "content": "q"}, {"role": "tool", "content": [{"type": "image_url"}]}])"),
      HasSubstr("<tool_result>[Unsupported Image]</tool_result>"));
}

TEST(NormalizeApiMessages, ArgumentsThatAreNoObjectAreAText) {
  EXPECT_THAT(
      Prompt(
          R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, {"role": "tool", "content": "r"}])"),
      HasSubstr("name=\"arguments\" string=\"true\">[1]</"));
}

TEST(NormalizeApiMessages, RefusesWhatTheModelCannotAnswer) {
  EXPECT_EQ(Prompt("[]"), "messages: empty, wanted at least one message");
  EXPECT_THAT(Prompt(R"([{"role": "system", "content": "S"}])"),
              HasSubstr("messages[0]: the conversation has nothing to answer"));
  EXPECT_THAT(Prompt(R"([{"role": "critic", "content": "S"}])"), HasSubstr("messages[0].role: got 'critic'"));
  EXPECT_THAT(Prompt(R"([{"role": "user", "content": [{"type": "hologram"}]}])"),
              HasSubstr("messages[0].content: got a part of type 'hologram', wanted text"));
  EXPECT_THAT(
      Prompt(R"([{"role": "assistant", "content": "a", "prefix": true}, {"role": "user", "content": "q"}])"),
      HasSubstr("messages[0]: only an assistant message at the end can be continued"));
  EXPECT_THAT(Prompt(R"([{"role": "user", "content": "q"}])", {.continue_final_message = true}),
              HasSubstr("messages[0]: only an assistant message at the end"));
  EXPECT_THAT(Prompt(R"([{"role": "user", "content": "q", "tools": [{"function": {}}]}])"),
              HasSubstr("messages[0]: tools and response_format belong to the request"));
}

TEST(NormalizeApiMessages, ContinuesTheLastAnswer) {
  const std::string messages = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])";
  EXPECT_EQ(Prompt(messages, {.continue_final_message = true}), "<｜User｜>q<｜Assistant｜></think>a");
}

TEST(NormalizeApiMessages, ToolsAndSchemaGoToTheFront) {
  const std::string messages = R"([{"role": "user", "content": "q"}])";
  const JsonValue tool = *ReadJson(R"({"function": {"name": "f"}})", "tool");
  const JsonValue schema =
      *ReadJson(R"({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}})", "format");
  EXPECT_THAT(Prompt(messages, {.tools = {tool}, .response_format = schema}),
              HasSubstr("invoke tool calls.\n\n\n## Response Format:\n\nYou MUST strictly adhere to the "
                        "following schema to "
                        "reply:\n{\"type\": \"array\"}<｜User｜>q"));
  EXPECT_THAT(Prompt(messages, {.response_format = *ReadJson(R"({"type": "json_object"})", "format")}),
              HasSubstr("reply:\n{\"type\": \"object\"}<｜User｜>q"));
  EXPECT_EQ(Prompt(messages, {.response_format = *ReadJson(R"({"type": "text"})", "format")}),
            "<｜User｜>q<｜Assistant｜></think>");
  EXPECT_EQ(Prompt(messages, {.response_format = *ReadJson(R"({"type": "xml"})", "format")}),
            "response_format.type: got 'xml', wanted text, json_object or json_schema");
  EXPECT_THAT(Prompt(messages, {.response_format = *ReadJson(R"({"type": "json_schema"})", "format")}),
              HasSubstr("response_format.json_schema.schema: missing"));
}

}  // namespace
}  // namespace dsv4::chat
