// Collector that puts streamed deltas together to one completion, and names of finish reasons.
#include "chat/delta.h"

#include "base/check.h"

namespace dsv4::chat {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
  }
  return "";
}

void CompletionCollector::Add(const Delta& delta) {
  switch (delta.kind) {
    case Delta::Kind::kReasoning:
      collected_.message.reasoning_content += delta.text;
      break;
    case Delta::Kind::kContent:
      collected_.message.content += delta.text;
      break;
    case Delta::Kind::kToolCallBegin:
      DSV4_CHECK(delta.index == static_cast<int>(calls_.size())) << delta.index;
      calls_.push_back({{delta.text, ""}, false});
      break;
    case Delta::Kind::kArguments:
      calls_.at(static_cast<size_t>(delta.index)).call.arguments += delta.text;
      break;
    case Delta::Kind::kToolCallEnd:
      calls_.at(static_cast<size_t>(delta.index)).complete = true;
      break;
    case Delta::Kind::kDone:
      collected_.finish_reason = delta.finish_reason;
      collected_.has_cut_call = delta.has_cut_call;
      collected_.stop_string = delta.text;
      break;
  }
}

CollectedCompletion CompletionCollector::Take() {
  for (Call& call : calls_) {
    collected_.begun_calls.push_back(call.call);
    if (call.complete) collected_.message.tool_calls.push_back(std::move(call.call));
  }
  calls_.clear();
  return std::exchange(collected_, {});
}

}  // namespace dsv4::chat
