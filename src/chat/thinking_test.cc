// Spellings of wishes about reasoning, efforts by revision, and errors.
#include "chat/thinking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/renderer.h"

namespace dsv4::chat {
namespace {

using ::testing::HasSubstr;

std::string Thinking(std::string_view request, std::string_view revision = "v4",
                     const ThinkingSettings& defaults = {}) {
  const auto settings =
      ResolveThinking(*FindChatProfile(revision).value(), *ReadJson(request, "test"), defaults);
  if (!settings) return settings.error().message();
  std::string text = settings->mode == ThinkingMode::kThinking ? "on" : "off";
  if (settings->effort) text += " " + *settings->effort;
  if (settings->max_reasoning_tokens) text += " " + std::to_string(*settings->max_reasoning_tokens);
  if (!settings->shows_reasoning) text += " hidden";
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
  for (const std::string_view wrong : {"101", "-1", "75.0", "0.0", "\"7.5\"", "[75]", "{}"}) {
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

// A value of each kind at every place of the table: no spelling goes without.
TEST(ResolveThinking, EveryPlaceOfTheTableIsRead) {
  size_t places = 0;
  for (const ThinkingField& field : ThinkingFields()) {
    if (field.type == "object") continue;
    ++places;
    const bool is_number = field.says.find("tokens of reasoning") != std::string_view::npos;
    const bool is_effort = field.says.find("how much") != std::string_view::npos;
    const bool is_word = field.type == "string";
    const bool is_history = field.says.starts_with("all");
    const bool is_format = field.name == "reasoning_format";
    const bool asks_by_true = field.says.starts_with("true");
    const JsonValue value = is_number    ? JsonValue::Integer("7")
                            : is_format  ? JsonValue::String("hidden")
                            : is_history ? JsonValue::String("all")
                            : is_word    ? JsonValue::String("chat")
                            : is_effort  ? JsonValue::String("None")
                                         : JsonValue::Bool(asks_by_true);
    JsonValue request = JsonValue::Object({{std::string(field.name), value}});
    for (std::string_view rest = field.inside; !rest.empty();) {
      const size_t dot = rest.rfind('.');
      const std::string_view last = dot == std::string_view::npos ? rest : rest.substr(dot + 1);
      request = JsonValue::Object({{std::string(last), std::move(request)}});
      rest = dot == std::string_view::npos ? std::string_view() : rest.substr(0, dot);
    }
    const auto settings = ResolveThinking(*FindChatProfile("v4").value(), request);
    ASSERT_TRUE(settings) << WriteJson(request) << settings.error().message();
    const bool has_effect =
        is_number                                                    ? settings->max_reasoning_tokens == 7
        : field.says.find("earlier turns") != std::string_view::npos ? settings->drop_thinking == false
        : field.says.find("goes without") != std::string_view::npos  ? !settings->shows_reasoning
                                                                     : settings->mode == ThinkingMode::kChat;
    EXPECT_TRUE(has_effect) << WriteJson(request);
  }
  EXPECT_GT(places, 150u);
}

TEST(ResolveThinking, SpellingsOfProviders) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"max_reasoning_tokens": 5})", "on 5"},
      {R"({"max_reasoning_tokens": 0})", "off"},
      {R"({"thinking_config": {"thinkingBudget": 5, "includeThoughts": true}})", "on 5"},
      {R"({"thinking_config": {"thinking_budget": 0}})", "off"},
      {R"({"google": {"thinking_config": {"thinking_level": "LOW"}}})", "on"},
      {R"({"generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}})", "on"},
      {R"({"disable_reasoning": true})", "off"},
      {R"({"disable_reasoning": false})", "on"},
      {R"({"chat_template_kwargs": {"think": false}})", "off"},
      {R"({"chat_template_kwargs": {"thinking": {"type": "disabled"}}})", "off"},
      {R"({"chat_template_args": {"enable_thinking": false}})", "off"},
      {R"({"chat_template_kwargs": {"max_reasoning_tokens": 5}})", "on 5"},
      {R"({"reasoning": {"enabled": true, "exclude": true, "max_tokens": 5, "effort": "max"}})",
       "on max 5 hidden"},
      {R"({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}})", "on max"},
      {R"({"thinking": {"type": "disabled", "token_budget": 5}})", "off 5"},
      {R"({"reasoning_effort": 0})", "off"},
      {R"({"reasoning_effort": false})", "off"},
      {R"({"reasoning_effort": "NONE"})", "off"},
      {R"({"reasoning_format": "parsed", "reasoning_effort": "none"})", "off"},
      {R"({"reasoning_format": "hidden"})", "on hidden"},
      {R"({"include_reasoning": false})", "on hidden"},
      {R"({"prompt_mode": "reasoning"})", "on"},
      {R"({"venice_parameters": {"disable_thinking": true}})", "off"},
      {R"({"nvext": {"max_thinking_tokens": 5}})", "on 5"},
      {R"({"reasoning_config": {"type": "enabled", "budget_tokens": 5.0}})", "on 5"},
      {R"({"thinking": {"type": "enabled", "budgetTokens": 5}})", "on 5"},
      {R"({"thinking": {"budgetTokens": 0}})", "on"},
      {R"({"thinking": {"max_tokens": 5}})", "on 5"},
      {R"({"budget_tokens": 5})", "on 5"},
      {R"({"chat_template_kwargs": {"no_think": true}})", "off"},
      {R"({"enableThinking": false})", "off"},
      {R"({"reasoningEffort": "none"})", "off"},
      {R"({"thinking_effort": "max"})", "on max"},
      {R"({"chat_template_kwargs": [], "nvext": "", "google": false, "output_config": null})", "on"},
      {R"({"chat_template_kwargs": "{\"thinking\": false}"})",
       "chat_template_kwargs: got string, wanted an object"},
      {R"({"chat_template_args": 5})", "chat_template_args: got integer, wanted an object"},
      {R"({"output_config": ["none"]})", "output_config: got array, wanted an object"},
      {R"({"google": {"thinking_config": "x"}})", "google.thinking_config: got string, wanted an object"},
      {R"({"nvext": true})", "nvext: got boolean, wanted an object"},
      {R"({"reasoning_history": "sometimes"})",
       "reasoning_history: got \"sometimes\", wanted all, preserved, interleaved or disabled"},
      {R"({"reasoning_format": "raw"})",
       "reasoning_format: got \"raw\", wanted parsed, deepseek, auto or hidden: the reasoning is not written "
       "into "
       "the content"},
      {R"({"disable_reasoning": "yes"})", "disable_reasoning: got string, wanted a boolean"},
      {R"({"thinking_config": {"thinkingBudget": 5.5}})",
       "thinking_config.thinkingBudget: got 5.5, wanted an integer, -1 for no bound"},
  };
  for (const auto& [request, wanted] : cases) EXPECT_EQ(Thinking(request), wanted) << request;
}

TEST(ResolveThinking, ReasoningOfEarlierTurnsStaysWhereARequestSaysSo) {
  const std::pair<const char*, bool> cases[] = {
      {R"({})", true},
      {R"({"thinking": {"type": "enabled", "keep": "all"}})", false},
      {R"({"reasoning_history": "preserved"})", false},
      {R"({"reasoning_history": "interleaved"})", true},
      {R"({"reasoning_history": "disabled"})", true},
      {R"({"reasoning_history": ""})", true},
      {R"({"chat_template_kwargs": {"truncate_history_thinking": false}})", false},
      {R"({"chat_template_kwargs": {"preserve_reasoning": true}})", false},
      {R"({"keep_thinking": true})", false},
      {R"({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}})", false},
      {R"({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}})", true},
      {R"({"context_management": {"edits": []}})", true},
      {R"({"context_management": []})", true},
      {R"({"drop_thinking": true, "context_management": {"edits": [{"type": "clear_thinking_1", "keep": "all"}]}})",
       true},
  };
  for (const auto& [request, dropped] : cases) {
    const auto settings = ResolveThinking(*FindChatProfile("v4").value(), *ReadJson(request, "test"), {});
    ASSERT_TRUE(settings) << request;
    EXPECT_EQ(settings->drop_thinking, dropped) << request;
  }
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
