// grammar_bench: what constrained decoding costs. For each schema: compile once, then walk at random under
// the masks of the release's vocabulary, and time every mask. The first walk also fills the cache of the
// vocabulary ("cold").
//
//   build/release/grammar_bench [--step-ms N]    N: a decode step, to print masks as a part of it
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/rules/answer_grammar.h"
#include "tokenizer/testing.h"

namespace {

namespace grammar = dsv4::grammar;
using Clock = std::chrono::steady_clock;

struct Subject {
  const char* name;
  const char* schema;
  int num_tools = 0;  // Answers with so many tools with these parameters: reasoning, text and calls.
};

constexpr Subject kSubjects[] = {
    {"any object", R"({"type":"object"})"},
    {"person",
     R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"enum":["a","b","c"]},"maxItems":5}},"required":["name","age"],"additionalProperties":false})"},
    {"recursive list",
     R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"value":{"type":"string"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["value","next"],"additionalProperties":false}}})"},
    {"string of 1000", R"({"type":"string","minLength":1,"maxLength":1000})"},
    {"strict tool",
     R"({"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"},"title":{"type":"string","maxLength":200},"lines":{"type":"array","items":{"type":"integer"}},"mode":{"enum":["read","write"]}},"required":["path","text"],"additionalProperties":false})",
     1},
    {"20 strict tools",
     R"({"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"},"title":{"type":"string","description":"Short"},"note":{"type":"string","maxLength":200},"from":{"type":"integer"},"to":{"type":"integer","minimum":0},"all":{"type":"boolean"},"mode":{"enum":["read","write"]}},"required":["path","text"],"additionalProperties":false})",
     20},
    {"pattern", R"({"type":"array","items":{"type":"string","pattern":"^[A-Z]{2}-\\d{4,8}( \\w+)*$"}})"},
};

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Milliseconds of every mask of one walk.
std::vector<double> Walk(grammar::Matcher matcher, grammar::TokenId stop, std::mt19937& random) {
  std::vector<double> times;
  grammar::TokenMask mask(matcher.num_ids());
  std::vector<grammar::TokenId> allowed;
  while (!matcher.IsFinished() && times.size() < 400) {
    const Clock::time_point start = Clock::now();
    matcher.Mask(mask);
    times.push_back(MillisecondsSince(start));
    allowed.clear();
    for (grammar::TokenId id = 0; id < matcher.num_ids(); ++id) {
      if (mask.IsAllowed(id)) allowed.push_back(id);
    }
    grammar::TokenId id = allowed[random() % allowed.size()];
    if (mask.IsAllowed(stop) && random() % 4 == 0) id = stop;
    if (!matcher.Accept(id).ok()) std::abort();
  }
  return times;
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  const double step = argc == 3 && argv[1] == std::string_view("--step-ms") ? std::atof(argv[2]) : 0;
  if (argc != 1 && step <= 0) {
    fmt::print(stderr, "usage: grammar_bench [--step-ms N]\n");
    return 2;
  }
  const auto tokenizer = dsv4::tokenizer::Tokenizer::Parse(
      dsv4::tokenizer::testing::ReadReleaseFileWithV4Tokens(), "the release's tokenizer");
  if (!tokenizer) return 1;
  Clock::time_point start = Clock::now();
  const auto trie = grammar::TokenTrie::Create(*tokenizer, {.think_end = *tokenizer->FindToken("</think>"),
                                                            .dsml = *tokenizer->FindToken("｜DSML｜")});
  if (!trie) return 1;
  fmt::print("vocabulary {} ids, {} nodes, made in {:.0f} ms\n", (*trie)->num_ids(), (*trie)->nodes().size(),
             MillisecondsSince(start));
  const grammar::TokenId stop = *tokenizer->FindToken("<｜end▁of▁sentence｜>");
  std::mt19937 random(1);
  fmt::print("{:<16}{:>12}{:>12}{:>12}{:>12}{:>12}{:>8}\n", "schema", "compile ms", "cold max", "median us",
             "p99 us", "mean us", "masks");
  std::vector<double> all;
  for (const Subject& subject : kSubjects) {
    grammar::AnswerRules rules = {
        .starts_in_reasoning = true, .content = grammar::ContentKind::kText, .tags = {.marker = "｜DSML｜"}};
    for (int i = 0; i < subject.num_tools; ++i) {
      rules.tools.push_back(
          {.name = fmt::format("edit{}", i), .parameters = subject.schema, .strict = true, .label = "edit"});
    }
    start = Clock::now();
    const auto program =
        subject.num_tools == 0 ? grammar::CompileJsonSchema(subject.schema) : grammar::CompileAnswer(rules);
    if (!program) return 1;
    const double compile = MillisecondsSince(start);
    grammar::Matcher matcher(*program, *trie, {stop});
    // Nobody writes a tag by chance: walks begin behind it, and what reasoning and text in front of it cost
    // comes on top once.
    double cold = 0;
    if (subject.num_tools > 0) {
      grammar::TokenMask mask(matcher.num_ids());
      for (const char* text : {"So", "\xF8", "Text", "<", "\xF9", "tool_calls>"}) {
        start = Clock::now();
        matcher.Mask(mask);
        cold = std::max(cold, MillisecondsSince(start));
        if (!matcher.AcceptBytes(text).ok()) return 1;
      }
    }
    for (const double time : Walk(matcher, stop, random)) cold = std::max(cold, time);
    std::vector<double> times;
    while (times.size() < 2000) {
      const std::vector<double> walk = Walk(matcher, stop, random);
      times.insert(times.end(), walk.begin(), walk.end());
    }
    double sum = 0;
    for (const double time : times) sum += time;
    fmt::print("{:<16}{:>12.2f}{:>12.2f}{:>12.1f}{:>12.1f}{:>12.1f}{:>8}\n", subject.name, compile, cold,
               1e3 * Quantile(times, 0.5), 1e3 * Quantile(times, 0.99),
               1e3 * sum / static_cast<double>(times.size()), times.size());
    all.insert(all.end(), times.begin(), times.end());
  }
  double sum = 0;
  for (const double time : all) sum += time;
  if (step > 0) {
    fmt::print("of a step of {} ms: mean {:.3f} %, p99 {:.3f} %\n", step,
               100 * sum / static_cast<double>(all.size()) / step, 100 * Quantile(all, 0.99) / step);
  }
}
