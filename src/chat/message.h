// A conversation as the encoder reads it. Source: chat-encoding.md section 2.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace dsv4::chat {

enum class Role : unsigned char { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder, kOther };

// "system", ...; "other" for kOther.
std::string_view RoleName(Role role);

// One part of a content list. `text` is filled for type "text" only.
struct ContentPart {
  std::string type;
  std::string text;

  friend bool operator==(const ContentPart&, const ContentPart&) = default;
};

// Content of a message: nothing at all, an explicit null, a text, or a list of parts.
struct Content {
  enum class Kind : unsigned char { kAbsent, kNull, kText, kParts };

  Content() = default;
  Content(std::string value) : kind(Kind::kText), text(std::move(value)) {}  // NOLINT: a text is a content
  Content(const char* value) : Content(std::string(value)) {}                // NOLINT

  Kind kind = Kind::kAbsent;
  std::string text;                // kText
  std::vector<ContentPart> parts;  // kParts

  friend bool operator==(const Content&, const Content&) = default;
};

// One block of a user turn.
struct UserBlock {
  std::string type;          // "text", "tool_result", or a type the encoder only names
  Content content;           // of a text or a tool result
  std::string tool_call_id;  // of a tool result; may be empty

  friend bool operator==(const UserBlock&, const UserBlock&) = default;
};

struct ToolCall {
  std::string id;  // may be empty
  std::string name;
  std::string arguments;  // JSON text of an object, or whatever the model wrote

  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct Message {
  Role role = Role::kUser;
  std::string other_role = {};  // the name, when role is kOther
  Content content = {};
  std::string reasoning_content = {};
  std::vector<JsonValue> tools = {};          // of the message itself; objects with a member "function"
  std::vector<JsonValue> request_tools = {};  // AttachTools
  std::vector<ToolCall> tool_calls = {};
  // Not from JSON. When not empty: the block exactly as the model wrote it (CompletionParser::sampled_calls).
  // It is rendered instead of tool_calls, so that the prompt repeats the tokens already in the cache.
  std::string sampled_calls = {};
  // Not from JSON. Names of the request's tools that this message shows the model (NormalizeApiMessages).
  std::vector<std::string> shows = {};
  std::string tool_call_id = {};         // of a tool message
  JsonValue response_format = {};        // a JSON schema; falsy: none
  std::optional<std::string> task = {};  // a name in ChatProfile::tasks
  bool wo_eos = false;                   // an unfinished last answer that the model continues
  std::optional<std::vector<UserBlock>> content_blocks =
      {};                  // a user turn given as blocks; read if content is absent
  std::string label = {};  // where it came from, for errors: "messages[3]"; may be empty
};

enum class MessageForm : unsigned char {
  kEncoder,  // As the reference encoder takes them.
  // As clients send histories that other servers wrote too. Those have calls without arguments
  // (CallArguments), `function_call` and the role `function`, `refusal` as the content, and reasoning under
  // its other names. An assistant's content has parts of all types: those that are neither text nor reasoning
  // nor a call are left out.
  kClients,
};

// Reads a list of messages as they stand in a request; `what` names it in errors ("messages"). `reasoning` is
// read where `reasoning_content` is absent or empty, and `prefix` means the same as `wo_eos`. An unknown role
// is not an error here: the encoder drops some of them. Errors (InvalidArgument) name the field:
// "messages[2].tool_calls[0].function.name: ...".
Result<std::vector<Message>> ParseMessages(const JsonValue& json, std::string_view what,
                                           MessageForm form = MessageForm::kEncoder);

// The arguments of a call in a history, as a JSON text. All that says "none" is the empty object: no value
// (null pointer), null, "", [], and the texts of these. Other values than texts are their JSON text.
std::string CallArguments(const JsonValue* value);

// Reads a tool list; null is an empty one. Every entry is an object with an object member "function".
Result<std::vector<JsonValue>> ParseTools(const JsonValue& json, std::string_view what);

// Puts request-level tools on message 0 if that is a system or developer message, else on an empty system
// message inserted before it. No tools: nothing changes. V4 renders them instead of the message's own, V4.1 a
// system message's own besides.
void AttachTools(std::vector<Message>& messages, std::vector<JsonValue> tools);

}  // namespace dsv4::chat
