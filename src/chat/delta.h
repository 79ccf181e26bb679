// The typed events of a streamed completion, and how they are put together. Source: chat-encoding.md 3.4.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/completion.h"

namespace dsv4::chat {

// kCacheThreshold: the answer was not begun, as too little of the prompt had been read already.
enum class FinishReason : unsigned char { kStop, kLength, kToolCalls, kCacheThreshold };

// "stop", "length", "tool_calls", "cache_threshold".
std::string_view FinishReasonName(FinishReason reason);

struct Delta {
  enum class Kind : unsigned char {
    kReasoning,      // text: a piece of the reasoning
    kContent,        // text: a piece of the answer
    kToolCallBegin,  // index, text: the function's name
    kArguments,      // index, text: a fragment of the arguments' JSON text
    kToolCallEnd,    // index: the call is complete and its fragments are one JSON object
    kDone,           // the last event; text: the stop string that ended the answer, if one did
  };
  Kind kind = Kind::kDone;
  int index = -1;  // of the call, counted from 0 over all that were begun
  std::string text = {};
  // kDone only:
  FinishReason finish_reason = FinishReason::kStop;
  // A call was begun and not ended, or a block has none. The finish_reason is then kLength: a client neither
  // runs a part of a call nor takes the answer for one that ended well.
  bool has_cut_call = false;

  friend bool operator==(const Delta&, const Delta&) = default;
};

// The answer as a whole. Calls that were begun but not ended are left out of `message`.
struct CollectedCompletion {
  ParsedCompletion message;
  std::vector<ParsedCall> begun_calls;  // All, by their index; of a cut one as much as there is.
  FinishReason finish_reason = FinishReason::kStop;
  bool has_cut_call = false;
  std::string stop_string;
};

class CompletionCollector {
 public:
  void Add(const Delta& delta);
  CollectedCompletion Take();

 private:
  struct Call {
    ParsedCall call;
    bool complete = false;
  };
  CollectedCompletion collected_;
  std::vector<Call> calls_;
};

}  // namespace dsv4::chat
