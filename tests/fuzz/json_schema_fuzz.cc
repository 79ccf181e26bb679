// Any bytes as a JSON schema (the first line) and a text under it. Compiling and matching end soon and never
// crash, and masks are never empty before the end. A text that a matcher calls complete is JSON. The same
// schema as that of a tool, strict and not: a call that a matcher takes for whole has tags that belong
// together.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/rules/answer_grammar.h"
#include "grammar/testing.h"
#include "grammar_walking.h"

namespace {

using dsv4::Result;
namespace grammar = dsv4::grammar;
using Program = std::shared_ptr<const grammar::Program>;

size_t Count(std::string_view text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

using grammar::testing::Walk;
using grammar::testing::Walked;

bool Check(const Result<Program>& program) {
  if (!program && program.error().message().empty()) std::abort();
  return program.has_value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line_end = input.find('\n');
  const std::string schema(input.substr(0, line_end));
  const std::string_view text = line_end == std::string_view::npos ? "" : input.substr(line_end + 1);
  const auto program = grammar::CompileJsonSchema(schema);
  if (Check(program)) {
    const Walked walked = Walk(*program, text);
    if (walked.complete && !dsv4::ParseJson(walked.text, "text").has_value()) std::abort();
  }
  for (const bool strict : {true, false}) {
    const auto calls = grammar::CompileAnswer(
        {.content = grammar::ContentKind::kCall,
         .tags = {.marker = "｜DSML｜"},
         .tools = {{.name = "f", .parameters = schema, .strict = strict, .label = "tool"}}});
    if (!Check(calls)) continue;
    const Walked walked = Walk(*calls, text);
    if (!walked.complete) continue;
    for (const char* tag : {"tool_calls", "invoke", "parameter"}) {
      if (Count(walked.text, "<\xF9" + std::string(tag)) != Count(walked.text, "</\xF9" + std::string(tag)))
        std::abort();
    }
  }
  return 0;
}
