// Policies of the server in front of the renderer: system messages, reminders, thinking switches, effort,
// schemas of answers.
#include "chat/api_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace dsv4::chat {
namespace {

tl::unexpected<Status> At(const Message& message, std::string_view what) {
  return Error(InvalidArgument(fmt::format("{}: {}", message.label, what)));
}

bool IsUserTurn(const Message& message) { return message.role == Role::kUser || message.role == Role::kTool; }

Status CheckMessage(const Message& message, bool is_last) {
  if (message.role == Role::kOther) {
    return InvalidArgument(fmt::format("{}.role: got '{}', wanted system, developer, user, assistant or tool",
                                       message.label, message.other_role));
  }
  if (message.wo_eos && (!is_last || message.role != Role::kAssistant)) {
    return InvalidArgument(
        fmt::format("{}: only an assistant message at the end can be continued", message.label));
  }
  if (!message.tools.empty() || message.response_format.IsTruthy()) {
    return InvalidArgument(
        fmt::format("{}: tools and response_format belong to the request, not to a message", message.label));
  }
  if (message.role == Role::kTool) return {};  // other parts are named to the model
  for (const ContentPart& part : message.content.parts) {
    if (part.type != "text") {
      return InvalidArgument(
          fmt::format("{}.content: got a part of type '{}', wanted text, an image, a sound or a file",
                      message.label, part.type));
    }
  }
  return {};
}

// The model is told what it cannot see, in the words of DeepSeek's own service.
void NameUnseenParts(Message& message) {
  for (ContentPart& part : message.content.parts) {
    std::string unseen = UnseenPart(part.type);
    if (unseen.empty()) continue;
    part = {.type = "text", .text = std::move(unseen)};
  }
}

std::string TextOf(const Content& content) {
  if (content.kind != Content::Kind::kParts) return content.text;
  std::vector<std::string_view> texts;
  for (const ContentPart& part : content.parts) texts.push_back(part.text);
  return fmt::format("{}", fmt::join(texts, "\n\n"));
}

// One system message of those at the front.
void JoinLeadingSystems(std::vector<Message>& messages) {
  if (messages[0].role == Role::kDeveloper) messages[0].role = Role::kSystem;
  const auto end = std::find_if(messages.begin(), messages.end(),
                                [](const Message& message) { return message.role != Role::kSystem; });
  if (end - messages.begin() < 2) return;
  std::vector<std::string> texts;
  for (auto it = messages.begin(); it != end; ++it) texts.push_back(TextOf(it->content));
  messages[0].content = fmt::format("{}", fmt::join(texts, "\n\n"));
  messages.erase(messages.begin() + 1, end);
}

// Later system texts become reminders in front of the user turn they stand in or before. Inside the turn the encoder
// would take a reminder for the start of the answer and write the generation prompt before it.
std::vector<Message> PlaceReminders(std::vector<Message> messages) {
  std::vector<Message> placed;
  for (size_t i = 0; i < messages.size(); ++i) {
    Message& message = messages[i];
    const bool is_reminder = message.role == Role::kLatestReminder || message.role == Role::kDeveloper ||
                             (message.role == Role::kSystem && i > 0);
    if (!is_reminder) {
      placed.push_back(std::move(message));
      continue;
    }
    size_t next = i + 1;
    while (next < messages.size() && !IsUserTurn(messages[next]) && messages[next].role != Role::kAssistant)
      ++next;
    const bool before_user = next < messages.size() && IsUserTurn(messages[next]);
    auto turn = placed.end();
    while (turn != placed.begin() && IsUserTurn(*(turn - 1))) --turn;
    if (!before_user && turn == placed.end()) {  // Behind an answer, with no user turn to go with: it is one.
      message.role = Role::kUser;
      message.content = ReminderText(TextOf(message.content));
    } else {
      message.role = Role::kLatestReminder;
    }
    placed.insert(turn, std::move(message));
  }
  return placed;
}

// System and developer messages as turns, where they are.
void KeepSystems(std::vector<Message>& messages) {
  for (Message& message : messages) {
    if (message.role == Role::kDeveloper) message.role = Role::kSystem;
  }
}

void AttachResponseSchema(std::vector<Message>& messages, JsonValue schema) {
  if (messages[0].role != Role::kSystem) {
    messages.insert(messages.begin(), Message{.role = Role::kSystem, .content = ""});
  }
  messages[0].response_format = std::move(schema);
}

// A member of the request by its dotted path; null when a key on the way is missing or null.
const JsonValue* FindPath(const JsonValue& request, std::string_view path) {
  const JsonValue* value = &request;
  while (!path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), key.size() + 1));
    value = value->Find(key);
    if (value == nullptr || value->is_null()) return nullptr;
  }
  return value;
}

// The spellings of one wish, the one that wins first.
constexpr std::string_view kSwitches[] = {"thinking",
                                          "think",
                                          "reasoning",
                                          "reasoning.enabled",
                                          "chat_template_kwargs.thinking",
                                          "chat_template_kwargs.enable_thinking",
                                          "chat_template_kwargs.thinking_mode",
                                          "enable_thinking",
                                          "thinking_mode"};
constexpr std::string_view kEfforts[] = {"reasoning_effort",
                                         "reasoning.effort",
                                         "output_config.effort",
                                         "chat_template_kwargs.reasoning_effort",
                                         "think",
                                         "thinking",
                                         "reasoning"};
constexpr std::string_view kBudgets[] = {"thinking.budget_tokens",
                                         "thinking_budget",
                                         "thinking_token_budget",
                                         "thinking_budget_tokens",
                                         "reasoning_budget",
                                         "reasoning_budget_tokens",
                                         "max_thinking_tokens",
                                         "reasoning.max_tokens",
                                         "reasoning.budget_tokens",
                                         "chat_template_kwargs.thinking_budget",
                                         "chat_template_kwargs.thinking_token_budget",
                                         "chat_template_kwargs.reasoning_budget"};
constexpr std::string_view kDropped[] = {"drop_thinking", "clear_thinking", "thinking.clear_thinking",
                                         "chat_template_kwargs.drop_thinking",
                                         "chat_template_kwargs.clear_thinking"};
constexpr std::string_view kKept[] = {"preserve_thinking", "chat_template_kwargs.preserve_thinking"};

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A word as a switch; none for other words.
std::optional<bool> SwitchOf(std::string_view word) {
  if (IsOneOf(word, {"enabled", "adaptive", "auto", "on", "true", "thinking"})) return true;
  if (IsOneOf(word, {"disabled", "off", "false", "none", "chat"})) return false;
  return std::nullopt;
}

// The level of an effort; empty: none. Nothing for what is no effort.
std::optional<std::string> FindEffort(const ChatProfile& profile, const JsonValue& value) {
  const bool is_effort = value.is_string() || value.kind() == JsonValue::Kind::kInteger;
  return is_effort ? profile.FindApiEffort(value.text()) : std::nullopt;
}

// None: the value says other things.
Result<std::optional<bool>> ReadSwitch(const ChatProfile& profile, const JsonValue& value,
                                       std::string_view path) {
  using Found = std::optional<bool>;
  if (value.is_bool()) return Found(value.boolean());
  // Objects of settings, each of which is looked at.
  if (path == "reasoning" && value.is_object()) return Found();
  if (path == "thinking" && value.is_object() && value.Find("type") == nullptr &&
      value.Find("enabled") == nullptr)
    return Found();
  if (value.is_string()) {
    if (const Found found = SwitchOf(value.text())) return found;
    if (FindEffort(profile, value)) return Found(true);
  }
  if (path == "thinking" && value.is_object()) {
    if (const JsonValue* enabled = value.Find("enabled"); enabled != nullptr && enabled->is_bool())
      return Found(enabled->boolean());
    const JsonValue* type = value.Find("type");
    const std::string name = type == nullptr ? "" : type->text();
    if (IsOneOf(name, {"enabled", "adaptive", "auto"})) return Found(true);
    if (name == "disabled") return Found(false);
    return Error(
        InvalidArgument(fmt::format("thinking.type: got '{}', wanted enabled, adaptive or disabled", name)));
  }
  return Error(InvalidArgument(fmt::format("{}: got {}, wanted a boolean", path, value.kind_name())));
}

Result<ThinkingMode> ReadMode(const ChatProfile& profile, const JsonValue& request,
                              ThinkingMode default_mode) {
  for (const std::string_view path : kSwitches) {
    const JsonValue* value = FindPath(request, path);
    if (value == nullptr) continue;
    DSV4_ASSIGN_OR_RETURN(const std::optional<bool> on, ReadSwitch(profile, *value, path));
    if (on) return *on ? ThinkingMode::kThinking : ThinkingMode::kChat;
  }
  if (const JsonValue* model = FindPath(request, "model")) {
    if (model->text() == "deepseek-chat") return ThinkingMode::kChat;
    if (model->text() == "deepseek-reasoner") return ThinkingMode::kThinking;
  }
  return default_mode;
}

// Sets the effort; "none" turns thinking off.
Status ReadEffort(const ChatProfile& profile, const JsonValue& request, ThinkingSettings& settings) {
  for (const std::string_view path : kEfforts) {
    const JsonValue* value = FindPath(request, path);
    if (value == nullptr) continue;
    if (const std::optional<std::string> effort = FindEffort(profile, *value)) {
      settings.effort.reset();
      if (!effort->empty()) settings.effort = effort;
      return {};
    }
    if (IsOneOf(path, {"think", "thinking", "reasoning"})) continue;  // A switch, which has been read.
    const std::optional<bool> on = value->is_string() ? SwitchOf(value->text()) : std::nullopt;
    if (on == false) settings.mode = ThinkingMode::kChat;
    if (on || *value == JsonValue::String("default")) return {};
    return InvalidArgument(
        fmt::format("{}: got {}, wanted one of {}", path, WriteJson(*value), profile.ApiEffortNames()));
  }
  return {};
}

Status ReadBudget(const JsonValue& request, ThinkingSettings& settings) {
  for (const std::string_view path : kBudgets) {
    const JsonValue* budget = FindPath(request, path);
    if (budget == nullptr) continue;
    // Anthropic's 0 never came to mean "off".
    const bool zero_is_off = path != kBudgets[0];
    const std::string& digits = budget->text();
    int64_t tokens = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), tokens);
    if (budget->kind() != JsonValue::Kind::kInteger || error != std::errc() ||
        tokens < (zero_is_off ? -1 : 0)) {
      return InvalidArgument(fmt::format("{}: got {}, wanted an integer, {} for no bound", path,
                                         WriteJson(*budget), zero_is_off ? "-1" : "0"));
    }
    if (tokens > 0) settings.max_reasoning_tokens = tokens;
    if (tokens == 0 && zero_is_off) settings.mode = ThinkingMode::kChat;
    return {};
  }
  return {};
}

Status ReadDropped(const JsonValue& request, ThinkingSettings& settings) {
  const auto read = [&](std::string_view path, bool when) -> Result<bool> {
    const JsonValue* value = FindPath(request, path);
    if (value == nullptr) return false;
    if (!value->is_bool())
      return Error(InvalidArgument(fmt::format("{}: got {}, wanted a boolean", path, value->kind_name())));
    settings.drop_thinking = value->boolean() == when;
    return true;
  };
  for (const std::string_view path : kDropped) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const bool found, read(path, true));
    if (found) return {};
  }
  for (const std::string_view path : kKept) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const bool found, read(path, false));
    if (found) return {};
  }
  return {};
}

std::vector<ThinkingField> MakeThinkingFields() {
  std::vector<ThinkingField> fields;
  for (const std::span<const std::string_view> paths :
       {std::span<const std::string_view>(kSwitches), std::span<const std::string_view>(kEfforts),
        std::span<const std::string_view>(kBudgets), std::span<const std::string_view>(kDropped),
        std::span<const std::string_view>(kKept)}) {
    for (const std::string_view path : paths) {
      const size_t dot = path.find('.');
      if (dot == std::string_view::npos)
        fields.push_back({.name = path, .inside = {}});
      else
        fields.push_back({.name = path.substr(dot + 1), .inside = path.substr(0, dot)});
    }
  }
  fields.push_back({.name = "chat_template_kwargs", .inside = {}});
  return fields;
}

}  // namespace

Result<JsonValue> ResponseSchema(const JsonValue& format) {
  if (format.is_null()) return JsonValue();
  const JsonValue* type = format.Find("type");
  const std::string name = type == nullptr ? "" : type->text();
  if (name == "text") return JsonValue();
  if (name == "json_object") return JsonValue::Object({{"type", JsonValue::String("object")}});
  if (name == "json_schema") {
    const JsonValue* wrapper = format.Find("json_schema");
    const JsonValue* schema = wrapper == nullptr ? nullptr : wrapper->Find("schema");
    if (schema != nullptr && schema->is_object()) return *schema;
    return Error(InvalidArgument("response_format.json_schema.schema: missing, wanted an object"));
  }
  return Error(InvalidArgument(
      fmt::format("response_format.type: got '{}', wanted text, json_object or json_schema", name)));
}

std::string UnseenPart(std::string_view type) {
  struct Kind {
    std::string_view in_type;
    std::string_view name;
  };
  static constexpr Kind kKinds[] = {{"image", "Image"},
                                    {"audio", "Audio"},
                                    {"video", "Video"},
                                    {"file", "Document"},
                                    {"document", "Document"}};
  for (const Kind& kind : kKinds) {
    if (type.find(kind.in_type) != std::string_view::npos) return fmt::format("[Unsupported {}]", kind.name);
  }
  return {};
}

std::string ReminderText(std::string_view text) {
  return fmt::format("<system-reminder>\n{}\n</system-reminder>", text);
}

JsonValue ResponseFormatOf(JsonValue schema, bool strict) {
  return JsonValue::Object({{"type", JsonValue::String("json_schema")},
                            {"json_schema", JsonValue::Object({{"schema", std::move(schema)},
                                                               {"strict", JsonValue::Bool(strict)}})}});
}

bool IsStrict(const JsonValue& response_format) {
  const JsonValue* wrapper = response_format.Find("json_schema");
  const JsonValue* strict = wrapper == nullptr ? nullptr : wrapper->Find("strict");
  return strict != nullptr && strict->IsTruthy();
}

Result<std::vector<Message>> NormalizeApiMessages(const ChatProfile& profile, ApiConversation conversation) {
  std::vector<Message>& messages = conversation.messages;
  if (messages.empty()) return Error(InvalidArgument("messages: empty, wanted at least one message"));
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].label.empty()) messages[i].label = fmt::format("messages[{}]", i);
  }
  if (conversation.continue_final_message) messages.back().wo_eos = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    NameUnseenParts(messages[i]);
    DSV4_TRY(CheckMessage(messages[i], i + 1 == messages.size()));
  }

  DSV4_ASSIGN_OR_RETURN(JsonValue schema, ResponseSchema(conversation.response_format));
  if (profile.system_turns) {
    KeepSystems(messages);
    // The model is shown the form itself. The answer is constrained as in V4.
    const JsonValue* type = conversation.response_format.Find("type");
    if (type != nullptr && type->text() == "json_object") schema = JsonValue::Object({{"type", *type}});
  } else {
    JoinLeadingSystems(messages);
    messages = PlaceReminders(std::move(messages));
    const Message& last = messages.back();
    if (!IsUserTurn(last) && last.role != Role::kAssistant)
      return At(last, "the conversation has nothing to answer, wanted a user, tool or assistant message");
  }
  AttachTools(messages, std::move(conversation.tools));
  const bool has_schema = profile.system_turns ? !schema.is_null() : schema.IsTruthy();
  if (has_schema) AttachResponseSchema(messages, std::move(schema));
  return std::move(messages);
}

Result<ThinkingSettings> ResolveThinking(const ChatProfile& profile, const JsonValue& request,
                                         const ThinkingSettings& defaults) {
  ThinkingSettings settings = defaults;
  DSV4_ASSIGN_OR_RETURN(settings.mode, ReadMode(profile, request, defaults.mode));
  DSV4_TRY(ReadEffort(profile, request, settings));
  DSV4_TRY(ReadBudget(request, settings));
  DSV4_TRY(ReadDropped(request, settings));
  return settings;
}

std::span<const ThinkingField> ThinkingFields() {
  static const std::vector<ThinkingField> fields = MakeThinkingFields();
  return fields;
}

}  // namespace dsv4::chat
