// Constraints token by token.
#include "session/answer_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "session/text_model_testing.h"

namespace dsv4::session {
namespace {

using ::testing::ElementsAre;

const TextModel& Tiny() {
  static const TextModel text = MakeTinyTextModel("models/tiny/tokenizer.json", "v4");
  return text;
}

std::unique_ptr<sampling::TokenConstraint> Made(const AnswerShape& shape) {
  auto constraint = MakeConstraint(Tiny(), shape);
  EXPECT_TRUE(constraint) << constraint.error().ToString();
  return std::move(*constraint);
}

std::vector<int32_t> AllowedOf(sampling::TokenConstraint& constraint) {
  std::vector<int32_t> ids;
  const std::span<const uint64_t> words = constraint.Allowed();
  for (int32_t id = 0; id < static_cast<int32_t>(words.size()) * 64; ++id) {
    if ((words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
  }
  return ids;
}

const grammar::CallableTool kWeather = {
    .name = "get_weather",
    .parameters =
        R"({"properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"],"additionalProperties":false})",
    .strict = true,
    .label = "tools[0]"};

grammar::AnswerRules Rules(grammar::ContentKind content, std::vector<grammar::CallableTool> tools) {
  return {.starts_in_reasoning = false,
          .content = content,
          .tags = {.marker = "｜DSML｜"},
          .tools = std::move(tools)};
}

std::unique_ptr<sampling::TokenConstraint> Constraint(const grammar::AnswerRules& rules,
                                                      std::optional<int64_t> cap = {}) {
  const auto program = grammar::CompileAnswer(rules);
  EXPECT_TRUE(program) << program.error().ToString();
  return Made({.starts_in_reasoning = rules.starts_in_reasoning,
               .max_reasoning_tokens = cap,
               .grammar = *program,
               .stop_tokens = {Tiny().special->end_of_sentence}});
}

// Feeds the tokens of `text`; the first that is not allowed, spelled, or nothing.
std::string FirstForbidden(sampling::TokenConstraint& constraint, std::string_view text) {
  const std::vector<int32_t> tokens = *Tiny().tokenizer.Encode(text);
  for (const int32_t token : tokens) {
    const std::vector<int32_t> allowed = AllowedOf(constraint);
    if (!std::binary_search(allowed.begin(), allowed.end(), token))
      return std::string(Tiny().tokenizer.TokenBytes(token));
    constraint.Accept(token);
  }
  return "";
}

TEST(AnswerShape, WithoutWishesThereIsNoConstraint) {
  EXPECT_EQ(Made({.starts_in_reasoning = true}), nullptr);
  EXPECT_EQ(Made({.max_reasoning_tokens = 3}), nullptr);  // Nothing to cap.
}

TEST(AnswerShape, ContentOfASchemaComesBehindTheReasoning) {
  const std::vector<int32_t> stop_tokens = {Tiny().special->end_of_sentence};
  const auto constraint = Constraint({.starts_in_reasoning = true,
                                      .content = grammar::ContentKind::kJson,
                                      .schema = R"({"enum":["Paris","Rome"]})"},
                                     2);
  EXPECT_THAT(AllowedOf(*constraint), ::testing::Not(::testing::Contains(stop_tokens[0])));
  constraint->Accept(100);
  constraint->Accept(100);
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(Tiny().special->think_end));
  constraint->Accept(Tiny().special->think_end);
  std::string text;
  while (text.size() < 20) {
    const std::vector<int32_t> allowed = AllowedOf(*constraint);
    ASSERT_FALSE(allowed.empty()) << text;
    if (allowed == stop_tokens) break;
    text += Tiny().tokenizer.TokenBytes(allowed.back());
    constraint->Accept(allowed.back());
  }
  EXPECT_TRUE(text == "\"Paris\"" || text == "\"Rome\"") << text;
}

constexpr std::string_view kCall =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
    "<｜DSML｜parameter name=\"city\" string=\"true\">Bad \"Ems\"\n<b></｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

TEST(AnswerShape, ARequiredCallIsWholeAndOfAnAllowedTool) {
  const auto constraint = Constraint(Rules(grammar::ContentKind::kCall, {kWeather}));
  EXPECT_EQ(FirstForbidden(*constraint, kCall), "");
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(Tiny().special->end_of_sentence));
}

TEST(AnswerShape, CallsOfV41HaveItsTags) {
  const TextModel v41 = MakeTinyTextModel("models/tiny/tokenizer.json", "v4.1");
  grammar::AnswerRules rules = RulesOf(v41, false);
  rules.content = grammar::ContentKind::kCall;
  rules.tools = {kWeather};
  std::string call(kCall);
  for (const auto& [v4, own] : {std::pair("｜tool_calls", "｜ calls"), std::pair("｜invoke", "｜ invoke"),
                                std::pair("｜parameter", "｜ parameter")}) {
    for (size_t at = call.find(v4); at != std::string::npos; at = call.find(v4))
      call.replace(at, std::string_view(v4).size(), own);
  }
  EXPECT_EQ(FirstForbidden(*Constraint(rules), call), "");
  EXPECT_NE(FirstForbidden(*Constraint(rules), kCall), "");
  EXPECT_NE(FirstForbidden(*Constraint(Rules(grammar::ContentKind::kCall, {kWeather})), call), "");
}

TEST(AnswerShape, WhatACallMustNotSay) {
  const auto refused = [](std::string_view what, std::string_view by, bool parallel = true) {
    grammar::AnswerRules rules = Rules(grammar::ContentKind::kCall, {kWeather});
    rules.parallel_calls = parallel;
    std::string text(kCall);
    text.replace(text.find(what), what.size(), by);
    return FirstForbidden(*Constraint(rules), text);
  };
  EXPECT_NE(refused("get_weather", "get_sun"), "");
  EXPECT_NE(refused(">3<", ">3.5<"), "");
  EXPECT_NE(refused("\"days\" string=\"false\"", "\"days\" string=\"true\""), "");
  EXPECT_NE(refused("\"city\" string=\"true\"", "\"city\" string=\"false\""), "");
  EXPECT_NE(refused("\"days\"", "\"hours\""), "");
  EXPECT_NE(refused("</｜DSML｜tool_calls>", "the end"), "");
  EXPECT_EQ(refused("</｜DSML｜tool_calls>", "<｜DSML｜invoke name=\""), "");
  EXPECT_NE(refused("</｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"", false), "");
}

TEST(AnswerShape, TextMayStandBeforeAStrictCallAndNothingBehindIt) {
  const int32_t stop = Tiny().special->end_of_sentence;
  grammar::AnswerRules rules = Rules(grammar::ContentKind::kText, {kWeather});
  rules.starts_in_reasoning = true;
  const auto constraint = Constraint(rules);
  EXPECT_EQ(FirstForbidden(*constraint, "a <｜DSML｜call?</think>Let me <｜DSML｜see"), "");
  EXPECT_THAT(AllowedOf(*constraint), ::testing::Contains(stop));
  EXPECT_EQ(FirstForbidden(*constraint, kCall), "");
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(stop));
  // A call that interrupts the reasoning is the answer too, and no cap closes what is over.
  const auto interrupted = Constraint(rules, 20);
  EXPECT_EQ(FirstForbidden(*interrupted, kCall), "");
  EXPECT_THAT(AllowedOf(*interrupted), ElementsAre(stop));
}

TEST(AnswerShape, JsonOrACall) {
  grammar::AnswerRules rules = Rules(grammar::ContentKind::kJson, {kWeather});
  rules.schema = R"({"const":[1]})";
  EXPECT_EQ(FirstForbidden(*Constraint(rules), kCall), "");
  EXPECT_EQ(FirstForbidden(*Constraint(rules), "[1]"), "");
  EXPECT_NE(FirstForbidden(*Constraint(rules), "[2]"), "");
}

TEST(AnswerShape, AStopTokenThatIsTextDoesNotEndAnIncompleteAnswer) {
  const int32_t brace = (*Tiny().tokenizer.Encode("["))[0];
  const auto program =
      grammar::CompileAnswer({.content = grammar::ContentKind::kJson, .schema = R"({"enum":[[1],7]})"});
  const auto constraint = Made({.grammar = *program, .stop_tokens = {brace}});
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre((*Tiny().tokenizer.Encode("7"))[0]));
}

TEST(AnswerShape, ListedTokensAreAllThatComes) {
  const int32_t stop = Tiny().special->end_of_sentence;
  const auto constraint = Made({.allowed_tokens = {91, 80}, .stop_tokens = {stop}});
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(80, 91));
  constraint->Accept(91);
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(80, 91));
  EXPECT_THAT(AllowedOf(*Made({.allowed_tokens = {91, stop}, .stop_tokens = {stop}})),
              ::testing::UnorderedElementsAre(91, stop));
}

TEST(AnswerShape, WishesThatExcludeEachOtherAreNamedOrEndTheAnswer) {
  const int32_t stop = Tiny().special->end_of_sentence;
  const auto token = [](std::string_view text) { return Tiny().tokenizer.Encode(text)->front(); };
  const auto program =
      grammar::CompileAnswer({.content = grammar::ContentKind::kJson, .schema = R"({"enum":[[1],7]})"});
  const auto from_the_start = Made({.grammar = *program,
                                    .grammar_field = "response_format",
                                    .allowed_tokens = {token("x")},
                                    .stop_tokens = {stop}});
  EXPECT_TRUE(AllowedOf(*from_the_start).empty());
  EXPECT_EQ(from_the_start->WhyNone().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(
      from_the_start->WhyNone().message(),
      ::testing::HasSubstr("allowed_token_ids, response_format: no token is left that all of them allow"));
  // Later, in a text that is whole: it ends.
  const auto whole = Made({.grammar = *program, .allowed_tokens = {token("7")}, .stop_tokens = {stop}});
  EXPECT_THAT(AllowedOf(*whole), ElementsAre(token("7")));
  whole->Accept(token("7"));
  EXPECT_THAT(AllowedOf(*whole), ElementsAre(stop));
  // And in one that is not.
  const auto part = Made({.grammar = *program, .allowed_tokens = {token("[")}, .stop_tokens = {stop}});
  EXPECT_THAT(AllowedOf(*part), ElementsAre(token("[")));
  part->Accept(token("["));
  EXPECT_TRUE(AllowedOf(*part).empty());
}

TEST(AnswerShape, ReasoningEndsAtItsCap) {
  const auto constraint = Made({.starts_in_reasoning = true, .max_reasoning_tokens = 2});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(constraint->Allowed().empty());
    constraint->Accept(100);
  }
  EXPECT_THAT(AllowedOf(*constraint), ElementsAre(Tiny().special->think_end));
  constraint->Accept(Tiny().special->think_end);
  EXPECT_TRUE(constraint->Allowed().empty());
}

}  // namespace
}  // namespace dsv4::session
