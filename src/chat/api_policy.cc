// Policies of the server in front of the renderer: system messages, reminders, schemas of answers.
#include "chat/api_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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

std::string NameOf(const JsonValue& tool) {
  const JsonValue* function = tool.Find("function");
  const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
  return name == nullptr ? "" : name->text();
}

// The tools that messages show, and the others at the front.
void ShowTools(ApiConversation& conversation) {
  std::vector<JsonValue>& tools = conversation.tools;
  for (Message& message : conversation.messages) {
    for (const std::string& name : message.shows) {
      const auto tool =
          std::ranges::find_if(tools, [&](const JsonValue& each) { return NameOf(each) == name; });
      if (tool != tools.end()) message.tools.push_back(*tool);
    }
  }
  std::erase_if(conversation.messages,
                [](const Message& message) { return !message.shows.empty() && message.tools.empty(); });
  const auto is_deferred = [&](const JsonValue& tool) {
    return conversation.deferred_tools.contains(NameOf(tool));
  };
  if (!std::ranges::all_of(tools, is_deferred)) std::erase_if(tools, is_deferred);
}

void AttachResponseSchema(std::vector<Message>& messages, JsonValue schema) {
  if (messages[0].role != Role::kSystem) {
    messages.insert(messages.begin(), Message{.role = Role::kSystem, .content = ""});
  }
  messages[0].response_format = std::move(schema);
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
    ShowTools(conversation);
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

}  // namespace dsv4::chat
