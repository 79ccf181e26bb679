// Commands that the user allowed to answer the calls of tools: "weather" is answered by "./weather.sh".
//
// A command runs in /bin/sh. It finds the arguments of the call, a JSON object, on standard input, never in
// its command line. So no shell reads the model's text. Its standard output is the result.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/completion.h"
#include "chat/message.h"

namespace dsv4::apps {

// Result of a command that the model is told.
struct CommandResult {
  std::string text;  // Valid UTF-8; how the command ended stands behind it, where that was not exit code 0.
  bool cancelled = false;
};

// Runs to the end of the command's output, in a process group of its own. At most 1 MiB counts; what follows
// is left out, and the text says so. `interrupted` is asked while it runs; true ends the whole group. Errors:
// no process could be made.
Result<CommandResult> RunToolCommand(const std::string& command, const std::string& arguments,
                                     const std::function<bool()>& interrupted);

class ToolCommands {
 public:
  // Each entry is NAME=COMMAND; the first '=' divides. InvalidArgument names one that is not.
  static Result<ToolCommands> Parse(const std::vector<std::string>& entries);

  void Allow(const std::string& name, const std::string& command) { commands_[name] = command; }
  // Null where the user allowed none.
  const std::string* Find(std::string_view name) const;
  bool empty() const { return commands_.empty(); }
  const std::map<std::string, std::string, std::less<>>& all() const { return commands_; }

 private:
  std::map<std::string, std::string, std::less<>> commands_;
};

// The message of an answer that calls tools. `num_calls` counts the calls of a conversation: their ids.
chat::Message CallingMessage(const chat::ParsedCompletion& answer, int64_t& num_calls);

}  // namespace dsv4::apps
