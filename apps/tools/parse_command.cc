// `dsv4 parse`: completions of a case file parsed to JSON lines, strict or lenient.
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
  chat::RevisionFacts facts;
  if (const JsonValue* revision = test.Find("revision"); revision != nullptr && !revision->is_null()) {
    DSV4_ASSIGN_OR_RETURN(facts.option, CaseText(test, "revision"));
  }
  DSV4_ASSIGN_OR_RETURN(const chat::ChatProfile* profile, chat::DetectChatProfile(facts));
  if (lenient) {
    chat::ParserOptions options{.starts_in_reasoning = mode == chat::ThinkingMode::kThinking};
    // A case with the tools of a request is read as `serve` reads its answer, and says how it ended.
    const JsonValue* tools = test.Find("tools");
    if (tools == nullptr) return ToJson(chat::ParseLenient(*profile, completion, options).message);
    options.tools_active = !tools->items().empty();
    options.accept_damaged_tags = true;
    options.tools = chat::ToolSchemas(tools->items());
    const JsonValue* cause = test.Find("cause");
    const bool is_cut = cause != nullptr && cause->text() == "length";
    const chat::CollectedCompletion parsed = chat::ParseLenient(
        *profile, completion, options, is_cut ? chat::EndCause::kLength : chat::EndCause::kStop);
    JsonValue message = ToJson(parsed.message);
    message.mutable_members().emplace_back(
        "finish_reason", JsonValue::String(std::string(chat::FinishReasonName(parsed.finish_reason))));
    return message;
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
