// `dsv4 encode`: conversations of a case file rendered to JSON lines.
#include "apps/tools/encode_command.h"

#include <fmt/format.h>

#include <iostream>

#include "apps/tools/case_file.h"
#include "chat/renderer.h"

namespace dsv4::apps {
namespace {

using chat::JsonValue;

// Options of a case for the renderer. `context` owns what `render.context` borrows.
struct CaseOptions {
  const chat::ChatProfile* profile = nullptr;
  std::vector<chat::Message> context;
  chat::RenderOptions render;
};

Status Wrong(std::string_view key, const JsonValue& got, std::string_view wanted) {
  const std::string value = got.is_string() ? fmt::format("'{}'", got.text()) : std::string(got.kind_name());
  return InvalidArgument(fmt::format("options.{}: got {}, wanted {}", key, value, wanted));
}

Status SetOption(std::string_view key, const JsonValue& value, CaseOptions& options) {
  if (key == "thinking_mode") {
    if (value.text() != "chat" && value.text() != "thinking") return Wrong(key, value, "chat or thinking");
    options.render.mode = value.text() == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking;
  } else if (key == "drop_thinking" || key == "add_default_bos_token") {
    if (!value.is_bool()) return Wrong(key, value, "a boolean");
    (key == "drop_thinking" ? options.render.drop_thinking : options.render.add_bos) = value.boolean();
  } else if (key == "reasoning_effort") {
    if (!value.is_string() && value.kind() != JsonValue::Kind::kInteger)
      return Wrong(key, value, "a string, an integer or null");
    options.render.effort = value.text();
  } else if (key == "revision") {
    if (!value.is_string()) return Wrong(key, value, "a string");
    DSV4_ASSIGN_OR_RETURN_STATUS(options.profile, chat::FindChatProfile(value.text()));
  } else if (key == "context") {
    DSV4_ASSIGN_OR_RETURN_STATUS(options.context, chat::ParseMessages(value, "options.context"));
  } else {
    return InvalidArgument(fmt::format("options.{}: unknown option", key));
  }
  return {};
}

Result<CaseOptions> ParseCaseOptions(const JsonValue& test) {
  CaseOptions options;
  DSV4_ASSIGN_OR_RETURN(options.profile, chat::DetectChatProfile({}));
  const JsonValue* json = test.Find("options");
  if (json == nullptr || json->is_null()) return options;
  if (!json->is_object()) return Error(InvalidArgument("options: wanted an object"));
  for (const auto& [key, value] : json->members()) {
    if (!value.is_null()) DSV4_TRY(SetOption(key, value, options));
  }
  return options;
}

Result<JsonValue> Encode(const JsonValue& test) {
  DSV4_ASSIGN_OR_RETURN(CaseOptions options, ParseCaseOptions(test));
  const JsonValue* messages_json = test.Find("messages");
  if (messages_json == nullptr) return Error(InvalidArgument("messages: missing"));
  DSV4_ASSIGN_OR_RETURN(std::vector<chat::Message> messages, chat::ParseMessages(*messages_json, "messages"));
  if (const JsonValue* tools_json = test.Find("tools")) {
    DSV4_ASSIGN_OR_RETURN(std::vector<JsonValue> tools, chat::ParseTools(*tools_json, "tools"));
    chat::AttachTools(messages, std::move(tools));
  }
  options.render.context = options.context;
  DSV4_ASSIGN_OR_RETURN(const chat::RenderedPrompt prompt,
                        chat::RenderPrompt(*options.profile, messages, options.render));
  return JsonValue::String(prompt.text());
}

}  // namespace

int RunEncodeCommand(const EncodeOptions& options, std::ostream& out) {
  return RunCases(options.cases_path, "rendered", Encode, out);
}

int RunEncodeCommand(const EncodeOptions& options) { return RunEncodeCommand(options, std::cout); }

}  // namespace dsv4::apps
