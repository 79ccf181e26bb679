// The chat on a terminal: an edited line, history, commands, streaming; Ctrl-C stops an answer and keeps the
// chat.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/run/tool_commands.h"
#include "apps/shared/chat_runtime.h"

namespace dsv4::apps {

struct ChatManner {
  std::string_view reasoning;  // As for MakeAnswerPrinter.
  bool quiet = false;          // Neither speed nor what is in force is said.
  bool anyway = false;         // Messages that ModelCard::NoticeOn has a notice for are answered too.
};

// Runs until /exit or the end of input; returns the process exit code. `first` is answered at once; empty:
// the reader begins. `ask` carries mode and sampling; its callbacks are replaced. `last`: a conversation that
// goes on; may be empty. When the model calls one of `tools`, the command that is allowed for it gives the
// result, else the reader is asked.
int RunInteractiveChat(ChatRuntime& runtime, ChatRuntime::Ask ask, const std::string& system,
                       std::vector<chat::Message> last, std::vector<chat::JsonValue> tools,
                       ToolCommands commands, ChatManner manner, const std::string& first);

}  // namespace dsv4::apps
