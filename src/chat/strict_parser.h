// The reference parser: accepts only what the model was taught to write, and says what is wrong otherwise.
// For tests and tools; a server uses CompletionParser. Source: chat-encoding.md 3.1 and 3.2.
#pragma once

#include <string_view>

#include "base/status.h"
#include "chat/completion.h"
#include "chat/profile.h"

namespace dsv4::chat {

// `text` is a whole completion with its end-of-sentence string, which may be missing only after a closed tool
// block. Values flagged string="false" go into the arguments unchanged and unchecked. Errors: InvalidArgument
// with the byte.
Result<ParsedCompletion> ParseStrict(const ChatProfile& profile, std::string_view text, ThinkingMode mode);

}  // namespace dsv4::chat
