// Policies of a public API in front of the renderer: our own policies, which the reference encoder leaves to
// its caller. Source: chat-encoding.md 2.4, 2.7, 5.1 and 5.2, the parts marked as policy.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/message.h"
#include "chat/profile.h"

namespace dsv4::chat {

struct ApiConversation {
  std::vector<Message> messages;
  std::vector<JsonValue> tools = {};  // empty when the request has none or tool_choice is "none"
  // Names of tools that stand in the prompt only where a message shows them. In V4, or if they are all of
  // them, they stand with the others.
  std::set<std::string> deferred_tools = {};
  // The request's response_format object: null, or type "text", "json_object" or "json_schema".
  JsonValue response_format = {};
  // The last message is an unfinished answer (continue_final_message); a message's own "prefix" says the
  // same.
  bool continue_final_message = false;
};

// Makes of a request what the encoder renders without its hazards; render it with null_is_empty and
// api_rules.
//   - where system messages are turns (V4.1) all keep their positions, a developer message is one of them,
//     and a reminder stays too; else:
//   - a developer message at the front is a system message; leading system messages become one, joined by a blank line
//   - a later system or developer message, and a latest_reminder, is a user turn of its own (ReminderText).
//     If it stands in a user turn, right before or right behind one, it becomes a latest_reminder in front of
//     that turn
//   - images, sounds and files become texts that name them (UnseenPart)
//   - tools and the response schema go on the first message; Message::shows becomes an update of tools, and a
//     message that shows none of the request's is left out
// A finished answer at the end is followed by another (RenderOptions::api_rules).
// Errors (InvalidArgument) name the message: an unknown role, no messages, tools or a response format on a
// message, or other parts outside tool results. Further an unfinished answer that is not the last message, in
// V4 system messages alone, and an unknown response format.
Result<std::vector<Message>> NormalizeApiMessages(const ChatProfile& profile, ApiConversation conversation);

// The JSON schema that a request's response_format asks for; null for free text. InvalidArgument as above.
Result<JsonValue> ResponseSchema(const JsonValue& response_format);

// Text that stands in the prompt for a part that this model cannot see, by the part's type: "[Unsupported
// Image]" for image, image_url and input_image. Empty for types that are none of these.
std::string UnseenPart(std::string_view type);

// A system text as a part of a user turn.
std::string ReminderText(std::string_view text);

// The response_format that asks for `schema`, for dialects that put it otherwise.
JsonValue ResponseFormatOf(JsonValue schema, bool strict = false);
// Whether a response_format has a schema that is said to be strict.
bool IsStrict(const JsonValue& response_format);

}  // namespace dsv4::chat
