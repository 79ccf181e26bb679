#include "apps/tools/parse_command.h"

#include <fmt/format.h>

#include <iostream>

#include "apps/tools/case_file.h"
#include "chat/completion_parser.h"
#include "chat/strict_parser.h"

namespace dsv4::apps {
namespace {

using chat::JsonValue;

Result<JsonValue> Parse(const JsonValue& test, bool lenient) {
  DSV4_ASSIGN_OR_RETURN(const std::string completion, CaseText(test, "completion"));
  DSV4_ASSIGN_OR_RETURN(const std::string mode_name, CaseText(test, "mode"));
  if (mode_name != "chat" && mode_name != "thinking") {
    return Error(InvalidArgument(fmt::format("mode: got '{}', wanted chat or thinking", mode_name)));
  }
  const chat::ThinkingMode mode =
      mode_name == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking;
  // Every offered revision shares one completion grammar.
  DSV4_ASSIGN_OR_RETURN(const chat::ChatProfile* profile, chat::DetectChatProfile({}));
  if (lenient) {
    const chat::ParserOptions options{.starts_in_reasoning = mode == chat::ThinkingMode::kThinking};
    return ToJson(chat::ParseLenient(*profile, completion, options).message);
  }
  DSV4_ASSIGN_OR_RETURN(const chat::ParsedCompletion parsed, chat::ParseStrict(*profile, completion, mode));
  return ToJson(parsed);
}

}  // namespace

int RunParseCommand(const ParseOptions& options, std::ostream& out) {
  const auto run = [&](const JsonValue& test) { return Parse(test, options.lenient); };
  return RunCases(options.cases_path, "message", run, out);
}

int RunParseCommand(const ParseOptions& options) { return RunParseCommand(options, std::cout); }

}  // namespace dsv4::apps
