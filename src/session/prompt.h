// Prompts: a conversation as the token ids that a model reads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "chat/message.h"
#include "chat/renderer.h"
#include "session/text_model.h"

namespace dsv4::session {

struct Prompt {
  std::vector<int32_t> ids;
  chat::RenderedPrompt rendered;
  std::string notice;  // ModelCard::NoticeOn the conversation.
};

// How a program renders that shows one conversation: the chat format's own effort where `effort` is none,
// null texts as empty ones.
chat::RenderOptions RenderOptionsFor(const TextModel& text, chat::ThinkingMode mode,
                                     const std::optional<std::string>& effort);

// Renders and encodes. `check_size` (may be empty) sees the bytes of the rendered text before they are
// encoded, and may refuse them. Needs TextModel::profile. Errors name the message; OutOfRange where there are
// more than `max_tokens`.
Result<Prompt> MakePrompt(const TextModel& text, std::span<const chat::Message> messages,
                          const chat::RenderOptions& options,
                          const std::function<Status(size_t)>& check_size = {}, size_t max_tokens = SIZE_MAX);

// Positions at which other prompts are likely to branch off: behind the marker of the first user turn and of
// the last. Empty without one.
std::vector<int64_t> BranchPoints(const TextModel& text, std::span<const int32_t> prompt);

}  // namespace dsv4::session
