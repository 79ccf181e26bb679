// A request's words on reasoning, in every spelling that servers and their clients have.
// Source: chat-encoding.md 5.2, and the request schemas of those services, 2026-11.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "chat/message.h"
#include "chat/profile.h"

namespace dsv4::chat {

struct ThinkingSettings {
  ThinkingMode mode = ThinkingMode::kThinking;
  std::optional<std::string> effort = {};            // for RenderOptions::effort
  std::optional<int64_t> max_reasoning_tokens = {};  // of the answer
  bool drop_thinking = true;                         // for RenderOptions::drop_thinking
  bool shows_reasoning = true;                       // False: the model reasons, the answer goes without it.
};

// Reads a switch, an effort, a budget, whether the reasoning of earlier turns stays and whether the answer shows
// its own. Of each wish the first spelling that is present wins, in the order of the table in thinking.cc. Behind
// them come the model's alias and `defaults`. An effort may be a number where the revision has such. An effort
// "none", false or 0 and a budget of 0 turn reasoning off; in thinking.budget_tokens 0 is no bound, and so is -1
// anywhere. `request` is the body; a null member is absent. Errors (InvalidArgument) name the field.
Result<ThinkingSettings> ResolveThinking(const ChatProfile& profile, const JsonValue& request,
                                         const ThinkingSettings& defaults = {});

// Members of a request that ResolveThinking looks at: each once, objects of such members included.
struct ThinkingField {
  std::string_view name;
  std::string_view inside;  // "reasoning" of "reasoning.effort"; empty: a member of the body.
  std::string_view type;    // Types of JSON with '|' between.
  std::string_view says;
};
std::span<const ThinkingField> ThinkingFields();

}  // namespace dsv4::chat
