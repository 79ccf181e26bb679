// Tests of API policies: placement of system messages and reminders, switches of thinking, budgets, dropped
// reasoning.
#include "chat/api_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

std::string Thinking(std::string_view request, std::string_view revision = "v4",
                     const ThinkingSettings& defaults = {}) {
  const auto settings =
      ResolveThinking(*FindChatProfile(revision).value(), *ReadJson(request, "test"), defaults);
  if (!settings) return settings.error().message();
  std::string text = settings->mode == ThinkingMode::kThinking ? "on" : "off";
  if (settings->effort) text += " " + *settings->effort;
  if (settings->max_reasoning_tokens) text += " " + std::to_string(*settings->max_reasoning_tokens);
  return text;
}

TEST(ResolveThinking, TheFirstSwitchThatIsPresentWins) {
  EXPECT_EQ(Thinking("{}"), "on");
  EXPECT_EQ(Thinking("{}", "v4", {.mode = ThinkingMode::kChat}), "off");
  EXPECT_EQ(Thinking(R"({"thinking": {"type": "disabled"}, "think": true})"), "off");
  EXPECT_EQ(Thinking(R"({"thinking": true, "think": false})", "v4", {.mode = ThinkingMode::kChat}), "on");
  EXPECT_EQ(Thinking(R"({"thinking": null, "think": false, "enable_thinking": true})"), "off");
  EXPECT_EQ(Thinking(R"({"chat_template_kwargs": {"enable_thinking": true, "thinking": false}})"), "off");
  EXPECT_EQ(Thinking(R"({"chat_template_kwargs": {"enable_thinking": false}, "enable_thinking": true})"),
            "off");
  EXPECT_EQ(Thinking(R"({"enable_thinking": false, "model": "deepseek-reasoner"})"), "off");
  EXPECT_EQ(Thinking(R"({"model": "deepseek-chat"})"), "off");
  EXPECT_EQ(Thinking(R"({"model": "deepseek-reasoner"})", "v4", {.mode = ThinkingMode::kChat}), "on");
  EXPECT_EQ(Thinking(R"({"thinking": {"type": "enabled", "budget_tokens": 2048}})"), "on 2048");
  EXPECT_EQ(Thinking(R"({"thinking": {"type": "adaptive", "budget_tokens": 0}})", "v4",
                     {.mode = ThinkingMode::kChat}),
            "on");
}

TEST(ResolveThinking, EffortsAreMappedByRevision) {
  const std::string_view efforts[] = {"minimal", "low", "medium", "high", "xhigh", "max", "ultra", "none"};
  const std::string_view v4[] = {"on", "on", "on", "on high", "on max", "on max", "on max", "off"};
  const std::string_view v4_0731[] = {"on low",  "on low", "on high", "on high",
                                      "on high", "on max", "on max",  "off"};
  const std::string_view v41[] = {"on low",   "on low", "on high", "on high",
                                  "on xhigh", "on max", "on max",  "off"};
  for (size_t i = 0; i < std::size(efforts); ++i) {
    const std::string request = "{\"reasoning_effort\": \"" + std::string(efforts[i]) + "\"}";
    EXPECT_EQ(Thinking(request, "v4"), v4[i]) << request;
    EXPECT_EQ(Thinking(request, "v4-0731"), v4_0731[i]) << request;
    EXPECT_EQ(Thinking(request, "v4.1"), v41[i]) << request;
  }
  EXPECT_EQ(Thinking(R"({"reasoning": {"effort": "max"}})"), "on max");
  EXPECT_EQ(Thinking(R"({"output_config": {"effort": "max"}})"), "on max");
  EXPECT_EQ(Thinking(R"({"chat_template_kwargs": {"reasoning_effort": "max"}})"), "on max");
}

TEST(ResolveThinking, NumbersAreEffortsOfV41InEverySpelling) {
  for (const std::string_view body :
       {R"({"reasoning_effort": 80})", R"({"reasoning_effort": "80"})", R"({"reasoning": {"effort": 80}})",
        R"({"output_config": {"effort": 80}})", R"({"chat_template_kwargs": {"reasoning_effort": 80}})"}) {
    EXPECT_EQ(Thinking(body, "v4.1"), "on 80") << body;
    EXPECT_THAT(Thinking(body, "v4-0731"), HasSubstr("wanted one of none, minimal")) << body;
  }
  for (const std::string_view wrong : {"0", "101", "-1", "75.0", "true", "\"7.5\"", "[75]"}) {
    EXPECT_EQ(
        Thinking("{\"reasoning_effort\": " + std::string(wrong) + "}", "v4.1"),
        "reasoning_effort: got " + std::string(wrong) +
            ", wanted one of none, minimal, low, medium, high, xhigh, max, ultra or a number from 1 to 100");
  }
  EXPECT_EQ(Thinking(R"({"reasoning_effort": 100, "thinking": {"type": "disabled"}})", "v4.1"), "off 100");
}

TEST(ResolveThinking, DefaultsHoldWhereARequestSaysNothing) {
  const ThinkingSettings defaults = {.mode = ThinkingMode::kChat, .effort = "max"};
  EXPECT_EQ(Thinking("{}", "v4", defaults), "off max");
  EXPECT_EQ(Thinking(R"({"thinking": true})", "v4", defaults), "on max");
  EXPECT_EQ(Thinking(R"({"thinking": true, "reasoning_effort": "high"})", "v4", defaults), "on high");
  // Which v4 renders as nothing.
  EXPECT_EQ(Thinking(R"({"thinking": true, "reasoning_effort": "low"})", "v4", defaults), "on");
}

TEST(ResolveThinking, UnknownValuesAreNamed) {
  EXPECT_EQ(
      Thinking(R"({"reasoning_effort": "huge"})"),
      "reasoning_effort: got \"huge\", wanted one of none, minimal, low, medium, high, xhigh, max, ultra");
  EXPECT_EQ(Thinking(R"({"thinking": {"type": "maybe"}})"),
            "thinking.type: got 'maybe', wanted enabled, adaptive or disabled");
  EXPECT_EQ(Thinking(R"({"think": "yes"})"), "think: got string, wanted a boolean");
  EXPECT_EQ(Thinking(R"({"thinking": {"type": "enabled", "budget_tokens": -1}})"),
            "thinking.budget_tokens: got -1, wanted an integer, 0 for no bound");
}

TEST(ResolveThinking, EverySpellingOfABudgetAndOfNone) {
  EXPECT_EQ(Thinking(R"({"thinking_budget": 7})"), "on 7");
  EXPECT_EQ(Thinking(R"({"thinking_token_budget": -1})"), "on");
  EXPECT_EQ(Thinking(R"({"reasoning": {"max_tokens": 7}})"), "on 7");
  EXPECT_EQ(Thinking(R"({"reasoning_budget_tokens": 0})"), "off");
  EXPECT_EQ(Thinking(R"({"reasoning": {"enabled": false}})"), "off");
  EXPECT_EQ(Thinking(R"({"reasoning": false})"), "off");
  EXPECT_EQ(Thinking(R"({"reasoning": {"enabled": true}})", "v4", {.mode = ThinkingMode::kChat}), "on");
  EXPECT_EQ(Thinking(R"({"thinking": "disabled"})"), "off");
  EXPECT_EQ(Thinking(R"({"think": "high"})", "v4", {.mode = ThinkingMode::kChat}), "on high");
  EXPECT_EQ(Thinking(R"({"reasoning_effort": "off"})"), "off");
  EXPECT_EQ(Thinking(R"({"reasoning_effort": "default"})"), "on");
  EXPECT_EQ(Thinking(R"({"thinking_budget": "much"})"),
            "thinking_budget: got \"much\", wanted an integer, -1 for no bound");
}

// Every level the API can ask for is one the renderer of the same revision knows.
TEST(ResolveThinking, EveryMappedEffortCanBeRendered) {
  const std::vector<Message> messages = {{.role = Role::kUser, .content = "q"}};
  for (const ChatProfile& profile : ChatProfiles()) {
    for (const ApiEffort& effort : profile.api_efforts) {
      RenderOptions options;
      if (!effort.level.empty()) options.effort = std::string(effort.level);
      EXPECT_TRUE(RenderPrompt(profile, messages, options).has_value()) << profile.revision << effort.name;
    }
  }
}

}  // namespace
}  // namespace dsv4::chat
