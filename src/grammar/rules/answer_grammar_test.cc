// Answers as text: what a grammar of calls takes and refuses. @ stands for the marker's token.
#include "grammar/rules/answer_grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "grammar/forbidden_text.h"
#include "grammar/matcher.h"
#include "grammar/testing.h"

namespace dsv4::grammar {
namespace {

using ::testing::HasSubstr;

std::string WithMarkers(std::string text) {
  for (size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) text[at] = '\xF9';
  return text;
}

AnswerRules CallOf(std::string_view parameters, bool strict = true) {
  return {
      .content = ContentKind::kCall,
      .tags = {.marker = "｜DSML｜"},
      .tools = {{.name = "f", .parameters = std::string(parameters), .strict = strict, .label = "tools[0]"}}};
}

bool Takes(const std::shared_ptr<const Program>& program, const std::string& text) {
  Matcher matcher(program, testing::ToyTrie(), {testing::kStop});
  return matcher.AcceptBytes(WithMarkers(text)).ok() && matcher.IsComplete();
}

bool Takes(const AnswerRules& rules, const std::string& text) {
  const auto program = CompileAnswer(rules);
  EXPECT_TRUE(program) << program.error().ToString();
  return program && Takes(*program, text);
}

std::string Call(std::string_view arguments) {
  return "\n\n<@tool_calls>\n<@invoke name=\"f\">\n" + std::string(arguments) + "</@invoke>\n</@tool_calls>";
}
std::string String(std::string_view name, std::string_view value) {
  return "<@parameter name=\"" + std::string(name) + "\" string=\"true\">" + std::string(value) +
         "</@parameter>\n";
}
std::string Other(std::string_view name, std::string_view value) {
  return "<@parameter name=\"" + std::string(name) + "\" string=\"false\">" + std::string(value) +
         "</@parameter>\n";
}

std::string ErrorOf(const AnswerRules& rules) {
  const auto program = CompileAnswer(rules);
  return program ? "" : program.error().message();
}

TEST(AnswerGrammar, StringsAreRawAndTheRestIsJson) {
  const AnswerRules rules =
      CallOf(R"({"properties":{"a":{"type":["string","null"]},"b":{"items":{"type":"string"}}}})");
  EXPECT_TRUE(Takes(rules, Call(String("a", "x \"y\" <b></b>\n\\"))));
  EXPECT_TRUE(Takes(rules, Call(String("a", ""))));
  EXPECT_TRUE(Takes(rules, Call(Other("a", "null"))));
  EXPECT_TRUE(Takes(rules, Call(String("a", "null") + Other("b", R"(["x", "y"])"))));
  EXPECT_FALSE(Takes(rules, Call(Other("a", "\"x\""))));
  EXPECT_FALSE(Takes(rules, Call(Other("a", "1"))));
  EXPECT_FALSE(Takes(rules, Call(String("b", "x"))));
  EXPECT_FALSE(Takes(rules, Call(Other("b", "[1]"))));
}

// V4.1's names have a blank in front.
TEST(AnswerGrammar, TagsAreThoseOfTheFormat) {
  AnswerRules rules =
      CallOf(R"({"properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"]})");
  rules.tags = {.marker = "｜DSML｜", .tool_calls = " calls", .invoke = " invoke", .parameter = " parameter"};
  const std::string call =
      "\n\n<@ calls>\n<@ invoke name=\"f\">\n<@ parameter name=\"a\" "
      "string=\"true\">x</｜DSML｜parameter></@ parameter>\n"
      "<@ parameter name=\"b\" string=\"false\">1</@ parameter>\n</@ invoke>\n</@ calls>";
  EXPECT_TRUE(Takes(rules, call));
  EXPECT_FALSE(Takes(rules, Call(String("a", "x"))));
  for (const std::string tag :
       {"<@ calls", "<@ invoke", "<@ parameter", "</@ parameter>\n<", "</@ invoke", "</@ calls"}) {
    std::string wrong = call;
    wrong.erase(wrong.find(tag) + tag.find('@') + 1, 1);
    EXPECT_FALSE(Takes(rules, wrong)) << wrong;
  }
  rules.content = ContentKind::kOpenCall;
  EXPECT_TRUE(Takes(rules, call.substr(call.find(" calls"))));
}

TEST(AnswerGrammar, ParametersComeInAnyOrderAndTheRequiredOnesAllCome) {
  const AnswerRules rules = CallOf(
      R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},"required":["b"]})");
  EXPECT_TRUE(Takes(rules, Call(Other("b", "1"))));
  EXPECT_TRUE(Takes(rules, Call(Other("a", "1") + Other("b", "1") + Other("c", "1"))));
  EXPECT_FALSE(Takes(rules, Call("\n")));
  EXPECT_FALSE(Takes(rules, Call(Other("a", "1"))));
  EXPECT_TRUE(Takes(rules, Call(Other("b", "1") + Other("a", "1"))));
  EXPECT_TRUE(Takes(rules, Call(Other("c", "1") + Other("b", "1") + Other("a", "1"))));
  EXPECT_FALSE(Takes(rules, Call(Other("b", "1") + Other("b", "1"))));
  EXPECT_FALSE(Takes(rules, Call(Other("c", "1") + Other("a", "1"))));
  EXPECT_FALSE(Takes(rules, Call(Other("b", "1") + Other("d", "1"))));
  EXPECT_FALSE(Takes(rules, Call(Other("b", "1") + "\n")));
  EXPECT_TRUE(Takes(CallOf(R"({"properties":{"a":{}}})"), Call("\n")));
}

// Sets of parameters are too many then.
TEST(AnswerGrammar, OfManyParametersTheRequiredOnesAreCounted) {
  std::string properties;
  std::string required;
  for (int i = 0; i < 20; ++i) {
    properties += fmt::format(R"({}"p{}":{{"type":"integer"}})", i > 0 ? "," : "", i);
    required += fmt::format(R"({}"p{}")", i > 0 ? "," : "", i);
  }
  const std::string schema = R"({"properties":{)" + properties + R"(},"required":[)";
  const AnswerRules some = CallOf(schema + R"("p7","p2"]})");
  EXPECT_TRUE(Takes(some, Call(Other("p7", "1") + Other("p19", "1") + Other("p2", "1") + Other("p0", "1"))));
  EXPECT_FALSE(Takes(some, Call(Other("p7", "1") + Other("p19", "1"))));
  EXPECT_FALSE(Takes(some, Call(Other("p7", "1") + Other("p7", "1") + Other("p2", "1"))));
  std::string in_order;
  std::string reversed;
  for (int i = 0; i < 20; ++i) {
    in_order += Other(fmt::format("p{}", i), "1");
    reversed = Other(fmt::format("p{}", i), "1") + reversed;
  }
  const AnswerRules all = CallOf(schema + required + "]}");
  EXPECT_TRUE(Takes(all, Call(in_order)));
  EXPECT_FALSE(Takes(all, Call(reversed)));
}

TEST(AnswerGrammar, ACallThatHasBegunIsWhole) {
  AnswerRules rules = CallOf(R"({"properties":{"a":{"type":"integer"}},"required":["a"]})");
  const std::string call = Call(Other("a", "1"));
  rules.content = ContentKind::kOpenCall;
  const std::string behind = call.substr(call.find('@') + 1);
  EXPECT_TRUE(Takes(rules, behind));
  EXPECT_FALSE(Takes(rules, " " + behind));
  EXPECT_FALSE(Takes(rules, "tool_calls>\ntext"));
}

TEST(ForbiddenText, HasNoneOfTheWords) {
  const auto grammar = CompileWithoutWords({"abc", "bd"});
  ASSERT_TRUE(grammar.has_value());
  for (const char* text : {"", "ab", "abab", "ab c", "xyz", "ABC"})
    EXPECT_TRUE(Takes(*grammar, text)) << text;
  for (const char* text : {"abc", "ababc", "xbd", "abd."}) EXPECT_FALSE(Takes(*grammar, text)) << text;
  EXPECT_FALSE(CompileWithoutWords({"a", ""}).has_value());
}

TEST(AnswerGrammar, NoValueEndsItsParameter) {
  const std::string closer = "</｜DSML｜parameter>";
  const std::string nearly = "</｜DSML｜parameter </｜DSML｜invoke>";
  const AnswerRules rules = CallOf(
      R"({"properties":{"s":{"type":"string"},"o":{"type":"object"},"n":{"type":"string","maxLength":99}}})");
  EXPECT_TRUE(Takes(rules, Call(String("s", nearly))));
  EXPECT_FALSE(Takes(rules, Call(String("s", "x" + closer))));
  EXPECT_TRUE(Takes(rules, Call(Other("o", "{\"" + nearly + "\":\"" + nearly + "\"}"))));
  EXPECT_FALSE(Takes(rules, Call(Other("o", "{\"x\":\"" + closer + "\"}"))));
  EXPECT_FALSE(Takes(rules, Call(Other("o", "{\"" + closer + "\":1}"))));
  EXPECT_TRUE(Takes(rules, Call(Other("o", R"({"x":"\u003c/｜DSML｜parameter>"})"))));
  EXPECT_TRUE(Takes(rules, Call(String("n", "</ ｜"))));
  EXPECT_FALSE(Takes(rules, Call(String("n", closer))));
  // The marker stands in tags alone.
  EXPECT_FALSE(Takes(rules, Call(String("s", "@"))));
  const AnswerRules values =
      CallOf(R"({"properties":{"e":{"enum":["</｜DSML｜parameter>","x",["</｜DSML｜parameter>"]]}}})");
  EXPECT_TRUE(Takes(values, Call(String("e", "x"))));
  EXPECT_FALSE(Takes(values, Call(String("e", closer))));
  EXPECT_TRUE(Takes(values, Call(Other("e", R"(["\u003c/｜DSML｜parameter>"])"))));
}

TEST(AnswerGrammar, KeywordsOfStringsHoldForRawOnes) {
  const auto takes = [](std::string_view schema, std::string_view text) {
    return Takes(CallOf(R"({"properties":{"a":)" + std::string(schema) + "}}"), Call(String("a", text)));
  };
  constexpr std::string_view kCounted = R"({"type":"string","minLength":2,"maxLength":4})";
  for (const char* text : {"ab", "a\"é\\", "</b>", "<</a"}) EXPECT_TRUE(takes(kCounted, text)) << text;
  for (const char* text : {"", "é", "abcde", "</b></b>"}) EXPECT_FALSE(takes(kCounted, text)) << text;
  constexpr std::string_view kPattern = R"({"type":"string","pattern":"^a\"\\n<?$"})";
  EXPECT_TRUE(takes(kPattern, "a\"\n"));
  EXPECT_TRUE(takes(kPattern, "a\"\n<"));
  EXPECT_FALSE(takes(kPattern, "a\\\"\n"));
  constexpr std::string_view kPath =
      R"({"type":"string","pattern":"^.{1,255}/.{1,255}$"})";  // Counted on the stack.
  for (const char* text : {"a/b", "</b", "</b>/", "\"/é"}) EXPECT_TRUE(takes(kPath, text)) << text;
  for (const char* text : {"ab", "/", "a/｜"}) EXPECT_FALSE(takes(kPath, text)) << text;
  EXPECT_FALSE(takes(kPath, "a/" + std::string(256, 'b')));
  EXPECT_TRUE(takes(R"({"enum":["x\"y",1]})", "x\"y"));
  EXPECT_FALSE(takes(R"({"enum":["x\"y",1]})", "x"));
  EXPECT_TRUE(takes(R"({"type":"string","format":"date"})", "2026-11-21"));
  EXPECT_TRUE(takes(R"({"type":"string","pattern":"a","minLength":2})", "ba"));
  EXPECT_FALSE(takes(R"({"type":"string","pattern":"a","minLength":2})", "a"));
}

TEST(AnswerGrammar, OtherParametersOnlyWhereTheSchemaNamesNoneOrSaysSo) {
  EXPECT_FALSE(Takes(CallOf(R"({"properties":{"a":{}}})"), Call(Other("b", "1"))));
  const AnswerRules rules =
      CallOf(R"({"properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})");
  EXPECT_TRUE(Takes(rules, Call(Other("a", "1") + Other("b c", "true") + Other("d", "true"))));
  EXPECT_TRUE(Takes(rules, Call(Other("b", "true"))));
  EXPECT_FALSE(Takes(rules, Call(Other("b", "1"))));
  EXPECT_FALSE(Takes(rules, Call(Other("a", "true"))));
  EXPECT_TRUE(Takes(CallOf(R"({"type":"object"})"), Call(String("b", "x"))));
  // The parser would read these as all arguments.
  EXPECT_FALSE(Takes(CallOf(R"({"type":"object"})"), Call(Other("arguments", "{}"))));
  EXPECT_FALSE(Takes(CallOf(R"({"type":"object"})"), Call(Other("input", "{}"))));
  EXPECT_TRUE(Takes(CallOf(R"({"properties":{"input":{}}})"), Call(Other("input", "{}"))));
}

TEST(AnswerGrammar, ErrorsOfStrictToolsNameTheirPlaceAndOthersAreFollowedAsFarAsTheyGo) {
  constexpr std::string_view kSchema =
      R"({"properties":{"a":{"type":"integer","maxContains":2},"b":{"type":"string","format":"x"},"c":{"type":"strin"}},"required":["a"],"maxProperties":3})";
  EXPECT_THAT(ErrorOf(CallOf(kSchema)), HasSubstr("tools[0]: json schema, /maxProperties: "));
  const AnswerRules lenient = CallOf(kSchema, /*strict=*/false);
  EXPECT_TRUE(Takes(lenient, Call(Other("a", "3") + String("b", "y") + Other("c", "1"))));
  EXPECT_FALSE(Takes(lenient, Call(String("a", "3"))));
  EXPECT_FALSE(Takes(lenient, Call(Other("a", "3") + Other("b", "1"))));
  EXPECT_FALSE(Takes(lenient, Call("\n")));
  EXPECT_THAT(ErrorOf(CallOf(R"x({"properties":{"a":{"pattern":"(?=x)"}}})x")),
              HasSubstr("tools[0]: json schema, /properties/a/pattern: "));
  EXPECT_THAT(ErrorOf(CallOf(R"({"type":"array"})")), HasSubstr("wanted the schema of an object"));
  EXPECT_THAT(ErrorOf(CallOf("{\"properties\":{\"a\\\"\":{}}}")), HasSubstr("a name with a quote"));
  EXPECT_THAT(ErrorOf(CallOf(R"({"properties":{"a":false},"required":["a"]})")),
              HasSubstr("tools[0]: json schema: no value satisfies"));
  EXPECT_TRUE(Takes(CallOf(R"({"type":"array"})", false), Call(String("b", "x"))));
  EXPECT_THAT(ErrorOf(CallOf("[", false)), HasSubstr("tools[0]: "));
}

TEST(AnswerGrammar, ArgumentsMayBeChosenAndReferredTo) {
  const AnswerRules rules = CallOf(
      R"({"oneOf":[{"$ref":"#/$defs/x"},{"properties":{"b":{"$ref":"#/$defs/n"}},"required":["b"]}],
          "$defs":{"x":{"properties":{"a":{"$ref":"#/$defs/n"}},"required":["a"]},"n":{"type":"integer"}}})");
  EXPECT_TRUE(Takes(rules, Call(Other("a", "1"))));
  EXPECT_TRUE(Takes(rules, Call(Other("b", "1"))));
  EXPECT_FALSE(Takes(rules, Call(Other("a", "1") + Other("b", "1"))));
}

TEST(AnswerGrammar, FreeTextGoesOnUntilACallHoweverItIsSpelled) {
  AnswerRules rules = CallOf(R"({"properties":{}})");
  rules.content = ContentKind::kText;
  rules.starts_in_reasoning = true;
  const std::string call = Call("\n");
  EXPECT_TRUE(Takes(rules, ""));
  EXPECT_TRUE(Takes(rules, "reasoning, never closed, of <@tool_calls and bytes: \xFA\xC3"));
  EXPECT_TRUE(Takes(rules,
                    "so\xF8"
                    "Text, <@x> and <@"));
  for (const std::string close : {"", "</think>", "\xF8"}) {
    EXPECT_TRUE(Takes(rules, "so" + close + "text" + call)) << close;
    EXPECT_TRUE(Takes(rules, "so" + close + "<｜DSML｜tool_calls>" + call.substr(call.find(">\n") + 1)))
        << close;
    EXPECT_FALSE(Takes(rules, "so" + close + "text" + call + " more")) << close;
    EXPECT_FALSE(Takes(rules, "so" + close + "<@tool_calls>")) << close;
    EXPECT_FALSE(Takes(rules, "so" + close + "<@tool_calls>x")) << close;
  }
  rules.content = ContentKind::kCall;
  EXPECT_FALSE(Takes(rules, "so"));
  EXPECT_FALSE(Takes(rules, "so</think>text" + call));
  EXPECT_TRUE(Takes(rules, "so</think>" + call));
  EXPECT_TRUE(Takes(rules, "so" + call));
}

TEST(AnswerGrammar, ParametersThatAreAlikeShareTheirAutomataHoweverTheyAreDescribed) {
  const auto sizes = [](const char* first, const char* second) {
    AnswerRules rules = CallOf(first);
    rules.tools.push_back({.name = "g", .parameters = second, .strict = true, .label = "tools[1]"});
    const auto program = CompileAnswer(rules);
    EXPECT_TRUE(program) << program.error().ToString();
    return program ? std::pair((*program)->dfas.size(), (*program)->nodes.size())
                   : std::pair<size_t, size_t>();
  };
  const char* plain = R"({"properties":{"a":{"type":"string"},"b":{"type":"string"}}})";
  const char* described =
      R"({"properties":{"a":{"type":"string","description":"one","x-y":[1]},"b":{"title":"two","type":"string"}}})";
  EXPECT_EQ(sizes(plain, plain), sizes(described, plain));
  EXPECT_EQ(sizes(plain, plain).first, sizes(plain, described).first);
  EXPECT_LT(sizes(plain, plain).first,
            sizes(plain, R"({"properties":{"a":{"type":"string"},"b":{"type":"integer"}}})").first);
}

}  // namespace
}  // namespace dsv4::grammar
