// Any bytes as a grammar of a request. The first byte chooses the notation (regex, choice, GBNF, Lark,
// structural tag). The text of the rule ends at a line "%%", and behind it is a text under it. Reading,
// compiling and matching end soon and never crash, masks are never empty before the end. The same rule as the
// text of a custom tool.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "grammar/rules/answer_grammar.h"
#include "grammar/testing.h"
#include "grammar_walking.h"

namespace {

namespace grammar = dsv4::grammar;
using Kind = grammar::ContentRule::Kind;

void Check(const grammar::AnswerRules& rules, std::string_view text) {
  const auto program = grammar::CompileAnswer(rules);
  if (!program) {
    if (program.error().message().empty()) std::abort();
    return;
  }
  grammar::testing::Walk(*program, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::array kKinds = {Kind::kRegex, Kind::kChoice, Kind::kGrammar,
                                 Kind::kGbnf,  Kind::kLark,   Kind::kStructuralTag};
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::string_view kEnd = "\n%%\n";
  const size_t end = input.find(kEnd);
  const std::string_view text = end == std::string_view::npos ? "" : input.substr(end + kEnd.size());
  const grammar::ContentRule rule = {
      .kind = kKinds[data[0] % kKinds.size()], .text = std::string(input.substr(0, end)), .label = "rule"};
  Check({.content = grammar::ContentKind::kRule, .rule = rule}, text);
  Check({.content = grammar::ContentKind::kCall,
         .tags = {.marker = "｜DSML｜"},
         .tools = {{.name = "f", .text = grammar::CallableTool::Text{"input", rule}}}},
        text);
  return 0;
}
