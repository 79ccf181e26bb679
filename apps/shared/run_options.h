// RunOptions: a conversation and how it is answered, as `dsv4 run` and `dsv4 diagnose` take it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shared/content_flags.h"
#include "apps/shared/model_flags.h"
#include "chat/message.h"
#include "sampling/sampling_params.h"

namespace dsv4::apps {

struct RunOptions {
  ModelFlags model;
  std::optional<std::string> prompt;  // Absent: interactive. "-": read from standard input.
  std::string reasoning = "show";     // "show", "hide" or "only": see MakeAnswerPrinter.
  bool quiet = false;                 // No progress and no speed on standard error.
  bool interactive = false;           // A chat that PROMPT begins.
  bool go_on = false;                 // With the last conversation.
  bool anyway = false;                // Also where the model says that it does not know the words.
  bool raw = false;                   // The prompt goes to the tokenizer as it is, without the chat grammar.
  std::string system;
  std::string messages_path;  // A conversation as a JSON list of messages, instead of PROMPT and --system.
  std::string tools_path;     // A JSON list of tools, as in an API request.
  std::vector<std::string> tool_commands;  // NAME=COMMAND: commands that may answer the calls of tools.
  std::string thinking_mode = "thinking";  // "thinking" or "chat".
  std::string effort;                      // "", "low", "high", "max", ...: what the model's revision allows.
  std::string revision;  // "", "v4", "v4-0731", "v4.1": empty is detected from the model directory.
  std::optional<int64_t> max_tokens;  // Absent: session::DefaultMaxTokens.
  std::string speculation = "auto";   // ParseSpeculation
  sampling::SamplingParams sampling;
  bool top_p_given = false;       // Otherwise the model's own.
  bool seed_given = false;        // Otherwise a random seed is drawn and printed with --json.
  std::vector<std::string> stop;  // Ends the content (not the reasoning) before the string.
  int num_logprobs = -1;
  bool json = false;
  int64_t verify_every = 0;  // > 0: every so many-th decode token is computed again on the reference backend.
  ContentFlags content;      // Rules for the answer.
  std::string dump_path;     // Every tensor of the run goes into this new directory.
};

// The text of PROMPT, read from standard input where it is "-"; empty without one.
Result<std::string> ReadPrompt(const RunOptions& options);
// The conversation that the flags describe, with `prompt` as the user's turn.
Result<std::vector<chat::Message>> MakeMessages(const RunOptions& options, const std::string& prompt);
// InvalidArgument, with the offset, for text that is no UTF-8: in a prompt the position would be another.
Status CheckUtf8(std::string_view name, std::string_view text);

}  // namespace dsv4::apps
