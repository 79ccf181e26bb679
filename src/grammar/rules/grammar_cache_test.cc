// Tests of the grammar cache: shared grammars, eviction, and the compiler's errors.
#include "grammar/rules/grammar_cache.h"

#include <gtest/gtest.h>

#include <string>

namespace dsv4::grammar {
namespace {

AnswerRules Json(const std::string& schema) {
  return {.content = ContentKind::kRule, .rule = {.text = schema, .label = "schema"}};
}

TEST(GrammarCache, EqualRulesShareAGrammarAndOthersDoNot) {
  GrammarCache cache;
  const auto first = *cache.Compile(Json(R"({"enum": [1, 2]})"));
  EXPECT_EQ(*cache.Compile(Json(R"({"enum": [1, 2]})")), first);
  EXPECT_NE(*cache.Compile(Json(R"({"enum": [1, 3]})")), first);
  AnswerRules rules = Json(R"({"enum": [1, 2]})");
  rules.starts_in_reasoning = true;
  EXPECT_NE(*cache.Compile(rules), first);
  rules = Json(R"({"enum": [1, 2]})");
  rules.tools = {{.name = "f", .parameters = R"({"type": "object"})", .strict = true, .label = "tool"}};
  const auto strict = *cache.Compile(rules);
  rules.tools[0].strict = false;
  EXPECT_NE(*cache.Compile(rules), strict);
  EXPECT_EQ(*cache.Compile(Json(R"({"enum": [1, 2]})")), first);
}

TEST(GrammarCache, TheLeastRecentlyUsedGo) {
  const auto schema = [](int i) { return Json(R"({"enum": [)" + std::to_string(100 + i) + "]}"); };
  size_t num_states = 0;
  const auto sized = *CompileAnswer(schema(0));
  for (const Dfa& dfa : sized->dfas) num_states += dfa.num_states();
  GrammarCache cache(2 * (num_states + sized->nodes.size()));  // For two of them.
  const std::weak_ptr<const Program> a = *cache.Compile(schema(1));
  const std::weak_ptr<const Program> b = *cache.Compile(schema(2));
  EXPECT_EQ(*cache.Compile(schema(1)), a.lock());  // Used again.
  static_cast<void>(cache.Compile(schema(3)));
  EXPECT_FALSE(a.expired());
  EXPECT_TRUE(b.expired());
  GrammarCache tiny(1);
  EXPECT_TRUE(tiny.Compile(schema(1)).has_value());  // Too large to be kept.
}

TEST(GrammarCache, ErrorsAreThoseOfTheCompiler) {
  GrammarCache cache;
  for (int i = 0; i < 2; ++i) {
    const auto program = cache.Compile(Json(R"({"not": {}})"));
    ASSERT_FALSE(program.has_value());
    EXPECT_EQ(program.error().message(), CompileAnswer(Json(R"({"not": {}})")).error().message());
  }
}

}  // namespace
}  // namespace dsv4::grammar
