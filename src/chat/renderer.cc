// Renderer of conversations to prompt spans, template or data: turns, tools, schemas, calls and reasoning.
#include "chat/renderer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/check.h"
#include "chat/turns.h"

namespace dsv4::chat {
namespace {

constexpr std::string_view kBlankLine = "\n\n";
constexpr std::string_view kToolResultOpen = "<tool_result>";
constexpr std::string_view kToolResultClose = "</tool_result>";
constexpr std::string_view kResponseFormat =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

class PromptBuilder {
 public:
  void Template(std::string_view text) { Append(text, true); }
  void Data(std::string_view text) { Append(text, false); }
  std::vector<Span> Take() { return std::move(spans_); }

 private:
  void Append(std::string_view text, bool is_template) {
    if (text.empty()) return;
    if (spans_.empty() || spans_.back().is_template != is_template) spans_.push_back({"", is_template});
    spans_.back().text += text;
  }
  std::vector<Span> spans_;
};

std::string GuardCloser(std::string_view text, std::string_view closer) {
  std::string guarded;
  size_t pos = 0;
  while (true) {
    const size_t found = text.find(closer, pos);
    guarded += text.substr(pos, found - pos);
    if (found == std::string_view::npos) return guarded;
    guarded.append("&lt;").append(closer.substr(1));
    pos = found + closer.size();
  }
}

class Renderer {
 public:
  Renderer(const ChatProfile& profile, const RenderOptions& options, Conversation conversation)
      : profile_(profile), options_(options), conversation_(std::move(conversation)) {
    // A further answer behind a finished one: that one is past, as if a user turn had come.
    if (const std::vector<Turn>& turns = conversation_.turns;
        options.api_rules && !turns.empty() && turns.back().role == Role::kAssistant &&
        !turns.back().message->wo_eos && turns.back().task == nullptr) {
      conversation_.last_user = static_cast<int>(turns.size());
    }
  }

  Result<RenderedPrompt> Render() {
    DSV4_ASSIGN_OR_RETURN(const std::string effort_prefix, EffortPrefix());
    if (options_.add_bos && options_.context.empty()) builder_.Template(profile_.bos);
    for (size_t i = 0; i < conversation_.turns.size(); ++i) {
      if (const Turn& turn = conversation_.turns[i]; turn.is_context) {
        has_opener_ = turn.role == Role::kUser || turn.role == Role::kDeveloper;
        continue;
      }
      const std::string prefix = i == 0 ? effort_prefix : "";
      if (conversation_.turns[i].role == Role::kSystem || !prefix.empty())
        builder_.Template(profile_.system_marker);
      builder_.Template(prefix);
      if (Status status = RenderTurn(i); !status.ok()) {
        return Error(status.WithContext(conversation_.turns[i].name));
      }
    }
    return RenderedPrompt{builder_.Take(), ends_in_reasoning_};
  }

 private:
  bool thinking() const { return options_.mode == ThinkingMode::kThinking; }

  Result<std::string> EffortPrefix() const {
    const std::string effort = options_.effort.value_or(std::string(profile_.encoder_effort));
    if (effort.empty() && !options_.effort) return std::string();
    DSV4_ASSIGN_OR_RETURN(std::string text, profile_.EffortText(effort));
    return thinking() ? std::move(text) : std::string();
  }

  Status RenderTurn(size_t index) {
    const Turn& turn = conversation_.turns[index];
    ends_in_reasoning_ = false;
    const bool has_opener = std::exchange(has_opener_, false);
    switch (turn.role) {
      case Role::kSystem: {
        DSV4_RETURN_IF_ERROR(WritePlainText(turn.message->content));
        DSV4_RETURN_IF_ERROR(RenderToolsAndFormat(*turn.message));
        break;
      }
      case Role::kDeveloper: {
        DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text, PlainText(turn.message->content, ""));
        if (text.empty()) return InvalidArgument("content: got nothing, a developer message wants text");
        builder_.Template(profile_.user);
        builder_.Data(text);
        DSV4_RETURN_IF_ERROR(RenderToolsAndFormat(*turn.message));
        break;
      }
      case Role::kUser:
        DSV4_RETURN_IF_ERROR(RenderBlocks(turn));
        break;
      case Role::kLatestReminder: {
        DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text, PlainText(turn.message->content, kPythonNone));
        builder_.Template(profile_.latest_reminder);
        builder_.Data(text);
        break;
      }
      case Role::kAssistant:
        DSV4_RETURN_IF_ERROR(RenderAssistant(index, has_opener));
        break;
      case Role::kTool:
        DSV4_CHECK(false) << "tool messages are merged into user turns";
        break;
      case Role::kOther:
        return InvalidArgument(
            fmt::format("role: got '{}', wanted system, developer, user, assistant, tool or latest_reminder",
                        turn.message->other_role));
    }
    return RenderTransition(index);
  }

  // The text of a content where only text fits. `null_text`: what the reference writes for a null.
  Result<std::string> PlainText(const Content& content, std::string_view null_text) const {
    switch (content.kind) {
      case Content::Kind::kAbsent:
        return std::string();
      case Content::Kind::kNull:
        return std::string(options_.null_is_empty ? "" : null_text);
      case Content::Kind::kText:
        return content.text;
      case Content::Kind::kParts:
        break;
    }
    std::vector<std::string_view> texts;
    for (const ContentPart& part : content.parts) {
      if (part.type != "text") {
        return Error(
            InvalidArgument(fmt::format("content: got a part of type '{}', wanted text", part.type)));
      }
      texts.push_back(part.text);
    }
    return fmt::format("{}", fmt::join(texts, kBlankLine));
  }

  // A text of megabytes is written without a copy between.
  Status WritePlainText(const Content& content) {
    if (content.kind == Content::Kind::kText) {
      builder_.Data(content.text);
      return {};
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text, PlainText(content, ""));
    builder_.Data(text);
    return {};
  }

  Status RenderToolsAndFormat(const Message& message) {
    const bool has_update = profile_.system_turns && message.role == Role::kSystem && !message.tools.empty();
    const std::vector<JsonValue>& tools =
        has_update || !message.request_tools.empty() ? message.request_tools : message.tools;
    if (!tools.empty()) {
      RenderToolsHead();
      DSV4_RETURN_IF_ERROR(RenderTools(tools));
      builder_.Template(
          "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
          "calls.\n");
    }
    if (profile_.system_turns ? !message.response_format.is_null() : message.response_format.IsTruthy()) {
      builder_.Template(kResponseFormat);
      builder_.Data(WriteJson(message.response_format));
    }
    if (!has_update) return {};
    builder_.Template("\n\n### Updated Tool Schemas\n\n");
    return RenderTools(message.tools);
  }

  // A line each.
  Status RenderTools(const std::vector<JsonValue>& tools) {
    bool first = true;
    for (const JsonValue& tool : tools) {
      const JsonValue* function = tool.Find("function");
      if (function == nullptr) return InvalidArgument("tools: an entry has no member 'function'");
      if (!std::exchange(first, false)) builder_.Template("\n");
      builder_.Data(WriteJson(profile_.shows_signatures ? Signature(*function) : *function));
    }
    return {};
  }

  // Members that are left out are empty; parameters are null for the encoder, and an empty schema for an API.
  JsonValue Signature(const JsonValue& function) const {
    const auto given = [&](std::string_view key, JsonValue other) {
      const JsonValue* value = function.Find(key);
      return value == nullptr || value->is_null() ? std::move(other) : *value;
    };
    return JsonValue::Object(
        {{"name", given("name", JsonValue())},
         {"description", given("description", JsonValue::String(""))},
         {"parameters", given("parameters", options_.api_rules ? JsonValue::Object({}) : JsonValue())}});
  }

  void RenderToolsHead() {
    const std::string calls = profile_.OpenTag(profile_.tool_calls);
    const std::string calls_end = profile_.CloseTag(profile_.tool_calls);
    const std::string invoke = profile_.OpenTag(profile_.invoke);
    const std::string invoke_end = profile_.CloseTag(profile_.invoke);
    const std::string parameter = profile_.OpenTag(profile_.parameter);
    const std::string parameter_end = profile_.CloseTag(profile_.parameter);
    builder_.Template(fmt::format(
        "\n\n## Tools\n\n"
        "You have access to a set of tools to help answer the user's question. You can invoke tools by "
        "writing a "
        "\"{calls}>\" block like the following:\n\n"
        "{calls}>\n"
        "{invoke} name=\"$TOOL_NAME\">\n"
        "{parameter} name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE{parameter_end}>\n"
        "...\n"
        "{invoke_end}>\n"
        "{invoke} name=\"$TOOL_NAME2\">\n"
        "...\n"
        "{invoke_end}>\n"
        "{calls_end}>\n\n"
        "String parameters should be specified as is and set `string=\"true\"`. For all other types "
        "(numbers, "
        "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
        "If thinking_mode is enabled (triggered by {think}), you MUST output your complete reasoning inside "
        "{think}...{think_end} BEFORE any tool calls or final response.\n\n"
        "Otherwise, output directly after {think_end} with tool calls or final response.\n\n"
        "### Available Tool Schemas\n\n",
        fmt::arg("calls", calls), fmt::arg("calls_end", calls_end), fmt::arg("invoke", invoke),
        fmt::arg("invoke_end", invoke_end), fmt::arg("parameter", parameter),
        fmt::arg("parameter_end", parameter_end), fmt::arg("think", profile_.think_open),
        fmt::arg("think_end", profile_.think_close)));
  }

  Status RenderBlocks(const Turn& turn) {
    builder_.Template(profile_.user);
    bool first = true;
    for (const UserBlock& block : turn.blocks) {
      if (!first) builder_.Template(kBlankLine);
      first = false;
      if (block.type == "text") {
        if (block.content.kind == Content::Kind::kNull && !options_.null_is_empty) {
          return InvalidArgument("content: got null, a user message wants text");
        }
        DSV4_RETURN_IF_ERROR(WritePlainText(block.content));
      } else if (block.type == "tool_result") {
        RenderToolResult(block.content);
      } else {
        builder_.Data(Unsupported(block.type));
      }
    }
    return {};
  }

  void RenderToolResult(const Content& content) {
    const auto data = [&](std::string_view text) {
      builder_.Data(options_.guard_closers ? GuardCloser(text, kToolResultClose) : std::string(text));
    };
    builder_.Template(kToolResultOpen);
    if (content.kind == Content::Kind::kText) {
      data(content.text);
    } else if (content.kind == Content::Kind::kNull) {
      builder_.Data(options_.null_is_empty ? "" : kPythonNone);
    } else {
      bool first = true;
      for (const ContentPart& part : content.parts) {
        if (!first) builder_.Template(kBlankLine);
        first = false;
        data(part.type == "text" ? part.text : Unsupported(part.type));
      }
    }
    builder_.Template(kToolResultClose);
  }

  static std::string Unsupported(std::string_view type) { return fmt::format("[Unsupported {}]", type); }

  Status RenderAssistant(size_t index, bool has_opener) {
    const Turn& turn = conversation_.turns[index];
    const Message& message = *turn.message;
    const bool after_task = index > 0 && conversation_.turns[index - 1].task != nullptr;
    const bool after_last_user = static_cast<int>(index) > conversation_.last_user;
    const bool reasons = thinking() && !after_task && (!conversation_.drops_thinking || after_last_user);
    if (options_.api_rules && !has_opener && !after_task) RenderOpener(reasons);
    ends_in_reasoning_ = false;
    has_opener_ = false;
    if (reasons) {
      builder_.Data(message.reasoning_content);
      if (IsUnfinishedReasoning(message)) {
        ends_in_reasoning_ = true;
        return {};
      }
      builder_.Template(profile_.think_close);
    }
    DSV4_RETURN_IF_ERROR(WritePlainText(message.content));
    if (!message.sampled_calls.empty()) {
      builder_.Template(message.sampled_calls);
    } else if (!message.tool_calls.empty()) {
      DSV4_RETURN_IF_ERROR(RenderCalls(message.tool_calls));
    }
    if (!message.wo_eos) builder_.Template(profile_.eos);
    return {};
  }

  bool IsUnfinishedReasoning(const Message& message) const {
    const bool goes_on =
        profile_.continues_reasoning || (options_.api_rules && !message.reasoning_content.empty());
    return goes_on && message.wo_eos && message.content.text.empty() && message.content.parts.empty() &&
           message.tool_calls.empty();
  }

  Status RenderCalls(const std::vector<ToolCall>& calls) {
    builder_.Template(fmt::format("\n\n{}>\n", profile_.OpenTag(profile_.tool_calls)));
    for (size_t i = 0; i < calls.size(); ++i) {
      builder_.Template(profile_.OpenTag(profile_.invoke) + " name=\"");
      builder_.Data(calls[i].name);
      builder_.Template("\">\n");
      DSV4_RETURN_IF_ERROR(RenderArguments(calls[i]).WithContext(fmt::format("tool_calls[{}]", i)));
      builder_.Template(profile_.CloseTag(profile_.invoke) + ">\n");
    }
    builder_.Template(profile_.CloseTag(profile_.tool_calls) + ">");
    return {};
  }

  Status RenderArguments(const ToolCall& call) {
    const Result<JsonValue> arguments = ReadJson(call.arguments, "arguments", JsonDialect::kPython);
    const bool wraps = profile_.wraps_arguments || options_.api_rules;
    if (!arguments || (wraps && !arguments->is_object())) {
      RenderParameter("arguments", JsonValue::String(call.arguments));
      return {};
    }
    if (!arguments->is_object()) {
      return InvalidArgument(
          fmt::format("function.arguments: got a JSON {}, wanted an object", arguments->kind_name()));
    }
    for (const auto& [key, value] : arguments->members()) RenderParameter(key, value);
    if (arguments->members().empty()) builder_.Template("\n");
    return {};
  }

  void RenderParameter(std::string_view key, const JsonValue& value) {
    const std::string closer = profile_.CloseTag(profile_.parameter) + ">";
    builder_.Template(profile_.OpenTag(profile_.parameter) + " name=\"");
    builder_.Data(key);
    builder_.Template(fmt::format("\" string=\"{}\">", value.is_string()));
    const std::string text = value.is_string() ? value.text() : WriteJson(value);
    builder_.Data(options_.guard_closers && value.is_string() ? GuardCloser(text, closer) : text);
    builder_.Template(closer + "\n");
  }

  // Text that stands between this turn and the next: for the last user turn it is the generation prompt.
  Status RenderTransition(size_t index) {
    const Turn& turn = conversation_.turns[index];
    const TaskToken* task = nullptr;
    if (turn.task != nullptr) {
      task = profile_.FindTask(*turn.task);
      if (task == nullptr) {
        std::vector<std::string_view> known;
        for (const TaskToken& token : profile_.tasks) known.push_back(token.name);
        return InvalidArgument(
            fmt::format("task: got '{}', wanted one of {}", *turn.task, fmt::join(known, ", ")));
      }
    }
    const bool is_last = index + 1 == conversation_.turns.size();
    if (!is_last) {
      const Role next = conversation_.turns[index + 1].role;
      if (next != Role::kAssistant && (next != Role::kLatestReminder || OpensBehindReminders(index)))
        return {};
    }
    if (task != nullptr) {
      if (task->after_opener) RenderOpener(thinking());
      builder_.Template(task->token);
      ends_in_reasoning_ = false;
    } else if (turn.IsQuestion(profile_) ||
               (turn.role == Role::kLatestReminder && OpensBehindReminders(index))) {
      RenderOpener(thinking() &&
                   (!conversation_.drops_thinking || static_cast<int>(index) >= conversation_.last_user));
    } else if (options_.api_rules && turn.role == Role::kAssistant && !turn.message->wo_eos && is_last) {
      RenderOpener(thinking());
    }
    return {};
  }

  // Whether the answer's opener stands behind a reminder that is at `index` or follows it, and not in front.
  // Never in V4; in V4.1 where no user turn comes before it, and everywhere for an API.
  bool OpensBehindReminders(size_t index) const {
    if (!profile_.system_turns || options_.api_rules) return profile_.system_turns;
    while (index > 0 && conversation_.turns[index].role == Role::kLatestReminder) --index;
    const Role role = conversation_.turns[index].role;
    return role != Role::kUser && role != Role::kDeveloper;
  }

  void RenderOpener(bool with_reasoning) {
    builder_.Template(profile_.assistant);
    builder_.Template(with_reasoning ? profile_.think_open : profile_.think_close);
    ends_in_reasoning_ = with_reasoning;
    has_opener_ = true;
  }

  static constexpr std::string_view kPythonNone = "None";

  const ChatProfile& profile_;
  const RenderOptions& options_;
  Conversation conversation_;
  PromptBuilder builder_;
  bool ends_in_reasoning_ = false;
  bool has_opener_ = false;  // The turn before ends with the opener of this one.
};

}  // namespace

std::string RenderedPrompt::text() const {
  std::string joined;
  for (const Span& span : spans) joined += span.text;
  return joined;
}

Result<RenderedPrompt> RenderPrompt(const ChatProfile& profile, std::span<const Message> messages,
                                    const RenderOptions& options) {
  return Renderer(profile, options,
                  MakeTurns(profile, options.context, messages, options.mode == ThinkingMode::kThinking,
                            options.drop_thinking))
      .Render();
}

}  // namespace dsv4::chat
