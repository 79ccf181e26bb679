// The conversation that `run --continue` goes on with: the last one that got an answer, of a chat or of one
// prompt.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "chat/message.h"

namespace dsv4::apps {

// DSV4_CONVERSATION where it is set (empty: nowhere), else below XDG_STATE_HOME or ~/.local/state; empty
// without a home.
std::string LastConversationPath();

// Replaces the file, which its owner alone may read. Conversations that cannot be gone on with (a call
// without its result at the end) are not kept. A file that cannot be written is an info in the log: an answer
// does not fail for it.
void KeepConversation(std::span<const chat::Message> messages);

// NotFound when none is kept. Errors name the file.
Result<std::vector<chat::Message>> ReadLastConversation();

}  // namespace dsv4::apps
