// Tests of the renderer: faulty messages, spans of callers' data, dropped reasoning, null content,
// continuations.
#include "chat/renderer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "chat/completion_parser.h"
#include "chat/strict_parser.h"

namespace dsv4::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";

const ChatProfile& V4() { return *FindChatProfile("v4").value(); }

std::vector<Message> Messages(std::string_view json) {
  const auto value = ReadJson(json, "test");
  EXPECT_TRUE(value.has_value()) << value.error().message();
  auto messages = ParseMessages(*value, "messages");
  EXPECT_TRUE(messages.has_value()) << messages.error().message();
  return *messages;
}

std::string Rendered(const std::vector<Message>& messages, const RenderOptions& options = {}) {
  const auto prompt = RenderPrompt(V4(), messages, options);
  if (!prompt) return prompt.error().message();
  std::string text = prompt->text();
  EXPECT_EQ(prompt->ends_in_reasoning, text.ends_with("<｜Assistant｜><think>"));
  return options.add_bos && options.context.empty() ? text.substr(kBos.size()) : text;
}
std::string Rendered(std::string_view json, const RenderOptions& options = {}) {
  return Rendered(Messages(json), options);
}

std::string ParseError(std::string_view json) {
  const auto messages = ParseMessages(*ReadJson(json, "test"), "messages");
  return messages ? "no error" : messages.error().message();
}

constexpr RenderOptions kChat{.mode = ThinkingMode::kChat};

TEST(ParseMessages, NamesWhatIsWrong) {
  EXPECT_EQ(ParseError(R"({})"), "messages: got object, wanted a list of messages");
  EXPECT_EQ(ParseError(R"([1])"), "messages[0]: got integer, wanted an object");
  EXPECT_EQ(ParseError(R"([{"content": "x"}])"), "messages[0].role: missing, wanted a string");
  EXPECT_EQ(ParseError(R"([{"role": 1}])"), "messages[0].role: got integer, wanted a string");
  EXPECT_EQ(ParseError(R"([{"role": "user", "content": 1.5}])"),
            "messages[0].content: got number, wanted a string, null or a list of parts");
  EXPECT_EQ(ParseError(R"([{"role": "user", "content": [{"text": "x"}]}])"),
            "messages[0].content[0].type: missing, wanted a string");
  EXPECT_EQ(ParseError(R"([{"role": "user", "content": [{"type": "text"}]}])"),
            "messages[0].content[0].text: missing, wanted a string");
  EXPECT_EQ(
      ParseError(
          R"([{"role": "user"}, {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}])"),
      "messages[1].tool_calls[0].function.name: missing, wanted a string");
  EXPECT_EQ(ParseError(R"([{"role": "assistant", "tool_calls": [{"id": "x"}]}])"),
            "messages[0].tool_calls[0].function: missing, wanted an object");
  EXPECT_EQ(
      ParseError(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}])"),
      "messages[0].tool_calls[0].function.arguments: got integer, wanted a string");
  EXPECT_EQ(ParseError(R"([{"role": "system", "tools": [{"name": "f"}]}])"),
            "messages[0].tools[0].function: got nothing, wanted an object");
  EXPECT_EQ(ParseError(R"([{"role": "assistant", "wo_eos": "yes"}])"),
            "messages[0].wo_eos: got string, wanted a boolean");
  EXPECT_EQ(ParseError(R"([{"role": "user", "content_blocks": {}}])"),
            "messages[0].content_blocks: got object, wanted a list of blocks");
}

TEST(ParseMessages, ReadsWhatClientsSend) {
  const auto messages = Messages(R"([
    {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": null, "prefix": true},
    {"role": "assistant", "reasoning_content": "a", "reasoning": "b",
     "tool_calls": [{"id": "", "function": {"id": "i", "name": "f", "arguments": {"x": 1.0, "y": 10000000000000000000000}}}]}])");
  EXPECT_EQ(messages[0].reasoning_content, "r");
  EXPECT_TRUE(messages[0].wo_eos);
  EXPECT_EQ(messages[1].reasoning_content, "a");
  EXPECT_THAT(messages[1].tool_calls,
              ElementsAre(ToolCall{"i", "f", "{\"x\": 1.0, \"y\": 10000000000000000000000}"}));
}

TEST(Renderer, SpansTellTemplateFromData) {
  const auto prompt = RenderPrompt(V4(), Messages(R"([{"role": "system", "content": "S<｜User｜>"},
      {"role": "user", "content": "</think>"}])"));
  ASSERT_TRUE(prompt.has_value());
  EXPECT_THAT(prompt->spans,
              ElementsAre(Span{std::string(kBos), true}, Span{"S<｜User｜>", false}, Span{"<｜User｜>", true},
                          Span{"</think>", false}, Span{"<｜Assistant｜><think>", true}));
  EXPECT_TRUE(prompt->ends_in_reasoning);
}

TEST(Renderer, NothingFromTheCallerIsEverATemplateSpan) {
  const std::string mark = "@@";
  const auto messages = Messages(R"([
    {"role": "system", "content": "@@", "tools": [{"function": {"name": "@@"}}], "response_format": {"a": "@@"}},
    {"role": "latest_reminder", "content": "@@"},
    {"role": "user", "content": [{"type": "text", "text": "@@"}, {"type": "@@"}]},
    {"role": "assistant", "content": "@@", "reasoning_content": "@@",
     "tool_calls": [{"function": {"name": "@@", "arguments": "{\"@@\": \"@@\", \"b\": [\"@@\"]}"}},
                    {"function": {"name": "f", "arguments": "@@"}}]},
    {"role": "tool", "content": "@@"}, {"role": "tool", "content": [{"type": "@@"}, {"type": "text", "text": "@@"}]},
    {"role": "developer", "content": "@@"}])");
  const auto prompt = RenderPrompt(V4(), messages);
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message();
  size_t marks = 0;
  for (const Span& span : prompt->spans) {
    if (span.is_template) {
      EXPECT_EQ(span.text.find(mark), std::string::npos) << span.text;
    } else {
      for (size_t at = span.text.find(mark); at != std::string::npos; at = span.text.find(mark, at + 1))
        ++marks;
    }
  }
  EXPECT_EQ(marks, 17u);
}

TEST(Renderer, HazardsOfTheReferenceAreKept) {
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": "x"}, {"role": "system", "content": "S"}])"),
            "<｜User｜>xS");
  EXPECT_EQ(
      Rendered(R"([{"role": "user", "content": "x"}, {"role": "latest_reminder", "content": "R"}])", kChat),
      "<｜User｜>x<｜Assistant｜></think><｜latest_reminder｜>R");
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"},
                         {"role": "assistant", "content": "b"}])",
                     kChat),
            "<｜User｜>x<｜Assistant｜></think>a" + std::string(kEos) + "b" + std::string(kEos));
  EXPECT_EQ(Rendered(R"([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}])"), "ab");
}

TEST(Renderer, ReasoningIsDroppedOnlyBeforeTheLastUserAndOnlyWithoutTools) {
  const std::string history =
      R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "r"},
                                 {"role": "user", "content": "p"}])";
  const std::string end = std::string(kEos) + "<｜User｜>p<｜Assistant｜><think>";
  EXPECT_EQ(Rendered("[" + history), "<｜User｜>q<｜Assistant｜></think>a" + end);
  EXPECT_EQ(Rendered("[" + history, {.drop_thinking = false}),
            "<｜User｜>q<｜Assistant｜><think>r</think>a" + end);
  EXPECT_THAT(Rendered(R"([{"role": "system", "tools": [{"function": {}}]}, )" + history),
              HasSubstr("<｜User｜>q<｜Assistant｜><think>r</think>a" + end));
  EXPECT_THAT(Rendered(R"([{"role": "system", "tools": []}, )" + history), HasSubstr("</think>a" + end));
}

TEST(Renderer, AnUnknownRoleThatIsDroppedIsNoError) {
  const std::string json = R"([{"role": "critic", "content": "c"}, {"role": "user", "content": "q"}])";
  EXPECT_EQ(Rendered(json), "<｜User｜>q<｜Assistant｜><think>");
  EXPECT_THAT(Rendered(json, kChat), HasSubstr("messages[0]: role: got 'critic'"));
}

TEST(Renderer, NullContent) {
  const std::string json =
      R"([{"role": "latest_reminder", "content": null}, {"role": "tool", "content": null}])";
  EXPECT_EQ(Rendered(json, kChat),
            "<｜latest_reminder｜>None<｜User｜><tool_result>None</tool_result><｜Assistant｜></think>");
  RenderOptions empty = kChat;
  empty.null_is_empty = true;
  EXPECT_EQ(Rendered(json, empty),
            "<｜latest_reminder｜><｜User｜><tool_result></tool_result><｜Assistant｜></think>");
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": null}])", empty), "<｜User｜><｜Assistant｜></think>");
  EXPECT_EQ(Rendered(R"([{"role": "user"}])", kChat), "<｜User｜><｜Assistant｜></think>");
}

TEST(Renderer, ContentLists) {
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"},
                                                      {"type": "text", "text": "b"}]}])",
                     kChat),
            "<｜User｜>a\n\n[Unsupported image_url]\n\nb<｜Assistant｜></think>");
  EXPECT_EQ(
      Rendered(
          R"([{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])"),
      "a\n\nb");
  EXPECT_THAT(Rendered(R"([{"role": "system", "content": [{"type": "image_url"}]}])"),
              HasSubstr("messages[0]: content: got a part of type 'image_url', wanted text"));
  EXPECT_EQ(
      Rendered(
          R"([{"role": "user", "content_blocks": [{"type": "tool_result", "tool_use_id": "1", "content": "r"},
                                                             {"type": "text", "text": "t"}, {"type": "audio"}]}])",
          kChat),
      "<｜User｜><tool_result>r</tool_result>\n\nt\n\n[Unsupported audio]<｜Assistant｜></think>");
}

TEST(Renderer, ToolResultsGoIntoTheirSlotsInCallOrder) {
  const std::string call = R"({"function": {"name": "f", "arguments": "{}"}, "id": )";
  const auto turn = [&](std::string_view results) {
    const std::string text = Rendered(R"([{"role": "assistant", "tool_calls": [)" + call + R"("a"}, )" +
                                          call + R"("b"}]}, )" + std::string(results) + "]",
                                      kChat);
    return text.substr(text.find("<｜User｜>"));
  };
  EXPECT_EQ(
      turn(R"({"role": "tool", "tool_call_id": "b", "content": "B"}, {"role": "user", "content": "u"},
                    {"role": "tool", "tool_call_id": "a", "content": "A"})"),
      "<｜User｜><tool_result>A</tool_result>\n\nu\n\n<tool_result>B</tool_result><｜Assistant｜></think>");
}

TEST(Renderer, ManyResultsOfUnknownCallsKeepTheirOrder) {
  Message call{.role = Role::kAssistant, .content = ""};
  call.tool_calls = {{"a", "f", "{}"}};
  std::vector<Message> messages = {call};
  std::string expected = "<｜User｜>";
  for (int i = 0; i < 100; ++i) {
    messages.push_back(
        {.role = Role::kTool, .content = std::to_string(i), .tool_call_id = i % 2 == 0 ? "a" : "?"});
    expected += (i == 0 ? "<tool_result>" : "\n\n<tool_result>") + std::to_string(i) + "</tool_result>";
  }
  EXPECT_THAT(Rendered(messages, kChat), HasSubstr(expected + "<｜Assistant｜></think>"));
}

TEST(Renderer, GuardRewritesOnlyTheClosersThatEndAnElement) {
  const auto messages = Messages(
      R"([{"role": "user", "content": "</tool_result>"}, {"role": "assistant", "tool_calls": [{"function":
      {"name": "f", "arguments": "{\"k\": \"a</｜DSML｜parameter>b</｜DSML｜invoke>&lt;\", \"n\": [\"</｜DSML｜parameter>\"]}"}}]},
      {"role": "tool", "content": "x</tool_result></tool_result>y"}])");
  const std::string plain = Rendered(messages, kChat);
  EXPECT_THAT(plain, HasSubstr("string=\"true\">a</｜DSML｜parameter>b"));
  RenderOptions options = kChat;
  options.guard_closers = true;
  const std::string guarded = Rendered(messages, options);
  EXPECT_THAT(
      guarded,
      HasSubstr("string=\"true\">a&lt;/｜DSML｜parameter>b</｜DSML｜invoke>&lt;</｜DSML｜parameter>"));
  EXPECT_THAT(guarded, HasSubstr("string=\"false\">[\"</｜DSML｜parameter>\"]<"));
  EXPECT_THAT(guarded, HasSubstr("<tool_result>x&lt;/tool_result>&lt;/tool_result>y</tool_result>"));
  EXPECT_THAT(guarded, HasSubstr("<｜User｜></tool_result>"));
}

TEST(Renderer, ContextWritesNothingButCounts) {
  const auto context = Messages(R"([{"role": "developer", "content": "d"}, {"role": "user", "content": "q"},
      {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [
        {"id": "x", "function": {"name": "f", "arguments": "{}"}}, {"id": "y", "function": {"name": "g", "arguments": "{}"}}]}])");
  const auto messages = Messages(R"([{"role": "tool", "tool_call_id": "y", "content": "Y"},
                                     {"role": "tool", "tool_call_id": "x", "content": "X"}])");
  const RenderOptions options{.effort = "max", .context = context};
  EXPECT_EQ(Rendered(messages, options),
            "<｜User｜><tool_result>X</tool_result>\n\n<tool_result>Y</tool_result><｜Assistant｜><think>");
  // Not merged into the last context message.
  const auto user = Messages(R"([{"role": "user", "content": "q"}])");
  EXPECT_THAT(Rendered(messages, {.mode = ThinkingMode::kChat, .context = user}),
              ::testing::StartsWith("<｜User｜><tool_result>"));
}

TEST(Renderer, ArgumentsThatPythonReadsAreReadAsPythonDoes) {
  const auto arguments = [](std::string text) {
    Message message{.role = Role::kAssistant};
    message.tool_calls = {{"", "f", std::move(text)}};
    const std::string all = Rendered({message}, kChat);
    const std::string head = "<｜DSML｜invoke name=\"f\">\n";
    if (all.find(head) == std::string::npos) return all;
    const size_t begin = all.find(head) + head.size();
    return all.substr(begin, all.find("</｜DSML｜invoke>") - begin);
  };
  const auto parameter = [](std::string_view key, std::string_view flag, std::string_view value) {
    return "<｜DSML｜parameter name=\"" + std::string(key) + "\" string=\"" + std::string(flag) + "\">" +
           std::string(value) + "</｜DSML｜parameter>\n";
  };
  EXPECT_EQ(arguments(R"({"a": NaN, "b": [-Infinity]})"),
            parameter("a", "false", "NaN") + parameter("b", "false", "[-Infinity]"));
  EXPECT_EQ(arguments(R"({"a": 1, "b": 2, "a": "x"})"),
            parameter("a", "true", "x") + parameter("b", "false", "2"));
  EXPECT_EQ(arguments(""), parameter("arguments", "true", ""));
  EXPECT_EQ(arguments("{} x"), parameter("arguments", "true", "{} x"));
  EXPECT_THAT(arguments("3"),
              HasSubstr("tool_calls[0]: function.arguments: got a JSON integer, wanted an object"));
}

TEST(Renderer, ErrorsNameTheMessageOfTheRequest) {
  auto messages = Messages(R"([{"role": "user", "content": "x"}, {"role": "developer", "content": ""}])");
  AttachTools(messages, {*ReadJson(R"({"function": {"name": "f"}})", "tool")});
  EXPECT_THAT(Rendered(messages), HasSubstr("messages[1]: content: got nothing"));
}

TEST(Renderer, AttachToolsReplacesOnTheFirstMessageOrInsertsOne) {
  const JsonValue tool = *ReadJson(R"({"function": {"name": "new"}})", "tool");
  auto messages =
      Messages(R"([{"role": "developer", "content": "d", "tools": [{"function": {"name": "old"}}]}])");
  AttachTools(messages, {tool});
  EXPECT_EQ(messages.size(), 1u);
  EXPECT_THAT(Rendered(messages), HasSubstr("{\"name\": \"new\"}\n\nYou MUST"));
  messages = Messages(R"([{"role": "user", "content": "u"}])");
  AttachTools(messages, {});
  EXPECT_EQ(messages.size(), 1u);
  AttachTools(messages, {tool});
  EXPECT_EQ(messages.size(), 2u);
}

TEST(Renderer, AnUpdateOfToolsStandsBesideThoseOfTheRequest) {
  auto messages = Messages(
      R"([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "reasoning_content": "r"},
          {"role": "system", "content": "s", "tools": [{"function": {"name": "g"}}, {"function": {"name": "h"}}]}])");
  const ChatProfile& v41 = *FindChatProfile("v4.1").value();
  const std::string update =
      "<｜System｜>s\n\n### Updated Tool Schemas\n\n{\"name\": \"g\", \"description\": \"\", \"parameters\": "
      "null}"
      "\n{\"name\": \"h\", \"description\": \"\", \"parameters\": null}<｜Assistant｜><think>";
  // Alone it does not keep the reasoning.
  EXPECT_THAT(RenderPrompt(v41, messages)->text(),
              ::testing::EndsWith("<｜User｜>u<｜Assistant｜></think>a<｜end▁of▁sentence｜>" + update));
  AttachTools(messages, {*ReadJson(R"({"function": {"name": "f"}})", "tool")});
  EXPECT_THAT(RenderPrompt(v41, messages)->text(),
              ::testing::EndsWith("calls.\n<｜User｜>u<｜Assistant｜><think>r</think>a<｜end▁of▁sentence｜>" +
                                  update));
}

// Another revision is another profile: no literal of this one may remain.
TEST(Renderer, WritesOnlyWhatTheProfileNames) {
  ChatProfile other = V4();
  other.bos = "[B]";
  other.eos = "[E]";
  other.system_marker = "[S]";
  other.user = "[U]";
  other.assistant = "[A]";
  other.latest_reminder = "[R]";
  other.think_open = "[T]";
  other.think_close = "[/T]";
  other.dsml = "!D!";
  other.tool_calls = " calls";
  other.invoke = " invoke";
  other.parameter = " parameter";
  const auto messages = Messages(R"([
    {"role": "system", "content": "s", "tools": [{"function": {"name": "f"}}]}, {"role": "latest_reminder", "content": "r"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "c", "tool_calls": [{"function": {"name": "f", "arguments": "{\"k\": \"v\"}"}}]},
    {"role": "tool", "content": "t"}])");
  const std::string text = RenderPrompt(other, messages)->text();
  for (const std::string_view literal : {"｜", "think>", "tool_calls>", "DSMLinvoke"}) {
    EXPECT_EQ(text.find(literal), std::string::npos) << literal;
  }
  EXPECT_THAT(text, HasSubstr("[B][S]s\n\n## Tools"));
  const std::string answer =
      "c\n\n<!D! calls>\n<!D! invoke name=\"f\">\n<!D! parameter name=\"k\" string=\"true\">v"
      "</!D! parameter>\n</!D! invoke>\n</!D! calls>[E]";
  EXPECT_THAT(text, HasSubstr("[U]u[A][T][/T]" + answer + "[U]<tool_result>t</tool_result>[A][T]"));
  const auto strict = ParseStrict(other, "x[/T]" + answer, ThinkingMode::kThinking);
  ASSERT_TRUE(strict.has_value()) << strict.error().message();
  EXPECT_EQ(strict->tool_calls.at(0), (ParsedCall{"f", "{\"k\": \"v\"}"}));
  EXPECT_EQ(ParseLenient(other, "x[/T]" + answer, {.starts_in_reasoning = true}).message, *strict);
}

// --- Round trips: what a model wrote, parsed and sent back, is the same text again. ---

std::string RandomText(std::mt19937& random, const std::vector<std::string>& pieces) {
  std::string text;
  for (size_t n = std::uniform_int_distribution<size_t>(0, 6)(random); n > 0; --n) {
    text += pieces[std::uniform_int_distribution<size_t>(0, pieces.size() - 1)(random)];
  }
  return text;
}

Message RandomAnswer(std::mt19937& random) {
  const std::vector<std::string> pieces = {"a",  " ",    "\n",           "\n\n", "é",  "🌞",     "<",
                                           "</", "\"",   "\\",           "{",    "｜", "think", "&lt;",
                                           "\t", "\x01", "<tool_calls>", "日本", "1.0"};
  const std::vector<std::string> names = {"a", "b", "shipping address", "日", "k\n", "<", ">", "="};
  const std::vector<std::string> values = {"1",
                                           "1.0",
                                           "-0.0",
                                           "1e-07",
                                           "null",
                                           "true",
                                           "[]",
                                           "{}",
                                           "[1, \"a\\n\"]",
                                           "{\"p\": {\"q\": [1.5]}}",
                                           "12345678901234567890123"};
  Message message{.role = Role::kAssistant, .content = RandomText(random, pieces)};
  message.reasoning_content = RandomText(random, pieces);
  for (size_t calls = random() % 3; calls > 0; --calls) {
    std::string arguments = "{";
    std::vector<std::string> keys = names;
    std::shuffle(keys.begin(), keys.end(), random);
    keys.resize(random() % 4);
    for (const std::string& key : keys) {
      if (arguments.size() > 1) arguments += ", ";
      arguments +=
          QuoteJson(key) + ": " +
          (random() % 2 == 0 ? values[random() % values.size()] : QuoteJson(RandomText(random, pieces)));
    }
    message.tool_calls.push_back({"", names[random() % names.size()], arguments + "}"});
  }
  return message;
}

class RoundTrip : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Revisions, RoundTrip, ::testing::Values("v4", "v4.1"));

TEST_P(RoundTrip, ParsingARenderedAnswerGivesItBack) {
  std::mt19937 random(7);
  const ChatProfile& profile = *FindChatProfile(GetParam()).value();
  const Message question{.role = Role::kUser, .content = "q"};
  for (int i = 0; i < 3000; ++i) {
    const Message answer = RandomAnswer(random);
    const auto opener = RenderPrompt(profile, std::vector{question});
    const auto whole = RenderPrompt(profile, std::vector{question, answer});
    ASSERT_TRUE(whole.has_value()) << whole.error().message();
    ASSERT_TRUE(whole->text().starts_with(opener->text()));
    const std::string completion = whole->text().substr(opener->text().size());

    const auto strict = ParseStrict(profile, completion, ThinkingMode::kThinking);
    ASSERT_TRUE(strict.has_value()) << completion << strict.error().message();
    EXPECT_EQ(strict->reasoning_content, answer.reasoning_content);
    EXPECT_EQ(strict->content, answer.content.text);
    ASSERT_EQ(strict->tool_calls.size(), answer.tool_calls.size());
    for (size_t c = 0; c < answer.tool_calls.size(); ++c) {
      EXPECT_EQ(strict->tool_calls[c].name, answer.tool_calls[c].name);
      EXPECT_EQ(strict->tool_calls[c].arguments, answer.tool_calls[c].arguments);
    }
    EXPECT_EQ(ParseLenient(profile, completion, {.starts_in_reasoning = true}).message, *strict)
        << completion;
  }
}

TEST(SampledCalls, KeepTheModelsOwnSpelling) {
  const std::string completion =
      "r</think>c\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke  name=\"f\">\n<｜DSML｜parameter name=\"k\" "
      "string=\"false\">[1,2]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  CompletionParser parser(V4(), {.starts_in_reasoning = true});
  CompletionCollector collector;
  for (const Delta& delta : parser.Feed(completion)) collector.Add(delta);
  for (const Delta& delta : parser.Finish(EndCause::kStop)) collector.Add(delta);
  const ParsedCompletion parsed = collector.Take().message;

  Message answer{
      .role = Role::kAssistant, .content = parsed.content, .reasoning_content = parsed.reasoning_content};
  answer.tool_calls = {{"id", parsed.tool_calls.at(0).name, parsed.tool_calls.at(0).arguments}};
  const Message question{.role = Role::kUser, .content = "q"};
  const std::string opener = Rendered({question});
  EXPECT_NE(Rendered({question, answer}), opener + completion + std::string(kEos));
  answer.sampled_calls = parser.sampled_calls();
  EXPECT_EQ(Rendered({question, answer}), opener + completion + std::string(kEos));
}

}  // namespace
}  // namespace dsv4::chat
