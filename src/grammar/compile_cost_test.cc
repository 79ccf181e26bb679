// Cost of compiling: two hundred tools of MCP servers, and schemas and rules with counts, lengths and depths from public reports. Work is
// counted, which no load of the machine changes. Memory is that of a process of its own. Times are printed, and bounded with room.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/rules/answer_grammar.h"

namespace dsv4::grammar {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasures = false;
#else
constexpr bool kMeasures = true;
#endif

// A fifth of what is allowed at all, which is work of about a second.
constexpr int64_t kMostWork = 6'000'000;
constexpr double kMostSeconds = 0.2;
constexpr double kRoom = 5;  // For a loaded machine.
constexpr long kMostKiB = 64 << 10;

struct Cost {
  int64_t work = -1;  // -1: it did not compile.
  double seconds = 0;
  long kib = 0;
};

// In a process of its own, so that its memory is known.
Cost CostOf(const std::function<Result<std::shared_ptr<const Program>>()>& compile) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    rusage before = {};
    getrusage(RUSAGE_SELF, &before);
    const std::clock_t begin = std::clock();
    const auto program = compile();
    Cost cost = {.work = program ? (*program)->work : -1,
                 .seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC};
    if (!program) fmt::print(stderr, "{}\n", program.error().message());
    rusage after = {};
    getrusage(RUSAGE_SELF, &after);
    cost.kib = after.ru_maxrss - before.ru_maxrss;
    const bool written = write(ends[1], &cost, sizeof cost) == sizeof cost;
    _exit(written ? 0 : 1);
  }
  Cost cost;
  const bool got = read(ends[0], &cost, sizeof cost) == sizeof cost;
  close(ends[0]);
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return got && status == 0 ? cost : Cost();
}

void Check(const std::string& name, const std::function<Result<std::shared_ptr<const Program>>()>& compile) {
  const Cost cost = CostOf(compile);
  fmt::print("{:>9} steps {:>7.1f} ms {:>6.1f} MiB  {}\n", cost.work, 1e3 * cost.seconds,
             static_cast<double>(cost.kib) / 1024, name.substr(0, 100));
  EXPECT_GE(cost.work, 0) << name;
  EXPECT_LE(cost.work, kMostWork) << name;
  if (!kMeasures) return;
  EXPECT_LE(cost.seconds, kRoom * kMostSeconds) << name;
  EXPECT_LE(cost.kib, kMostKiB) << name;
}

Json Tools() {
  std::ifstream file("tests/fixtures/mcp-tools.json");
  return Json::parse(file);
}

AnswerRules Rules(const Json& tools, bool strict) {
  AnswerRules rules = {
      .starts_in_reasoning = true, .content = ContentKind::kText, .tags = {.marker = "｜DSML｜"}};
  for (const Json& tool : tools) {
    rules.tools.push_back({.name = tool["name"],
                           .parameters = tool["parameters"].dump(),
                           .strict = strict,
                           .label = tool["name"]});
  }
  return rules;
}

TEST(CompileCostTest, TwoHundredToolsOfServers) {
  const Json tools = Tools();
  ASSERT_EQ(tools.size(), 200U);
  for (const bool strict : {false, true}) {
    const AnswerRules rules = Rules(tools, strict);
    Check(strict ? "200 strict tools" : "200 tools", [&] { return CompileAnswer(rules); });
  }
}

// Schemas of a member, which is an answer's, and a parameter of a strict tool.
constexpr const char* kValues[] = {
    R"({"type":"string","maxLength":65536})",
    R"({"type":"string","minLength":5000,"maxLength":65536})",
    R"({"type":"string","maxLength":2147483647})",
    R"({"type":"string","pattern":"^[a-z]{0,65536}$"})",
    R"({"type":"string","pattern":"^.{1,65536}$","minLength":1,"maxLength":32768})",
    R"({"type":"string","pattern":"^\\S.{0,9998}\\S$"})",
    R"({"type":"string","pattern":"^[a-z][a-z0-9-]{0,9998}[a-z0-9]$","maxLength":5000})",
    R"({"type":"string","pattern":"^([0-9a-f]{2}){1,5000}$","maxLength":8000})",
    R"({"type":"string","pattern":"^[A-Za-z0-9+/]{1,65536}={0,2}$"})",
    R"({"type":"string","pattern":"^(ab|c){10,20000}$"})",
    R"({"type":"string","pattern":"^([a-z]{1,100}-){1,100}$"})",
    R"({"type":"string","pattern":"[a-z]{3}","maxLength":65536})",
    R"({"type":"string","pattern":"^([a-z0-9-]{1,63}\\.){1,1000}[a-z]{2,63}$"})",
    R"({"type":"string","pattern":"^.{1,255}/.{1,255}$","maxLength":511})",
    R"({"type":"string","pattern":"^[^,]{1,40}(,[^,]{1,40}){0,5000}$"})",
    R"({"type":"string","pattern":"^[^\\s]{1,500}( [^\\s]{1,500})*$"})",
    R"({"type":["string","null"],"pattern":"[0-9]{500,10000}"})",
    R"({"type":"string","pattern":"^([0-9]{1,3}\\.){3}[0-9]{1,3}(, ([0-9]{1,3}\\.){3}[0-9]{1,3}){0,5000}$"})",
    R"({"type":"string","pattern":"^(.{0,1000}\\n){0,1000}$"})",
    R"({"type":"string","format":"uri","maxLength":65536})",
    R"({"type":"string","format":"date-time","minLength":1,"maxLength":4096})",
    R"({"type":"array","items":{"type":"string"},"minItems":10000})",
    R"({"type":"array","items":{"type":"object","properties":{"a":{"type":"string","maxLength":10000}},"required":["a"]},"maxItems":50000})",
    R"({"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"},"maxItems":9000})",
    R"({"type":"object","additionalProperties":{"type":"string"},"minProperties":1,"maxProperties":20000})",
    R"({"type":"object","patternProperties":{"^[a-z]{1,5000}$":{"type":"string","maxLength":65536}},"additionalProperties":false})",
    R"({"type":"object","propertyNames":{"maxLength":10000},"additionalProperties":{"type":"integer"}})",
    R"({"anyOf":[{"type":"string","maxLength":65536},{"type":"array","items":{"type":"string","maxLength":32768},"maxItems":1000}]})",
    R"({"allOf":[{"type":"string","maxLength":65536},{"type":"string","minLength":3}]})",
    R"({"type":"number","multipleOf":0.01,"minimum":0,"maximum":1000000000})",
};

TEST(CompileCostTest, SchemasOfReports) {
  for (const std::string value : kValues) {
    const std::string schema = fmt::format(
        R"({{"type":"object","properties":{{"v":{}}},"required":["v"],"additionalProperties":false}})",
        value);
    Check("answer " + value, [&] { return CompileJsonSchema(schema); });
    AnswerRules rules = Rules(Json::array(), true);
    rules.tools.push_back({.name = "f", .parameters = schema, .strict = true, .label = "f"});
    Check("tool " + value, [&] { return CompileAnswer(rules); });
  }
  std::string deep = R"({"type":"string"})";
  for (int i = 0; i < 60; ++i)
    deep = fmt::format(R"({{"type":"object","properties":{{"n":{}}},"required":["n"]}})", deep);
  Check("60 objects inside each other", [&] { return CompileJsonSchema(deep); });
  Json values = Json::array();
  for (int i = 0; i < 4000; ++i) values.push_back(fmt::format("value {} of many", i));
  const std::string many = Json{{"enum", values}}.dump();
  Check("an enum of 4000", [&] { return CompileJsonSchema(many); });
}

TEST(CompileCostTest, RulesWithCounts) {
  using Kind = ContentRule::Kind;
  constexpr struct {
    Kind kind;
    const char* text;
  } kRules[] = {
      {Kind::kRegex, "[a-z]{1,60000}"},
      {Kind::kRegex, "[a-z]{0,9998}[a-z0-9]"},
      {Kind::kRegex, "(?:[a-z]{1,200}\\.){3,500}[a-z]{2,63}"},
      {Kind::kRegex, "[a-z]{1,50000}x{3,9000}"},
      {Kind::kRegex, "((a{1,1000}){1,1000}){1,1000}"},
      {Kind::kRegex, "(x|[a-z ]{1,30000};){2,400}"},
      {Kind::kGbnf, "root ::= [a-z]{1,50000} (\"x\"){3,9000}"},
      {Kind::kGbnf, "root ::= (\"a\" | \"b\" root \"c\"){1,60000}"},
      {Kind::kLark, "start: \"a\"~1..50000"},
  };
  for (const auto& rule : kRules) {
    AnswerRules rules = {.content = ContentKind::kRule};
    rules.rule = {.kind = rule.kind, .text = rule.text, .label = "rule"};
    Check(rule.text, [&] { return CompileAnswer(rules); });
  }
}

}  // namespace
}  // namespace dsv4::grammar
