// Tests of the streaming parser: early deltas, tolerated markup, stop strings, and every cut of every
// fixture.
#include "chat/completion_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "chat/marker_set.h"
#include "chat/strict_parser.h"

namespace dsv4::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ChatProfile& V4() { return *FindChatProfile("v4").value(); }

std::string Parameter(std::string_view name, std::string_view flag, std::string_view value) {
  return std::string("<｜DSML｜parameter name=\"")
      .append(name)
      .append("\"")
      .append(flag)
      .append(">")
      .append(value)
      .append("</｜DSML｜parameter>\n");
}
std::string Invoke(std::string_view name, std::string_view body) {
  return std::string("<｜DSML｜invoke name=\"")
      .append(name)
      .append("\">\n")
      .append(body)
      .append("</｜DSML｜invoke>\n");
}
std::string Block(std::string_view body) {
  return std::string("\n\n<｜DSML｜tool_calls>\n").append(body).append("</｜DSML｜tool_calls>");
}
constexpr std::string_view kString = " string=\"true\"";
constexpr std::string_view kJson = " string=\"false\"";

// The answer, after a check that every cut in two and every single byte give the same one.
CollectedCompletion Parse(const std::string& text, const ParserOptions& options = {},
                          EndCause cause = EndCause::kStop) {
  const auto feed = [&](const std::vector<std::string_view>& pieces) {
    CompletionParser parser(V4(), options);
    CompletionCollector collector;
    for (const std::string_view piece : pieces) {
      for (const Delta& delta : parser.Feed(piece)) collector.Add(delta);
    }
    for (const Delta& delta : parser.Finish(cause)) collector.Add(delta);
    return collector.Take();
  };
  const CollectedCompletion whole = feed({text});
  const auto expect_same = [&](const CollectedCompletion& other, size_t cut) {
    EXPECT_EQ(WriteJson(ToJson(whole.message)), WriteJson(ToJson(other.message))) << "cut at " << cut;
    EXPECT_EQ(whole.finish_reason, other.finish_reason) << "cut at " << cut;
    EXPECT_EQ(whole.has_cut_call, other.has_cut_call) << "cut at " << cut;
    EXPECT_EQ(whole.stop_string, other.stop_string) << "cut at " << cut;
  };
  std::vector<std::string_view> bytes;
  for (size_t cut = 0; cut < text.size(); ++cut) {
    expect_same(feed({std::string_view(text).substr(0, cut), std::string_view(text).substr(cut)}), cut);
    bytes.push_back(std::string_view(text).substr(cut, 1));
  }
  expect_same(feed(bytes), text.size());
  for (const ParsedCall& call : whole.message.tool_calls) {
    const auto arguments = ReadJson(call.arguments, "arguments");
    EXPECT_TRUE(arguments.has_value() && arguments->is_object()) << call.arguments;
  }
  return whole;
}

std::string OneCall(const std::string& body, const ParserOptions& options = {}) {
  const CollectedCompletion parsed = Parse(Block(Invoke("f", body)), options);
  if (parsed.message.tool_calls.size() != 1) return "no call";
  return parsed.message.tool_calls[0].arguments;
}

TEST(CompletionParser, EmitsEachPieceAsSoonAsItIsCertain) {
  CompletionParser parser(V4(), {.starts_in_reasoning = true});
  const auto texts = [](const std::vector<Delta>& deltas) {
    std::vector<std::string> all;
    for (const Delta& delta : deltas) all.push_back(delta.text);
    return all;
  };
  EXPECT_THAT(texts(parser.Feed("Let me see. </thi")), ElementsAre("Let me see. "));
  EXPECT_THAT(texts(parser.Feed("ng</think>Well\n")), ElementsAre("</thing", "Well"));
  EXPECT_THAT(texts(parser.Feed("\n")), IsEmpty());
  EXPECT_THAT(texts(parser.Feed("<｜DSML")), IsEmpty());
  EXPECT_THAT(texts(parser.Feed("｜tool_calls>\n<｜DSML｜invoke name=\"f\">")), ElementsAre("f"));
  EXPECT_THAT(texts(parser.Feed("\n<｜DSML｜parameter name=\"k\" string=\"true\">a\"b</｜DS")),
              ElementsAre("{\"k\": \"a\\\"b"));
  EXPECT_THAT(texts(parser.Feed("c</｜DSML｜parameter>\n")), ElementsAre("</｜DSc\""));
  EXPECT_THAT(texts(parser.Feed("</｜DSML｜invoke>")), ElementsAre("}", ""));
  EXPECT_THAT(texts(parser.Finish(EndCause::kStop)), ElementsAre(""));
}

TEST(CompletionParser, DeltasAreTyped) {
  CompletionParser parser(V4(), {.starts_in_reasoning = true});
  std::vector<Delta> deltas =
      parser.Feed("r</think>c" + Block(Invoke("f", "") + Invoke("g", Parameter("x", kJson, "1"))));
  deltas.push_back(parser.Finish(EndCause::kStop).back());
  using Kind = Delta::Kind;
  EXPECT_THAT(deltas, ElementsAre(Delta{Kind::kReasoning, -1, "r"}, Delta{Kind::kContent, -1, "c"},
                                  Delta{Kind::kToolCallBegin, 0, "f"}, Delta{Kind::kArguments, 0, "{}"},
                                  Delta{Kind::kToolCallEnd, 0, ""}, Delta{Kind::kToolCallBegin, 1, "g"},
                                  Delta{Kind::kArguments, 1, "{\"x\": 1}"}, Delta{Kind::kToolCallEnd, 1, ""},
                                  Delta{Kind::kDone, -1, "", FinishReason::kToolCalls, false}));
}

TEST(CompletionParser, KeepsLineFeedsThatNoBlockFollows) {
  EXPECT_EQ(Parse("a\n\n\nb\n\n").message.content, "a\n\n\nb\n\n");
  EXPECT_EQ(Parse("a\n\n\n" + Block("").substr(2)).message.content, "a\n");
  EXPECT_EQ(Parse("a\n" + Block("").substr(2)).message.content, "a");
  EXPECT_EQ(Parse("a" + Block("").substr(2)).message.content, "a");
}

TEST(CompletionParser, AcceptsWhiteSpaceBetweenTags) {
  const std::string text =
      "<｜DSML｜tool_calls>  \n\n <｜DSML｜invoke  name=\"f\" >  <｜DSML｜parameter\n string=\"true\"  "
      "name=\"k\">v"
      "</｜DSML｜parameter></｜DSML｜invoke>\t</｜DSML｜tool_calls>";
  EXPECT_THAT(Parse(text).message.tool_calls, ElementsAre(ParsedCall{"f", "{\"k\": \"v\"}"}));
}

TEST(CompletionParser, PromotesACallInsideAnOpenReasoningUnlessToldNot) {
  const std::string text = "Hm" + Block(Invoke("f", "")) + "</think>x";
  const CollectedCompletion promoted = Parse(text, {.starts_in_reasoning = true});
  EXPECT_EQ(promoted.message.reasoning_content, "Hm");
  EXPECT_EQ(promoted.message.content, "");
  EXPECT_EQ(promoted.message.tool_calls.size(), 1u);

  const CollectedCompletion ignored =
      Parse(text, {.starts_in_reasoning = true, .promote_calls_in_reasoning = false});
  EXPECT_EQ(ignored.message.reasoning_content, "Hm" + Block(Invoke("f", "")));
  EXPECT_EQ(ignored.message.content, "x");
  EXPECT_THAT(ignored.message.tool_calls, IsEmpty());

  const CollectedCompletion inactive = Parse(text, {.starts_in_reasoning = true, .tools_active = false});
  EXPECT_EQ(inactive.message.reasoning_content, "Hm" + Block(Invoke("f", "")));
}

TEST(CompletionParser, MarkupIsContentWhenToolsAreOff) {
  const std::string text = "a" + Block(Invoke("f", "")) + "b";
  const CollectedCompletion parsed = Parse(text, {.tools_active = false});
  EXPECT_EQ(parsed.message.content, text);
  EXPECT_EQ(parsed.finish_reason, FinishReason::kStop);
}

TEST(CompletionParser, StopStringsApplyToContentOnly) {
  const ParserOptions options{.starts_in_reasoning = true, .stop_strings = {"END", "\n\n", ""}};
  const CollectedCompletion parsed = Parse("END\n\n</think>one END two", options);
  EXPECT_EQ(parsed.message.reasoning_content, "END\n\n");
  EXPECT_EQ(parsed.message.content, "one ");
  EXPECT_EQ(parsed.stop_string, "END");
  EXPECT_EQ(parsed.finish_reason, FinishReason::kStop);

  // The line feeds before a block are syntax; the same ones before text are content.
  const std::string call = Block(Invoke("f", Parameter("k", kString, "END\n\n")));
  const CollectedCompletion called = Parse("</think>x" + call, options);
  EXPECT_EQ(called.message.content, "x");
  EXPECT_EQ(called.stop_string, "");
  EXPECT_THAT(called.message.tool_calls, ElementsAre(ParsedCall{"f", "{\"k\": \"END\\n\\n\"}"}));
  EXPECT_EQ(Parse("</think>x\n\ny", options).message.content, "x");

  // A stop string that only begins is content.
  EXPECT_EQ(Parse("</think>an EN", options).message.content, "an EN");
  EXPECT_EQ(Parse("</think>EN" + call, options).message.content, "EN");
  // A dropped marker does not hide it.
  EXPECT_EQ(Parse("</think>aE</think>NDb", options).message.content, "a");
}

TEST(CompletionParser, OfOverlappingStopStringsTheOneCompleteFirstWins) {
  EXPECT_EQ(Parse("abcd", {.stop_strings = {"bcd", "c"}}).message.content, "ab");
  EXPECT_EQ(Parse("abcd", {.stop_strings = {"c", "bc"}}).stop_string, "bc");
  EXPECT_EQ(Parse("aaab", {.stop_strings = {"aab"}}).message.content, "a");
}

TEST(CompletionParser, DoneAfterAStopStringOrTheEndOfSentence) {
  CompletionParser stopped(V4(), {.stop_strings = {"X"}});
  stopped.Feed("aXb");
  EXPECT_TRUE(stopped.done());
  EXPECT_THAT(stopped.Feed("more"), IsEmpty());
  CompletionParser ended(V4(), {});
  ended.Feed("a<｜end▁of▁sentence｜>");
  EXPECT_TRUE(ended.done());
  EXPECT_EQ(ended.Finish(EndCause::kLength).back().finish_reason, FinishReason::kStop);
}

TEST(CompletionParser, CutCallsAreLeftOutAndSaid) {
  const std::string first = Invoke("a", Parameter("x", kJson, "1"));
  const std::string cut = "\n\n<｜DSML｜tool_calls>\n" + first + "<｜DSML｜invoke name=\"b\">\n";
  const CollectedCompletion at_length = Parse(cut, {}, EndCause::kLength);
  EXPECT_EQ(at_length.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(at_length.has_cut_call);
  EXPECT_THAT(at_length.message.tool_calls, ElementsAre(ParsedCall{"a", "{\"x\": 1}"}));
  const CollectedCompletion at_stop = Parse(cut, {}, EndCause::kStop);
  EXPECT_EQ(at_stop.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(at_stop.has_cut_call);
  // A closer at the length limit closes; the limit still shows.
  const CollectedCompletion closed = Parse(Block(first), {}, EndCause::kLength);
  EXPECT_EQ(closed.finish_reason, FinishReason::kLength);
  EXPECT_FALSE(closed.has_cut_call);
  EXPECT_EQ(closed.message.tool_calls.size(), 1u);
}

TEST(CompletionParser, TheEndOfSentenceInsideACallCutsIt) {
  for (const std::string body :
       {"", "<｜DSML｜parameter name=\"k\" string=\"true\">v</｜DSML｜parameter>\n"}) {
    const CollectedCompletion parsed =
        Parse("\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n" + body + "<｜end▁of▁sentence｜>");
    EXPECT_THAT(parsed.message.tool_calls, IsEmpty());
    EXPECT_TRUE(parsed.has_cut_call);
    EXPECT_EQ(parsed.finish_reason, FinishReason::kLength);
  }
  // Not even begun.
  for (const std::string text :
       {"x\n\n<｜DSML｜tool_calls>\n", "x\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke na", "x<｜DSML｜tool"}) {
    const CollectedCompletion parsed = Parse(text);
    EXPECT_EQ(parsed.message.content, "x");
    EXPECT_TRUE(parsed.has_cut_call);
    EXPECT_EQ(parsed.finish_reason, FinishReason::kLength);
  }
}

TEST(CompletionParser, ContentHeldForAStopStringComesBeforeTheCall) {
  CompletionParser parser(V4(), {.stop_strings = {"END"}});
  const std::vector<Delta> deltas = parser.Feed("xEN" + Block(Invoke("f", "")));
  ASSERT_GE(deltas.size(), 2u);
  EXPECT_EQ(deltas[0], (Delta{Delta::Kind::kContent, -1, "xEN"}));
  EXPECT_EQ(deltas[1].kind, Delta::Kind::kToolCallBegin);
}

TEST(MarkerSet, TheLeftmostThenTheLongestWins) {
  MarkerSet set;
  set.Add("ab", 1);
  set.Add("abc", 2);
  set.Add("xab", 3);
  EXPECT_EQ(set.Find("..ab", false).length, 0u) << "it may still grow";
  EXPECT_EQ(set.Find("..ab", false).plain, 2u);
  EXPECT_EQ(set.Find("..ab", true).id, 1);
  EXPECT_EQ(set.Find("..abd", false).id, 1);
  EXPECT_EQ(set.Find("..abc", false).id, 2);
  EXPECT_EQ(set.Find(".xab", false).id, 3);
  EXPECT_EQ(set.Find(".xa", false).plain, 1u);
  EXPECT_EQ(set.Find(".xa", true).plain, 3u);
}

TEST(CompletionParser, EveryPrefixOfACallGivesNoMarkupAndNoBrokenCall) {
  const std::string text =
      "Hm." + Block(Invoke("f", Parameter("k", kString, "v") + Parameter("n", kJson, "[1]")));
  const size_t complete = text.find("</｜DSML｜invoke>") + std::string("</｜DSML｜invoke>").size();
  for (size_t size = 0; size < text.size(); ++size) {
    const CollectedCompletion parsed = ParseLenient(V4(), text.substr(0, size), {}, EndCause::kLength);
    EXPECT_EQ(parsed.message.tool_calls.size(), size >= complete ? 1u : 0u) << size;
    EXPECT_EQ(parsed.message.content.find("DSML｜"), std::string::npos) << size << parsed.message.content;
  }
}

TEST(CompletionParser, ACutValueNeverLeaksItsCloser) {
  CompletionParser parser(V4(), {});
  std::string fragments;
  const auto add = [&](const std::vector<Delta>& deltas) {
    for (const Delta& delta : deltas) {
      if (delta.kind == Delta::Kind::kArguments) fragments += delta.text;
    }
  };
  add(
      parser.Feed("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"k\" "
                  "string=\"true\">v</｜DSML｜parameter"));
  add(parser.Finish(EndCause::kLength));
  EXPECT_EQ(fragments, "{\"k\": \"v");
}

TEST(CompletionParser, FailedBlockIsShownOnlyOnRequest) {
  const std::string text =
      "Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"k\"";
  EXPECT_EQ(Parse(text, {}, EndCause::kLength).message.content, "Hm.");
  EXPECT_EQ(Parse(text, {.show_failed_block = true}, EndCause::kLength).message.content, text);
  const std::string good = "Hm." + Block(Invoke("f", ""));
  EXPECT_EQ(Parse(good, {.show_failed_block = true}).message.content, "Hm.");
}

TEST(CompletionParser, ForgottenClosersEndACallThatIsWhole) {
  const std::string open = "<｜DSML｜invoke name=\"f\">\n" + Parameter("k", kString, "v");
  EXPECT_THAT(Parse(Block(open + Invoke("g", ""))).message.tool_calls,
              ElementsAre(ParsedCall{"f", "{\"k\": \"v\"}"}, ParsedCall{"g", "{}"}));
  EXPECT_THAT(Parse(Block(open)).message.tool_calls, ElementsAre(ParsedCall{"f", "{\"k\": \"v\"}"}));
}

TEST(CompletionParser, AMalformedParameterMakesItsCallUnusable) {
  const CollectedCompletion parsed = Parse(
      Block(Invoke("f", "<｜DSML｜parameter string=\"true\">v</｜DSML｜parameter>\n") + Invoke("g", "")));
  EXPECT_THAT(parsed.message.tool_calls, ElementsAre(ParsedCall{"g", "{}"}));
  EXPECT_TRUE(parsed.has_cut_call);
  // A header that is never closed, then a good call.
  EXPECT_THAT(Parse(Block("<｜DSML｜invoke name=\"f\n" + Invoke("g", ""))).message.tool_calls,
              ElementsAre(ParsedCall{"g", "{}"}));
  EXPECT_THAT(Parse(Block(Invoke("f", "<｜DSML｜parameter name=\"k\n") + Invoke("g", ""))).message.tool_calls,
              ElementsAre(ParsedCall{"g", "{}"}));
  EXPECT_THAT(Parse(Block("<｜DSML｜invoke>\n</｜DSML｜invoke>" + Invoke("g", ""))).message.tool_calls,
              ElementsAre(ParsedCall{"g", "{}"}));
}

TEST(CompletionParser, ABodyMayBeAJsonObject) {
  EXPECT_EQ(OneCall("{\"a\": [1,2], \"b\": {}}\n"), "{\"a\": [1,2], \"b\": {}}");
  EXPECT_EQ(OneCall("{\"a\": \"<｜DSML｜parameter\"}"), "{\"a\": \"<｜DSML｜parameter\"}");
  EXPECT_EQ(OneCall("{broken}\n"), "{\"arguments\": \"{broken}\\n\"}");
}

TEST(CompletionParser, ValuesThatAreNotJsonBecomeStrings) {
  EXPECT_EQ(OneCall(Parameter("k", kJson, "1e400")), "{\"k\": 1e400}");
  EXPECT_EQ(OneCall(Parameter("k", kJson, "NaN")), "{\"k\": \"NaN\"}");
  EXPECT_EQ(OneCall(Parameter("k", kJson, "")), "{\"k\": \"\"}");
  EXPECT_EQ(OneCall(Parameter("k", kJson, "{\"a\":1} x")), "{\"k\": \"{\\\"a\\\":1} x\"}");
  EXPECT_EQ(OneCall(Parameter("k", kJson, "'a'")), "{\"k\": \"'a'\"}");
  EXPECT_EQ(OneCall(Parameter("k", kJson, " {\"n\":{\"m\":[ ]}}\n")), "{\"k\":  {\"n\":{\"m\":[ ]}}\n}");
  const std::string deep = std::string(100000, '[');
  const CollectedCompletion parsed = ParseLenient(V4(), Block(Invoke("f", Parameter("k", kJson, deep))), {});
  EXPECT_EQ(parsed.message.tool_calls.at(0).arguments, "{\"k\": \"" + deep + "\"}");
}

TEST(CompletionParser, OddFlagsMeanString) {
  EXPECT_EQ(OneCall(Parameter("k", "", "1")), "{\"k\": \"1\"}");
  EXPECT_EQ(OneCall(Parameter("k", " string=false", "1")), "{\"k\": \"1\"}");
  EXPECT_EQ(OneCall(Parameter("k", " string=\"no\"", "1")), "{\"k\": \"1\"}");
}

TEST(CompletionParser, StringsAreEscapedAcrossCuts) {
  EXPECT_EQ(OneCall(Parameter("k\n", kString, "\x01\"\\\n</｜DSML｜x>é🌞")),
            "{\"k\\n\": \"\\u0001\\\"\\\\\\n</｜DSML｜x>é🌞\"}");
}

TEST(CompletionParser, OfARepeatedKeyTheFirstCounts) {
  EXPECT_EQ(OneCall(Parameter("k", kString, "1") + Parameter("k", kJson, "2") + Parameter("l", kJson, "3")),
            "{\"k\": \"1\", \"l\": 3}");
}

TEST(CompletionParser, UnwrapsASingleWrapperThatFitsTheSchema) {
  ParserOptions options;
  options.tools = {{"f", {"a", "b"}}, {"g", {"input"}}};
  EXPECT_EQ(OneCall(Parameter("arguments", kJson, "{\"a\":1}"), options), "{\"a\":1}");
  EXPECT_EQ(OneCall(Parameter("input", kString, " {\"b\": 2}\n"), options), "{\"b\": 2}");
  EXPECT_EQ(OneCall(Parameter("input", kJson, "{\"c\": 2}"), options), "{\"input\": {\"c\": 2}}");
  EXPECT_EQ(OneCall(Parameter("input", kString, "text"), options), "{\"input\": \"text\"}");
  EXPECT_EQ(OneCall(Parameter("input", kJson, "{\"a\": 2}") + Parameter("b", kJson, "3"), options),
            "{\"input\": {\"a\": 2}, \"b\": 3}");
  EXPECT_EQ(OneCall(Parameter("arguments", kJson, "{\"a\":1}")), "{\"arguments\": {\"a\":1}}") << "no schema";
  const auto named = Parse(Block(Invoke("g", Parameter("input", kJson, "{\"input\": 1}"))), options);
  EXPECT_EQ(named.message.tool_calls.at(0).arguments, "{\"input\": {\"input\": 1}}") << "it is in the schema";
}

TEST(CompletionParser, ToolSchemasOfARequest) {
  const auto tools = ReadJson(
      R"([{"function": {"name": "f", "parameters": {"properties": {"a": {}, "b": {}}}}}, {"function": {"name": "g"}}])",
      "tools");
  const std::vector<ToolSchema> schemas = ToolSchemas(tools->items());
  ASSERT_EQ(schemas.size(), 2u);
  EXPECT_EQ(schemas[1].name, "g");
  EXPECT_EQ(schemas[0].name, "f");
  EXPECT_THAT(schemas[0].properties, ElementsAre("a", "b"));
}

TEST(CompletionParser, DamagedTagsAreContentUnlessAccepted) {
  const std::string ascii =
      "x\n\n<|DSML|tool_calls>\n<|DSML|invoke name=\"f\">\n<|DSML|parameter name=\"k\" string=\"true\">v"
      "</|DSML|parameter>\n</|DSML|invoke>\n</|DSML|tool_calls>";
  const std::string bare = "x\n\n" + Invoke("f", Parameter("k", kString, "v"));
  const std::string one_bar = "x\n\n<DSML｜tool_calls>\n<｜DSMLinvoke name=\"f\">\n" +
                              Parameter("k", kString, "v") + "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  for (const std::string& text : {ascii, bare, one_bar}) {
    EXPECT_EQ(Parse(text).message.content, text);
    const CollectedCompletion parsed = Parse(text, {.accept_damaged_tags = true});
    EXPECT_EQ(parsed.message.content, "x");
    EXPECT_THAT(parsed.message.tool_calls, ElementsAre(ParsedCall{"f", "{\"k\": \"v\"}"}));
  }
}

TEST(CompletionParser, BlocksOfTheWildAreTakenIfACallFollows) {
  const std::string call = Invoke("f", Parameter("k", kString, "v"));
  const ParserOptions options = {.accept_damaged_tags = true, .tools = {{.name = "f"}}};
  for (const std::string name : {"toolcalls", "function_calls", " calls", " tool_calls", "calls"}) {
    const std::string text = "x\n\n<｜DSML｜" + name + ">\n" + call + "</｜DSML｜" + name + ">";
    EXPECT_EQ(Parse(text).message.content, text);
    const CollectedCompletion parsed = Parse(text, options);
    EXPECT_EQ(parsed.message.content, "x");
    EXPECT_THAT(parsed.message.tool_calls, ElementsAre(ParsedCall{"f", "{\"k\": \"v\"}"}));
    EXPECT_EQ(parsed.finish_reason, FinishReason::kToolCalls);
    // Inside of a reasoning it ends that, as the right one does.
    EXPECT_EQ(
        Parse(text, {.starts_in_reasoning = true, .accept_damaged_tags = true, .tools = {{.name = "f"}}})
            .message.tool_calls.size(),
        1u);
  }
  const std::string spaced =
      "x\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"k\" "
      "string=\"true\">v</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  EXPECT_THAT(Parse(spaced, options).message.tool_calls, ElementsAre(ParsedCall{"f", "{\"k\": \"v\"}"}));
}

TEST(CompletionParser, V41TakesTheTagsOfV4AsDamage) {
  const ChatProfile& v41 = *FindChatProfile("v4.1").value();
  const std::string own =
      "x\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"k\" string=\"true\">v"
      "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::string call = Invoke("f", Parameter("k", kString, "v"));
  const std::string damaged[] = {
      "x\n\n<｜DSML｜tool_calls>\n" + call + "</｜DSML｜tool_calls>",
      "x\n\n<｜DSML｜calls>\n" + call + "</｜DSML｜calls>",
      "x\n\n<|DSML| calls>\n<|DSML| invoke name=\"f\">\n<|DSML| parameter name=\"k\" string=\"true\">v"
      "</|DSML| parameter>\n</|DSML| invoke>\n</|DSML| calls>",
      "x\n\n" + call};
  const auto parse = [&](const std::string& text, bool accept) {
    return ParseLenient(v41, text, {.accept_damaged_tags = accept, .tools = {{.name = "f"}}}).message;
  };
  EXPECT_THAT(parse(own, false).tool_calls, ElementsAre(ParsedCall{"f", "{\"k\": \"v\"}"}));
  for (const std::string& text : damaged) {
    EXPECT_EQ(parse(text, false).content, text);
    EXPECT_EQ(parse(text, true), parse(own, true)) << text;
  }
}

TEST(CompletionParser, TextAboutCallsStaysText) {
  const ParserOptions options = {.accept_damaged_tags = true, .tools = {{.name = "f"}}};
  for (const std::string text :
       {"A block is <｜DSML｜function_calls>, and that is all.", "Tags like <|DSML|tool_calls> are odd.",
        "It wrote `<｜DSML｜invoke name=\"f\">` here.", "An <｜DSML｜invoke name=\"other\"> of no tool.",
        "<｜DSML｜invoke without an end", "<｜DSML｜function_calls>\n\ntext"}) {
    const CollectedCompletion parsed = Parse(text + std::string(600, '.'), options);
    EXPECT_EQ(parsed.message.content, text + std::string(600, '.'));
    EXPECT_EQ(parsed.finish_reason, FinishReason::kStop);
  }
}

TEST(CompletionParser, ALongHeaderIsTextHoweverItIsCut) {
  ParserOptions options;
  options.accept_damaged_tags = true;
  for (const size_t size : {490, 503, 504, 505, 506, 600}) {
    const std::string text = Invoke(std::string(size, 'n'), Parameter("k", kString, "v"));
    const size_t header = text.find('>') + 1 - std::string_view("<｜DSML｜invoke").size();
    EXPECT_EQ(Parse(text, options).message.tool_calls.size(), header <= 512 ? 1 : 0) << size;
  }
}

TEST(CompletionParser, IllFormedUtf8BecomesReplacementCharacters) {
  EXPECT_EQ(Parse("a\xE4\xBD").message.content, "a\uFFFD");
  EXPECT_EQ(Parse("a\xFF\xC3(").message.content, "a\uFFFD\uFFFD(");
  EXPECT_EQ(OneCall(Parameter("k", kString, "\xF0\x9F\x8C.")), "{\"k\": \"\uFFFD.\"}");
}

TEST(CompletionParser, SampledCallsAreTheBytesTheModelWrote) {
  const std::string call = Block(" " + Invoke("f", Parameter("k", kJson, "[1,2]")) + "junk");
  CompletionParser parser(V4(), {});
  for (const char c : "Hm." + call + "<｜end▁of▁sentence｜>after") parser.Feed(std::string(1, c));
  parser.Finish(EndCause::kStop);
  EXPECT_EQ(parser.sampled_calls(), call);
}

TEST(CompletionParser, LongTextsTakeLinearTime) {
  const std::string value(2'000'000, '\n');
  CompletionParser parser(V4(), {.stop_strings = {"\n\nstop"}});
  size_t size = 0;
  const auto feed = [&](std::string_view text) {
    for (size_t i = 0; i < text.size(); i += 7) {
      for (const Delta& delta : parser.Feed(text.substr(i, 7))) size += delta.text.size();
    }
  };
  feed(value);
  feed(Block(Invoke("f", Parameter("k", kJson, "\"" + std::string(2'000'000, 'x') + "\""))));
  parser.Finish(EndCause::kStop);
  EXPECT_GT(size, 4'000'000u);
}

bool HasPlainNames(const ParsedCompletion& completion) {
  const auto plain = [](std::string_view name) {
    return name.find_first_of("\"<") == std::string_view::npos;
  };
  for (const ParsedCall& call : completion.tool_calls) {
    if (!plain(call.name)) return false;
    const auto arguments = ReadJson(call.arguments, "arguments");
    if (!arguments) return false;
    for (const auto& [key, value] : arguments->members()) {
      if (!plain(key)) return false;
    }
  }
  return true;
}

// A text with V4's tags in the tags of V4.1.
std::string Spaced(std::string text) {
  for (const auto& [v4, own] :
       {std::pair("｜tool_calls", "｜ calls"), std::pair("|tool_calls", "| calls"),
        std::pair("｜invoke", "｜ invoke"), std::pair("｜parameter", "｜ parameter")}) {
    for (size_t at = text.find(v4); at != std::string::npos; at = text.find(v4, at))
      text.replace(at, std::string_view(v4).size(), own);
  }
  return text;
}

// V4.1 is the same machine with other tags. A tag that a dropped marker cut in two may come out in either
// spelling.
void ExpectSameInV41(const std::string& text, const ParserOptions& options) {
  const CollectedCompletion v4 = ParseLenient(V4(), text, options);
  const CollectedCompletion v41 = ParseLenient(*FindChatProfile("v4.1").value(), Spaced(text), options);
  ASSERT_EQ(Spaced(v41.message.reasoning_content), Spaced(v4.message.reasoning_content)) << text;
  ASSERT_EQ(Spaced(v41.message.content), Spaced(v4.message.content)) << text;
  ASSERT_EQ(v41.finish_reason, v4.finish_reason) << text;
  ASSERT_EQ(v41.message.tool_calls.size(), v4.message.tool_calls.size()) << text;
  for (size_t i = 0; i < v4.message.tool_calls.size(); ++i) {
    ASSERT_EQ(Spaced(v41.message.tool_calls[i].name), Spaced(v4.message.tool_calls[i].name)) << text;
    ASSERT_EQ(Spaced(v41.message.tool_calls[i].arguments), Spaced(v4.message.tool_calls[i].arguments))
        << text;
  }
}

// Any mixture of markup: the answer does not depend on the cuts, and calls are JSON objects. Input that the
// strict parser accepts means the same to both. (The fuzz target searches further.)
TEST(CompletionParser, RandomMarkupMeansTheSameHoweverItIsCut) {
  const std::vector<std::string> pieces = {"<think>",
                                           "</think>",
                                           "<｜end▁of▁sentence｜>",
                                           "\n\n<｜DSML｜tool_calls>\n",
                                           "</｜DSML｜tool_calls>",
                                           "<｜DSML｜invoke name=\"f\">\n",
                                           "</｜DSML｜invoke>\n",
                                           "<｜DSML｜invoke",
                                           " name=\"g\"",
                                           ">",
                                           "<｜DSML｜parameter name=\"k\" string=\"true\">",
                                           "<｜DSML｜parameter name=\"input\" string=\"false\">",
                                           "</｜DSML｜parameter>\n",
                                           "<|DSML|tool_calls>",
                                           "<｜DSML｜",
                                           "{\"a\": 1}",
                                           "[1]",
                                           "\n",
                                           "\n\n",
                                           "ab",
                                           "日",
                                           "\xE6",
                                           "<",
                                           "\""};
  std::mt19937 random(11);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  int num_strict = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string text;
    if (below(2) == 0) {  // often close to a good answer
      text = "ab" + Block(Invoke("f", Parameter("k", kString, pieces[below(pieces.size())]))) +
             "<｜end▁of▁sentence｜>";
    }
    for (size_t n = below(8); n > 0; --n)
      text.insert(below(4) == 0 ? below(text.size() + 1) : text.size(), pieces[below(pieces.size())]);
    ParserOptions options;
    options.starts_in_reasoning = below(2) == 0;
    options.tools_active = below(8) != 0;
    options.promote_calls_in_reasoning = below(4) != 0;
    options.accept_damaged_tags = below(4) == 0;
    options.show_failed_block = below(4) == 0;
    if (below(3) == 0) options.stop_strings = {"\n\n", "b<"};
    if (below(3) == 0) options.tools = {{"f", {"a", "k"}}};
    Parse(text, options);
    ExpectSameInV41(text, options);
    if (HasFailure()) FAIL() << text;
    // Not compared: values spliced in unchecked, ill-formed text, and names with a quote. The strict grammar
    // finds such a name's end by what follows, the streaming one by that quote.
    if (text.find("\"false\"") != std::string::npos || FindInvalidUtf8(text) != std::string_view::npos)
      continue;
    const auto strict = ParseStrict(V4(), text, ThinkingMode::kChat);
    if (strict && HasPlainNames(*strict)) {
      ++num_strict;
      ASSERT_EQ(ParseLenient(V4(), text, {}).message, *strict) << text;
    }
  }
  EXPECT_GT(num_strict, 50);
}

}  // namespace
}  // namespace dsv4::chat
