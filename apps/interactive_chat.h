// The chat on a terminal: history, streaming, Ctrl-C stops an answer and keeps the chat.
#pragma once

#include <string>

#include "apps/chat_runtime.h"

namespace dsv4::apps {

// Runs until /exit or the end of input; returns the process exit code. `ask` carries mode and sampling; its callbacks are replaced.
int RunInteractiveChat(ChatRuntime& runtime, ChatRuntime::Ask ask, const std::string& system);

}  // namespace dsv4::apps
