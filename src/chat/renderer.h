// Renders a conversation to the prompt text, byte for byte as the release's encoder does.
// Source: chat-encoding.md section 2; the fixtures are its output.
//
// Hazards of the reference that this keeps (a public API goes through NormalizeApiMessages first). In V4 a
// system message after a user turn is glued on bare and takes the generation prompt away. A reminder after
// the last user lands after the generation prompt. Two assistant turns in a row have no opener between them.
// A developer turn that is dropped leaves the answer after it without one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "chat/message.h"
#include "chat/profile.h"

namespace dsv4::chat {

// Adjacent spans differ in is_template. A special token may be recognised in `data` only if the caller
// accepts that conversation text can forge the template (section 3.8). Pre-tokenization always sees the
// joined text.
struct Span {
  std::string text;
  bool is_template = false;

  friend bool operator==(const Span&, const Span&) = default;
};

struct RenderedPrompt {
  std::vector<Span> spans;
  // The prompt ends with the opener of a reasoning, so the completion starts inside one.
  bool ends_in_reasoning = false;

  std::string text() const;
};

struct RenderOptions {
  ThinkingMode mode = ThinkingMode::kThinking;
  // Leave out the reasoning before the last user turn. Without effect when any message carries tools.
  bool drop_thinking = true;
  // As ChatProfile::EffortText has it; checked always, written in thinking mode only. None:
  // ChatProfile::encoder_effort.
  std::optional<std::string> effort = {};
  bool add_bos = true;
  // The reference breaks on a null user text and prints "None" for a null tool result or reminder. True: null
  // is "".
  bool null_is_empty = false;
  // Rules of an API that the reference leaves to its caller. Every answer has an opener, also one that comes
  // first or behind another. Behind a finished last answer a further one is opened. An unfinished last answer
  // that has reasoning alone goes on in it. Call arguments that are JSON but no object become the string
  // parameter "arguments". Where system messages are turns, a reminder stays where it is, with the opener
  // behind it.
  bool api_rules = false;
  // Rewrites the '<' of a parameter closer inside a string argument, and of </tool_result> inside a tool
  // result, to "&lt;". The format has no escape for them, so otherwise such a text ends its element early.
  bool guard_closers = false;
  // Earlier messages that are already encoded: they count for merging, dropping and positions but write
  // nothing.
  std::span<const Message> context = {};
};

// Errors (InvalidArgument) name the message by its index in `messages`: an unknown role, effort or task, or a
// developer message without content. Also a list with other parts than text where only text fits, and call
// arguments that are JSON but not an object.
Result<RenderedPrompt> RenderPrompt(const ChatProfile& profile, std::span<const Message> messages,
                                    const RenderOptions& options = {});

}  // namespace dsv4::chat
