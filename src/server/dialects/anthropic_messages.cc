// Writer of a /v1/messages reply.
#include "server/dialects/anthropic_messages.h"

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/sse_text.h"
#include "server/observe/random_id.h"

namespace dsv4::server {
namespace {

// The members of an object's JSON text that are whole, of a text that was cut anywhere.
Json CompleteMembers(std::string_view text) {
  std::vector<size_t> ends;  // Ends of members of the object itself.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        in_string = false;
      continue;
    }
    if (text[i] == '"') in_string = true;
    if (text[i] == '{' || text[i] == '[') ++depth;
    if (text[i] == '}' || text[i] == ']') --depth;
    if (text[i] == ',' && depth == 1) ends.push_back(i);
  }
  if (!in_string && depth == 1) ends.push_back(text.size());
  for (; !ends.empty(); ends.pop_back()) {
    Json parsed = Json::parse(std::string(text.substr(0, ends.back())) + "}", nullptr, false);
    if (parsed.is_object()) return parsed;
  }
  return Json::object();
}

class AnthropicWriter final : public AnswerWriter {
 public:
  AnthropicWriter(const ServedModel& model, const AnthropicRequest& request, CallMemory& memory)
      : model_(model),
        memory_(memory),
        streamed_(request.stream),
        shows_reasoning_(request.call.thinking.shows_reasoning) {}

  bool streamed() const override { return streamed_; }
  std::string_view KeepAlive() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

  void Begin(const Usage& usage, std::string& out) override {
    Json message = Message(usage, nullptr, nullptr);
    message["content"] = Json::array();
    Emit({{"type", "message_start"}, {"message", std::move(message)}}, out);
  }

  void Write(size_t, const chat::Delta& delta, session::AnswerTokens, const session::AnswerReader& reader,
             std::string& out) override {
    switch (delta.kind) {
      case chat::Delta::Kind::kReasoning:
        if (!shows_reasoning_) return;
        Open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
        content_.back()["thinking"].get_ref<std::string&>() += delta.text;
        return EmitDelta({{"type", "thinking_delta"}, {"thinking", delta.text}}, out);
      case chat::Delta::Kind::kContent:
        Open("text", {{"type", "text"}, {"text", ""}}, out);
        content_.back()["text"].get_ref<std::string&>() += delta.text;
        return EmitDelta({{"type", "text_delta"}, {"text", delta.text}}, out);
      case chat::Delta::Kind::kToolCallBegin:
        Close(out);
        calls_.push_back({.name = delta.text});
        call_ids_.push_back(NumberedCallId("toolu_", call_ids_.size()));
        return Open(
            "tool_use",
            {{"type", "tool_use"}, {"id", call_ids_.back()}, {"name", delta.text}, {"input", Json::object()}},
            out);
      case chat::Delta::Kind::kArguments:
        calls_.back().arguments += delta.text;
        return EmitDelta({{"type", "input_json_delta"}, {"partial_json", delta.text}}, out);
      case chat::Delta::Kind::kToolCallEnd: {
        Json input = Json::parse(calls_.back().arguments, nullptr, false);
        content_.back()["input"] = input.is_discarded() ? Json::object() : std::move(input);
        return Close(out);
      }
      case chat::Delta::Kind::kDone:
        return Finish(delta, reader, out);
    }
  }

  void End(const Usage& usage, std::string& out) override {
    if (!streamed_) {
      Json message = Message(usage, stop_reason_, stop_sequence_);
      message["content"] = std::move(content_);
      out += JsonText(message);
      return;
    }
    Emit({{"type", "message_delta"},
          {"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
          {"usage", UsageJson(usage)}},
         out);
    Emit({{"type", "message_stop"}}, out);
  }

  std::string ErrorBody(const Status& status) override { return AnthropicError(status); }
  void Fail(const Status& status, std::string& out) override {
    out += "event: error\ndata: " + AnthropicError(status) + "\n\n";
  }

 private:
  static Json UsageJson(const Usage& usage) {
    return {{"input_tokens", usage.num_prompt_tokens - usage.num_cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.num_cached_tokens},
            {"output_tokens", usage.num_output_tokens}};
  }
  Json Message(const Usage& usage, Json stop_reason, Json stop_sequence) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.id},
            {"content", nullptr},
            {"stop_reason", std::move(stop_reason)},
            {"stop_sequence", std::move(stop_sequence)},
            {"usage", UsageJson(usage)}};
  }

  void Emit(Json event, std::string& out) const {
    if (streamed_) out += SseEvent(event["type"].get_ref<const std::string&>(), event);
  }
  void EmitDelta(Json delta, std::string& out) const {
    Emit({{"type", "content_block_delta"}, {"index", content_.size() - 1}, {"delta", std::move(delta)}}, out);
  }
  // Begins a block unless one of this type is open.
  void Open(const std::string& type, Json block, std::string& out) {
    if (open_ == type) return;
    Close(out);
    open_ = type;
    content_.push_back(std::move(block));
    Emit(
        {{"type", "content_block_start"}, {"index", content_.size() - 1}, {"content_block", content_.back()}},
        out);
  }
  void Close(std::string& out) {
    if (open_.empty()) return;
    if (open_ == "thinking") {  // Clients send it back; it says nothing to us.
      content_.back()["signature"] = id_;
      EmitDelta({{"type", "signature_delta"}, {"signature", id_}}, out);
    }
    open_.clear();
    Emit({{"type", "content_block_stop"}, {"index", content_.size() - 1}}, out);
  }
  void Finish(const chat::Delta& done, const session::AnswerReader& reader, std::string& out) {
    const bool cut = open_ == "tool_use";
    if (cut) content_.back()["input"] = CompleteMembers(calls_.back().arguments);
    Close(out);
    const bool only_thinking =
        content_.empty() || (content_.size() == 1 && content_[0]["type"] == "thinking");
    if (only_thinking) {
      Open("text", {{"type", "text"}, {"text", ""}}, out);
      Close(out);
    }
    if (!cut) memory_.Remember(call_ids_, calls_, reader.sampled_calls());
    if (done.finish_reason == chat::FinishReason::kLength) {
      stop_reason_ = "max_tokens";
    } else if (done.finish_reason == chat::FinishReason::kToolCalls) {
      stop_reason_ = "tool_use";
    } else if (!done.text.empty()) {
      stop_reason_ = "stop_sequence";
      stop_sequence_ = done.text;
    } else {
      stop_reason_ = "end_turn";
    }
  }

  const ServedModel& model_;
  CallMemory& memory_;
  bool streamed_;
  bool shows_reasoning_;
  std::string id_ = RandomId("msg_");
  Json content_ = Json::array();
  std::string open_;  // The type of the last block while it grows.
  std::vector<std::string> call_ids_;
  std::vector<chat::ParsedCall> calls_;
  Json stop_reason_;
  Json stop_sequence_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeAnthropicWriter(const ServedModel& model, const AnthropicRequest& request,
                                                  CallMemory& memory) {
  return std::make_unique<AnthropicWriter>(model, request, memory);
}

}  // namespace dsv4::server
