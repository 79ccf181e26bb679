// Requests in the shapes that agents and SDKs send them, and what the model gets to see of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "server/api/served_model_testing.h"
#include "server/dialects/anthropic_messages.h"
#include "server/dialects/ollama.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"
#include "server/dialects/openai_responses.h"

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

const ServedModel& V41() {
  static const ServedModel model = MakeTinyServedModel("models/tiny/tokenizer.json", "v4.1");
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
  if (api == "ollama") {
    DSV4_ASSIGN_OR_RETURN(OllamaRequest request, ReadOllamaChat(model, body));
    return std::move(request.chat.call);
  }
  DSV4_ASSIGN_OR_RETURN(AnthropicRequest request, ReadAnthropic(model, body));
  return std::move(request.call);
}

// The prompt, or the error.
std::string Prompt(std::string_view api, const JsonValue& body, const ServedModel& model = Tiny()) {
  Result<ChatCall> call = Read(api, body, model);
  if (!call) return call.error().message();
  const Result<std::vector<int32_t>> ids = ChatPrompt(model, CallMemory(1 << 20), std::move(*call));
  return ids ? model.tokenizer.Decode(*ids) : ids.error().message();
}

std::string Prompt(std::string_view api, std::string_view body, const ServedModel& model = Tiny()) {
  return Prompt(api, *chat::ReadJson(body, "test"), model);
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

TEST(ClientShapes, FieldsThatAreGivenBackHaveTheTypesOfTheClients) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("include": ["message.output_text"])",
       "include: got 'message.output_text', wanted any of code_interpreter_call.outputs"},
      {R"("metadata": 5)", "metadata: got integer, wanted an object"},
      {R"("metadata": {"a": 5})", "metadata.a: got integer, wanted a string"},
      {R"("user": 5)", "user: got integer, wanted a string"},
      {R"("reasoning": {"summary": 5})", "reasoning.summary: got integer, wanted a string"},
      {R"("reasoning": {"generate_summary": "loud"})",
       "reasoning.generate_summary: got 'loud', wanted auto, concise or detailed"},
      {R"("truncation": "most")", "truncation: got 'most', wanted disabled or auto"}};
  for (const auto& [field, want] : cases)
    EXPECT_THAT(Prompt("responses", R"({"input": "q", )" + std::string(field) + "}"), HasSubstr(want));
  EXPECT_TRUE(Read("responses", *chat::ReadJson(R"({"input": "q", "metadata": {"a": "b"}, "user": null,
      "include": ["reasoning.encrypted_content"], "reasoning": {"summary": null}})",
                                                "test")));
  EXPECT_THAT(Prompt("messages", R"({"messages": [{"role": "user", "content": []}]})"),
              HasSubstr("messages[0].content: empty"));
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

// The tokens of a prompt in chat, messages and responses whose history has one call without parameters, in this spelling.
TEST(ClientShapes, ACallWithoutArgumentsIsOneInEverySpelling) {
  const auto chat = [](const std::string& arguments) {
    return Prompt("chat",
                  R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "now")" +
                      arguments + R"(}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"}]})");
  };
  const auto old_chat = [](const std::string& arguments) {
    return Prompt("chat",
                  R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null,
        "function_call": {"name": "now")" +
                      arguments + R"(}}, {"role": "function", "name": "now", "content": "r"}]})");
  };
  const auto messages = [](const std::string& input) {
    return Prompt("messages",
                  R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "c", "name": "now")" +
                      input + R"(}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]}]})");
  };
  const auto responses = [](const std::string& arguments) {
    return Prompt("responses", R"({"input": [{"role": "user", "content": "q"},
        {"type": "function_call", "call_id": "c", "name": "now")" +
                                   arguments + R"(},
        {"type": "function_call_output", "call_id": "c", "output": "r"}]})");
  };
  const std::string wanted = chat(R"(, "arguments": "{}")");
  EXPECT_THAT(wanted, HasSubstr("name=\"now\">\n\n</"));
  for (const std::string value :
       {"", "\"\"", "null", "\" \"", "\"null\"", "{}", "[]", "\"[]\"", R"("\"\"")", R"("\"{}\"")"}) {
    SCOPED_TRACE(value);
    EXPECT_EQ(chat(value.empty() ? "" : ", \"arguments\": " + value), wanted);
    EXPECT_EQ(old_chat(value.empty() ? "" : ", \"arguments\": " + value), wanted);
    EXPECT_EQ(messages(value.empty() ? "" : ", \"input\": " + value), wanted);
    EXPECT_EQ(responses(value.empty() ? "" : ", \"arguments\": " + value), wanted);
    const auto ollama =
        ReadOllamaChat(Tiny(), *chat::ReadJson(R"({"messages": [{"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "now")" +
                                                   (value.empty() ? "" : ", \"arguments\": " + value) +
                                                   R"(}}]}, {"role": "tool", "content": "r"}]})",
                                               "test"));
    ASSERT_TRUE(ollama) << ollama.error().ToString();
    EXPECT_EQ(ollama->chat.call.conversation.messages[1].tool_calls[0].arguments, "{}");
  }
  for (const std::string value : {R"("0")", R"("x")", R"("{\"a\": 1}")"})
    EXPECT_NE(chat(", \"arguments\": " + value), wanted) << value;
}

TEST(ClientShapes, WhatAnAssistantSaidInPartsIsReadOrLeftOut) {
  const auto prompt = [](const std::string& message) {
    return Prompt(
        "chat",
        R"({"drop_thinking": false, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", )" +
            message + R"(}, {"role": "user", "content": "b"}]})");
  };
  const std::string plain = prompt(R"("content": "ok")");
  const std::string thought = prompt(R"("content": "ok", "reasoning_content": "hm")");
  const std::string called = prompt(
      R"("content": "ok", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{\"x\": 1}"}}])");
  EXPECT_THAT(thought, HasSubstr("<think>hm</think>ok"));
  const std::string text = R"(, {"type": "text", "text": "ok"}])";
  for (const char* part : {R"({"type": "thinking", "thinking": "hm", "signature": "s"})",
                           R"({"type": "reasoning", "text": "hm"})",
                           R"({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]})"})
    EXPECT_EQ(prompt(R"("content": [)" + std::string(part) + text), thought) << part;
  for (const char* content :
       {R"(["ok"])", R"([{"text": "ok"}])", R"([null, {"type": "text", "text": "ok"}])"})
    EXPECT_EQ(prompt(R"("content": )" + std::string(content)), plain) << content;
  for (const char* part :
       {R"({"type": "redacted_thinking", "data": "x"})", R"({"type": "thinking"})",
        R"({"type": "text", "text": null})", R"({"type": "refusal", "refusal": null})", R"({"type": "text"})",
        R"({"type": "refusal"})", R"({"type": "server_tool_use", "id": "s"})"})
    EXPECT_EQ(prompt(R"("content": [)" + std::string(part) + text), plain) << part;
  for (const char* part : {R"({"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}})",
                           R"({"type": "tool-call", "toolCallId": "c", "toolName": "f", "args": {"x": 1}})",
                           R"({"type": "tool_call", "id": "c", "name": "f", "arguments": "{\"x\": 1}"})"})
    EXPECT_EQ(prompt(R"("content": [)" + std::string(part) + text), called) << part;
  // Calls in the forms of other dialects.
  for (const char* call : {R"({"id": "c", "type": "function", "name": "f", "arguments": "{\"x\": 1}"})",
                           R"({"id": "c", "type": "tool_call", "name": "f", "args": {"x": 1}})",
                           R"({"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}})",
                           R"({"toolCallId": "c", "toolName": "f", "input": {"x": 1}})"})
    EXPECT_EQ(prompt(R"("content": "ok", "tool_calls": [)" + std::string(call) + "]"), called) << call;
  EXPECT_EQ(
      prompt(
          R"("content": "ok", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "1"}}])"),
      prompt(
          R"("content": "ok", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"input": "1"}}}])"));
  for (const char* member :
       {R"("reasoning": "hm")", R"("reasoning_details": [{"type": "reasoning.text", "text": "hm"}])",
        R"("thinking_blocks": [{"type": "thinking", "thinking": "hm"}])", R"("thinking": "hm")"})
    EXPECT_EQ(prompt(R"("content": "ok", )" + std::string(member)), thought) << member;
  const std::string refused = prompt(R"("content": "no")");
  for (const char* message :
       {R"("content": null, "refusal": "no")", R"("content": [{"type": "refusal", "refusal": "no"}])",
        R"("content": "no", "refusal": null)"})
    EXPECT_EQ(prompt(message), refused) << message;
}

TEST(ClientShapes, HarmlessFieldsAreTaken) {
  const auto status = [](std::string_view api, const std::string& field) {
    const std::string body = api == std::string_view("responses")
                                 ? R"({"input": "q", )"
                                 : R"({"messages": [{"role": "user", "content": "q"}], )";
    const auto call = Read(api, *chat::ReadJson(body + field + "}", "test"));
    if (!call) return call.error().message();
    return call->sampling.unknown_fields.empty() ? std::string("taken")
                                                 : call->sampling.unknown_fields.front();
  };
  for (const char* field : {R"("context_management": {})", R"("context_management": {"edits": []})",
                            R"("mcp_servers": [])", R"("container": {"skills": []})"})
    EXPECT_EQ(status("messages", field), "taken") << field;
  for (const char* field :
       {R"("max_tool_calls": 5)", R"("context_management": [])", R"("conversation": null)"})
    EXPECT_EQ(status("responses", field), "taken") << field;
  for (const char* field : {R"("custom_params": {"a": null})", R"("n": 2, "best_of": 2)",
                            R"("length_penalty": 0.5)", R"("truncation_side": "left")",
                            R"("function_call": "none")", R"("grammar_triggers": [{"type": "word"}])",
                            R"("include_reasoning": false)", R"("reasoning": {"exclude": true})"})
    EXPECT_EQ(status("chat", field), "taken") << field;
  for (const char* field : {R"("best_of": 2)", R"("length_penalty": 0.5, "use_beam_search": true)",
                            R"("web_search_options": {})", R"("add_generation_prompt": false)"})
    EXPECT_THAT(status("chat", field), HasSubstr("not supported here")) << field;
  const std::string open =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The"}], )";
  EXPECT_EQ(Prompt("chat", open + R"("continue_final_message": true, "add_generation_prompt": false})"),
            Prompt("chat", open + R"("continue_final_message": true})"));
  const std::string prefix =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The", "prefix": true}])";
  EXPECT_EQ(Prompt("chat", prefix + R"(, "add_generation_prompt": false})"), Prompt("chat", prefix + "}"));
}

TEST(ClientShapes, ReasoningIsAskedForInEverySpelling) {
  for (const std::string_view api : {"chat", "responses", "messages", "ollama"}) {
    const std::string body =
        api == "responses" ? R"({"input": "q", )" : R"({"messages": [{"role": "user", "content": "q"}], )";
    for (const char* field :
         {R"("thinking_budget": 5)", R"("thinking_token_budget": 5)", R"("reasoning_budget": 5)",
          R"("reasoning": {"max_tokens": 5})", R"("chat_template_kwargs": {"thinking_budget": 5})",
          R"("thinking": {"type": "enabled", "budget_tokens": 5})", R"("thinking": {"budget_tokens": 5})",
          R"("reasoning": {"thinking_budget": 5})", R"("thinking": {"thinking_token_budget": 5})",
          R"("reasoning": {"max_thinking_tokens": 5})",
          R"("chat_template_kwargs": {"reasoning": {"thinking_budget": 5}})"}) {
      const auto call = Read(api, *chat::ReadJson(body + field + "}", "test"));
      ASSERT_TRUE(call) << field << call.error().ToString();
      EXPECT_EQ(call->thinking.max_reasoning_tokens, 5) << field;
      EXPECT_THAT(call->sampling.unknown_fields, IsEmpty()) << field;
    }
    for (const char* field :
         {R"("reasoning": {"enabled": false})", R"("reasoning": {"effort": "none"})",
          R"("disable_reasoning": true)", R"("google": {"thinking_config": {"thinking_budget": 0}})",
          R"("output_config": {"effort": "none"})", R"("chat_template_kwargs": {"think": false})",
          R"("thinking_budget": 0)", R"("chat_template_kwargs": {"thinking_mode": "chat"})",
          R"("enable_thinking": false)", R"("thinking_mode": "chat")", R"("reasoning": "none")"}) {
      const auto call = Read(api, *chat::ReadJson(body + field + "}", "test"));
      ASSERT_TRUE(call) << field << call.error().ToString();
      EXPECT_EQ(call->thinking.mode, chat::ThinkingMode::kChat) << field;
      EXPECT_THAT(call->sampling.unknown_fields, IsEmpty()) << field;
    }
    for (const char* field :
         {R"("drop_thinking": false)", R"("chat_template_kwargs": {"drop_thinking": false})",
          R"("chat_template_kwargs": {"preserve_thinking": true})", R"("preserve_thinking": true)",
          R"("clear_thinking": false)", R"("thinking": {"type": "enabled", "clear_thinking": false})",
          R"("thinking": {"keep": "all"})", R"("reasoning_history": "preserved")",
          R"("context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})"}) {
      if (api == "ollama" && std::string_view(field).starts_with("\"context_management")) continue;
      const auto call = Read(api, *chat::ReadJson(body + field + "}", "test"));
      ASSERT_TRUE(call) << field << call.error().ToString();
      EXPECT_FALSE(call->thinking.drop_thinking) << field;
      EXPECT_THAT(call->sampling.unknown_fields, IsEmpty()) << field;
    }
    for (const char* field : {R"("include_reasoning": false)", R"("reasoning": {"exclude": true})",
                              R"("reasoning_format": "hidden")"}) {
      const auto call = Read(api, *chat::ReadJson(body + field + "}", "test"));
      ASSERT_TRUE(call) << field << call.error().ToString();
      EXPECT_FALSE(call->thinking.shows_reasoning) << field;
      EXPECT_THAT(call->sampling.unknown_fields, IsEmpty()) << field;
    }
    // Neighbours of a spelling are not known for it.
    const auto call = Read(
        api,
        *chat::ReadJson(body + R"("google": {"thinking_config": {"a": 1}}, "nvext": {"b": 2}})", "test"));
    ASSERT_TRUE(call) << call.error().ToString();
    EXPECT_THAT(call->sampling.unknown_fields, ElementsAre("google.thinking_config.a", "nvext.b"));
  }
}

// Expected texts are those of DeepSeek's own converter for V4.1.
TEST(ShapesOfV41, EffortsOfEverySpelling) {
  const std::pair<std::string_view, std::string_view> efforts[] = {
      {"\"minimal\"", "50"}, {"\"low\"", "50"},  {"\"medium\"", "75"}, {"\"high\"", "75"},
      {"\"xhigh\"", "75"},   {"\"max\"", "100"}, {"\"ultra\"", "100"}, {"42", "42"},
      {"\"42\"", "42"},      {"null", "75"}};
  const std::tuple<std::string_view, std::string_view, std::string_view> spellings[] = {
      {"chat", R"("reasoning_effort": )", ""},
      {"chat", R"("chat_template_kwargs": {"reasoning_effort": )", "}"},
      {"responses", R"("reasoning": {"effort": )", "}"},
      {"messages", R"("output_config": {"effort": )", "}"},
      {"ollama", R"("think": )", ""}};
  const std::string start = "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: ";
  for (const auto& [api, open, close] : spellings) {
    const std::string body =
        api == "responses" ? R"({"input": "q", )" : R"({"messages": [{"role": "user", "content": "q"}], )";
    const auto prompt = [&, api = api, open = open, close = close](std::string_view effort) {
      return Prompt(api, body + std::string(open) + std::string(effort) + std::string(close) + "}", V41());
    };
    for (const auto& [effort, number] : efforts) {
      if (api == "ollama" && effort == "42") continue;  // `think` is a switch or a word.
      EXPECT_EQ(prompt(effort),
                start + std::string(number) +
                    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n<｜User｜>q"
                    "<｜Assistant｜><think>")
          << api << open << effort;
    }
    EXPECT_EQ(prompt("\"none\""), "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>") << api << open;
    for (const char* wrong : {"\"0\"", "\"101\"", "\"huge\""}) {
      EXPECT_THAT(prompt(wrong), HasSubstr("or a number from 1 to 100")) << api << open;
    }
  }
}

TEST(ShapesOfV41, SystemMessagesStayInEveryDialect) {
  const std::string turns =
      "<｜System｜>s<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜System｜>late<｜Assistant｜></"
      "think>";
  const std::string talk =
      R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "system", "content": "late"}])";
  EXPECT_THAT(
      Prompt("chat", R"({"thinking": false, "messages": [{"role": "system", "content": "s"}, )" + talk + "}",
             V41()),
      ::testing::EndsWith(turns));
  EXPECT_THAT(
      Prompt("ollama", R"({"think": false, "messages": [{"role": "system", "content": "s"}, )" + talk + "}",
             V41()),
      ::testing::EndsWith(turns));
  EXPECT_THAT(
      Prompt("responses", R"({"thinking": false, "instructions": "s", "input": [)" + talk + "}", V41()),
      ::testing::EndsWith(turns));
  EXPECT_THAT(Prompt("messages",
                     R"({"thinking": {"type": "disabled"}, "max_tokens": 9, "system": "s", "messages": [)" +
                         talk + "}",
                     V41()),
              ::testing::EndsWith(turns));
}

TEST(ShapesOfV41, ANamespaceHasItsOwnMark) {
  const std::string body =
      R"({"input": [{"role": "user", "content": "q"}, {"type": "function_call", "call_id": "c", "name": "g", "namespace": "ns", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "r"}],
          "tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "g"}]}]})";
  const std::string prompt = Prompt("responses", body, V41());
  EXPECT_THAT(prompt, HasSubstr(R"({"name": "ns::g", "description": "", "parameters": {}})"));
  EXPECT_THAT(prompt, HasSubstr("<｜DSML｜ invoke name=\"ns::g\">\n\n</｜DSML｜ invoke>"));
  EXPECT_THAT(Prompt("responses", body), HasSubstr("<｜DSML｜invoke name=\"ns__g\">"));
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
