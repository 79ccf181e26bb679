// The chat on a terminal: an edited line, history, commands, streaming; Ctrl-C stops an answer and keeps the chat.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/shared/chat_runtime.h"

namespace dsv4::apps {

// Runs until /exit or the end of input; returns the process exit code. `first` is answered at once; empty: the reader begins. `ask` carries mode and sampling; its callbacks are replaced.
// When the model calls one of `tools`, the reader is asked for the result. `reasoning` is as for MakeAnswerPrinter.
int RunInteractiveChat(ChatRuntime& runtime, ChatRuntime::Ask ask, const std::string& system,
                       std::vector<chat::JsonValue> tools, std::string_view reasoning,
                       const std::string& first);

}  // namespace dsv4::apps
