// Parses what a model writes, while it writes it: reasoning, answer and tool calls, with the repairs a server
// needs. One machine serves both ways of answering: an answer sent at once is the streamed one put together.
//
// Works on bytes of decoded text, cut anywhere; the joined deltas do not depend on the cuts. Of each state
// only the longest suffix that may still become a marker is held back, and an unfinished UTF-8 character;
// ill-formed UTF-8 becomes U+FFFD. Not thread safe; one parser per completion. Source: chat-encoding.md 3.3
// and 3.4.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/arguments_writer.h"
#include "chat/delta.h"
#include "chat/profile.h"

namespace dsv4::chat {

struct ParserOptions {
  // The prompt ended with the opener of a reasoning (RenderedPrompt::ends_in_reasoning).
  bool starts_in_reasoning = false;
  // The request has tools and lets the model call them. False: tool markup is ordinary content.
  bool tools_active = true;
  // A tool block inside an open reasoning ends the reasoning (a known fault of the model). False: it is
  // reasoning.
  bool promote_calls_in_reasoning = true;
  // Also accept what models in the wild write.
  //   Tags with ASCII bars, with a missing bar, or with a blank in front of the name where the revision has
  //   none.
  //   Tags without the blank that the revision has.
  //   Blocks of other names (toolcalls, function_calls, ...) if a call follows.
  //   An invoke of a known tool without a block.
  // Right behind a quotation mark or backtick none is accepted.
  // False: they are ordinary content.
  bool accept_damaged_tags = false;
  // When a block has no complete call, return its text as content so that an agent can see the fault.
  bool show_failed_block = false;
  // Strings that end the answer. They apply to content only, after markers are taken out, and are not part of
  // it.
  std::vector<std::string> stop_strings = {};
  // The request's tools. They decide whether a parameter named "arguments" or "input" is a wrapper, and which
  // names an invoke without a block may have (none given: any).
  std::vector<ToolSchema> tools = {};
};

// The tools of a request ({"function": {"name", "parameters": {"properties"}}}) as the parser wants them.
std::vector<ToolSchema> ToolSchemas(const std::vector<JsonValue>& tools);

// Why the engine produced no more text.
enum class EndCause : unsigned char { kStop, kLength };

class CompletionParser {
 public:
  CompletionParser(const ChatProfile& profile, ParserOptions options);
  ~CompletionParser();
  CompletionParser(CompletionParser&&) noexcept;
  CompletionParser& operator=(CompletionParser&&) noexcept;

  // Whether stop strings in the text that follows end the answer; they do at first.
  void SetStopsActive(bool active);
  // Returns what became certain. Text after done() is ignored.
  std::vector<Delta> Feed(std::string_view bytes);
  // The text is over; ends with a kDone delta. Call once.
  std::vector<Delta> Finish(EndCause cause);

  // The end of sentence or a stop string was read: more text changes nothing.
  bool done() const;
  // The text from the first tool block on, with the line feeds before it, exactly as fed (well-formed UTF-8
  // assumed). The model's bytes are content + sampled_calls() + end of sentence. Empty without a block.
  const std::string& sampled_calls() const;
  // The block began in a spelling that only accept_damaged_tags takes: it is not one to show the model again.
  bool damaged() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A whole completion at once.
CollectedCompletion ParseLenient(const ChatProfile& profile, std::string_view text, ParserOptions options,
                                 EndCause cause = EndCause::kStop);

}  // namespace dsv4::chat
