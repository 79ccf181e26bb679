// Writer of a /v1/responses reply. The items of a whole reply and those of the stream's last event are the
// same objects.
#include <algorithm>
#include <ctime>
#include <utility>

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/response_store.h"
#include "server/api/sse_text.h"
#include "server/dialects/openai_json.h"
#include "server/dialects/openai_responses.h"
#include "server/observe/random_id.h"

namespace dsv4::server {
namespace {

Json FromChat(const chat::JsonValue& value) { return Json::parse(chat::WriteJson(value), nullptr, false); }

// Messages of the user, which a compaction keeps as they are.
std::vector<chat::JsonValue> TakeUserItems(chat::JsonValue input) {
  std::vector<chat::JsonValue> items = std::move(input.mutable_items());
  std::erase_if(items, [](const chat::JsonValue& item) {
    const chat::JsonValue* const role = item.Find("role");
    return role == nullptr || role->text() != "user";
  });
  return items;
}

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(const ServedModel& model, ResponsesRequest& request, CallMemory& memory,
                  std::function<void(const std::string&, const std::string&)> keep)
      : model_(model),
        memory_(memory),
        streamed_(request.stream),
        client_tools_(request.client_tools),
        wants_logprobs_(request.call.sampling.num_logprobs >= 0),
        compacts_(request.compacts),
        shows_reasoning_(request.call.thinking.shows_reasoning && !request.compacts),
        compacts_alone_(request.compacts_alone),
        kept_input_(compacts_alone_ ? TakeUserItems(std::exchange(request.own_input, {}))
                                    : std::vector<chat::JsonValue>()),
        keep_(std::move(keep)) {
    const SamplingCall& sampling = request.call.sampling;
    document_ = {
        {"id", RandomId("resp_")},
        {"object", "response"},
        {"created_at", std::time(nullptr)},
        {"status", "in_progress"},
        {"background", false},
        {"error", nullptr},
        {"incomplete_details", nullptr},
        {"instructions", FromChat(request.instructions)},
        {"max_output_tokens", sampling.max_tokens ? Json(*sampling.max_tokens) : Json(nullptr)},
        {"model", model.id},
        {"output", Json::array()},
        {"parallel_tool_calls", request.call.parallel_calls},
        {"previous_response_id", request.previous.empty() ? Json(nullptr) : Json(request.previous)},
        {"reasoning", request.reasoning.is_null() ? Json{{"effort", nullptr}, {"summary", nullptr}}
                                                  : FromChat(request.reasoning)},
        {"store", keep_ != nullptr},
        {"temperature", sampling.sampling.temperature},
        {"text", request.text.is_null() ? Json{{"format", {{"type", "text"}}}} : FromChat(request.text)},
        {"tool_choice", request.tool_choice.is_null() ? Json("auto") : FromChat(request.tool_choice)},
        {"tools", request.tools.is_null() ? Json::array() : FromChat(request.tools)},
        {"top_p", sampling.sampling.top_p},
        {"truncation", "disabled"},
        {"completed_at", nullptr},
        {"frequency_penalty", sampling.sampling.frequency_penalty},
        {"presence_penalty", sampling.sampling.presence_penalty},
        {"max_tool_calls", nullptr},
        {"prompt_cache_key", nullptr},
        {"safety_identifier", nullptr},
        {"service_tier", "default"},
        {"top_logprobs", std::max(sampling.num_logprobs, 0)},
        {"user", FromChat(request.user)},
        {"usage", nullptr},
        {"metadata", request.metadata.is_null() ? Json::object() : FromChat(request.metadata)}};
  }

  bool streamed() const override { return streamed_; }

  void Begin(const Usage&, std::string& out) override {
    Emit("response.created", {{"response", document_}}, out);
    Emit("response.in_progress", {{"response", document_}}, out);
  }

  void Write(size_t, const chat::Delta& delta, session::AnswerTokens tokens,
             const session::AnswerReader& reader, std::string& out) override {
    switch (delta.kind) {
      case chat::Delta::Kind::kReasoning:
        if (!shows_reasoning_) return;
        OpenReasoning(out);
        text_ += delta.text;
        return EmitPart("response.reasoning_summary_text.delta", "summary_index", {{"delta", delta.text}},
                        out);
      case chat::Delta::Kind::kContent:
        if (compacts_) {
          text_ += delta.text;
          return;
        }
        OpenMessage(out);
        text_ += delta.text;
        return EmitPart("response.output_text.delta", "content_index",
                        {{"delta", delta.text}, {"logprobs", TakeLogprobs(tokens)}}, out);
      case chat::Delta::Kind::kToolCallBegin:
        Close("completed", out);
        calls_.push_back({.name = delta.text});
        call_ids_.push_back(NumberedCallId("call_", call_ids_.size()));
        return OpenCall(delta.text, out);
      case chat::Delta::Kind::kArguments:
        calls_.back().arguments += delta.text;
        if (open_ == kCustomCall) {
          std::string input;
          custom_input_.Feed(delta.text, input);
          return EmitInput(input, out);
        }
        text_ += delta.text;
        return EmitItem("response.function_call_arguments.delta", {{"delta", delta.text}}, out);
      case chat::Delta::Kind::kToolCallEnd:
        if (open_ == kCustomCall) {
          std::string rest;
          custom_input_.Finish(rest);
          EmitInput(rest, out);
        }
        return Close("completed", out);
      case chat::Delta::Kind::kDone:
        return Finish(delta, reader, out);
    }
  }

  void End(const Usage& usage, std::string& out) override {
    document_["usage"] = {{"input_tokens", usage.num_prompt_tokens},
                          {"input_tokens_details", {{"cached_tokens", usage.num_cached_tokens}}},
                          {"output_tokens", usage.num_output_tokens},
                          {"output_tokens_details", {{"reasoning_tokens", usage.num_reasoning_tokens}}},
                          {"total_tokens", usage.num_prompt_tokens + usage.num_output_tokens}};
    document_["completed_at"] = document_["status"] == "completed" ? Json(std::time(nullptr)) : Json(nullptr);
    if (keep_ != nullptr) keep_(document_["id"], JsonText(document_));
    if (compacts_alone_) {
      Json output = Json::array();
      for (const chat::JsonValue& item : kept_input_) output.push_back(FromChat(item));
      for (const Json& one : document_["output"]) output.push_back(one);
      out += JsonText({{"id", document_["id"]},
                       {"object", "response.compaction"},
                       {"created_at", document_["created_at"]},
                       {"output", std::move(output)},
                       {"incomplete_details", document_["incomplete_details"]},
                       {"usage", document_["usage"]}});
      return;
    }
    if (!streamed_) {
      out += JsonText(document_);
      return;
    }
    const std::string status = document_["status"];
    Emit("response." + status, {{"response", document_}}, out);
  }

  std::string ErrorBody(const Status& status) override { return OpenAiError(status); }
  void Fail(const Status& status, std::string& out) override {
    document_["status"] = "failed";
    document_["error"] = {{"code", "server_error"}, {"message", status.message()}};
    Emit("response.failed", {{"response", document_}}, out);
  }

 private:
  size_t index() const { return document_["output"].size() - 1; }
  Json& item() { return document_["output"].back(); }

  void Emit(const std::string& type, Json fields, std::string& out) {
    if (!streamed_) return;
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    out += SseEvent(type, event);
  }
  void EmitItem(const std::string& type, Json fields, std::string& out) {
    Json event = {{"item_id", item()["id"]}, {"output_index", index()}};
    event.update(fields);
    Emit(type, std::move(event), out);
  }
  void EmitPart(const std::string& type, const char* index_name, Json fields, std::string& out) {
    Json event = {{index_name, 0}};
    event.update(fields);
    EmitItem(type, std::move(event), out);
  }

  std::string NewItemId(std::string_view prefix) const {
    return ItemId(prefix, document_["id"].get_ref<const std::string&>(), document_["output"].size());
  }
  void OpenItem(Json item, std::string& out) {
    open_ = item["type"];
    text_.clear();
    document_["output"].push_back(item);
    Emit("response.output_item.added", {{"output_index", index()}, {"item", std::move(item)}}, out);
  }
  // In the shape that the client declared the tool in.
  void OpenCall(const std::string& name, std::string& out) {
    const auto found = client_tools_.find(name);
    const ClientTool tool = found == client_tools_.end() ? ClientTool{.name = name} : found->second;
    Json item = {{"id", NewItemId(tool.is_custom ? "ctc_" : "fc_")},
                 {"type", tool.is_custom ? kCustomCall : "function_call"},
                 {"status", "in_progress"},
                 {"call_id", call_ids_.back()},
                 {"name", tool.name},
                 {tool.is_custom ? "input" : "arguments", ""}};
    if (!tool.name_space.empty()) item["namespace"] = tool.name_space;
    custom_input_ = CustomInputReader();
    OpenItem(std::move(item), out);
  }
  void EmitInput(const std::string& piece, std::string& out) {
    if (piece.empty()) return;
    text_ += piece;
    EmitItem("response.custom_tool_call_input.delta", {{"delta", piece}}, out);
  }
  void OpenReasoning(std::string& out) {
    if (open_ == "reasoning") return;
    Close("completed", out);
    OpenItem({{"id", NewItemId("rs_")},
              {"type", "reasoning"},
              {"status", "in_progress"},
              {"summary", Json::array()}},
             out);
    EmitPart("response.reasoning_summary_part.added", "summary_index",
             {{"part", {{"type", "summary_text"}, {"text", ""}}}}, out);
  }
  void OpenMessage(std::string& out) {
    if (open_ == "message") return;
    Close("completed", out);
    OpenItem({{"id", NewItemId("msg_")},
              {"type", "message"},
              {"status", "in_progress"},
              {"role", "assistant"},
              {"content", Json::array()}},
             out);
    EmitPart("response.content_part.added", "content_index", {{"part", TextPart("")}}, out);
  }
  static Json TextPart(const std::string& text, Json logprobs = Json::array()) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", std::move(logprobs)}};
  }
  // Log-probabilities of a piece of the text, kept for the whole of it.
  Json TakeLogprobs(const session::AnswerTokens& tokens) {
    if (!wants_logprobs_) return Json::array();
    Json list = OpenAiLogprobs(model_.tokenizer, tokens.content);
    for (const Json& token : list) logprobs_.push_back(token);
    return list;
  }

  // Ends the open item, if there is one.
  void Close(const char* status, std::string& out) {
    if (open_.empty()) return;
    if (open_ == "reasoning") {
      const Json part = {{"type", "summary_text"}, {"text", text_}};
      item()["status"] = status;
      item()["summary"].push_back(part);
      EmitPart("response.reasoning_summary_text.done", "summary_index", {{"text", text_}}, out);
      EmitPart("response.reasoning_summary_part.done", "summary_index", {{"part", part}}, out);
    } else if (open_ == "message") {
      item()["status"] = status;
      const Json part = TextPart(text_, std::exchange(logprobs_, Json::array()));
      item()["content"].push_back(part);
      EmitPart("response.output_text.done", "content_index",
               {{"text", text_}, {"logprobs", part["logprobs"]}}, out);
      EmitPart("response.content_part.done", "content_index", {{"part", part}}, out);
    } else if (open_ == kCustomCall) {
      item()["status"] = status;
      item()["input"] = text_;
      EmitItem("response.custom_tool_call_input.done", {{"input", text_}}, out);
    } else {
      item()["status"] = status;
      item()["arguments"] = text_;
      EmitItem("response.function_call_arguments.done", {{"name", item()["name"]}, {"arguments", text_}},
               out);
    }
    open_.clear();
    Emit("response.output_item.done", {{"output_index", index()}, {"item", item()}}, out);
  }

  void Finish(const chat::Delta& done, const session::AnswerReader& reader, std::string& out) {
    const bool cut = open_ == "function_call" || open_ == kCustomCall;
    const bool incomplete = done.finish_reason == chat::FinishReason::kLength;
    if (compacts_) {
      const std::string summary = std::exchange(text_, {});
      OpenItem({{"id", NewItemId("cmp_")},
                {"type", "compaction"},
                {"encrypted_content", std::string(kOwnCompaction) + summary}},
               out);
      open_.clear();
      Emit("response.output_item.done", {{"output_index", index()}, {"item", item()}}, out);
    }
    Close(incomplete ? "incomplete" : "completed", out);
    if (!cut) memory_.Remember(call_ids_, calls_, reader.sampled_calls());
    document_["status"] = incomplete ? "incomplete" : "completed";
    if (incomplete) document_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }

  static constexpr const char* kCustomCall = "custom_tool_call";

  const ServedModel& model_;
  CallMemory& memory_;
  bool streamed_;
  ClientTools client_tools_;
  bool wants_logprobs_;
  bool compacts_;
  bool shows_reasoning_;
  bool compacts_alone_;
  std::vector<chat::JsonValue> kept_input_;  // Messages in front of the summary of a compaction alone.
  std::function<void(const std::string&, const std::string&)> keep_;
  Json logprobs_ = Json::array();   // Log-probabilities of the message that grows.
  CustomInputReader custom_input_;  // Input of the call that grows.
  Json document_;
  int64_t sequence_ = 0;
  std::string open_;  // The type of the last item while it grows, and
  std::string text_;  // its text so far.
  std::vector<std::string> call_ids_;
  std::vector<chat::ParsedCall> calls_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(
    const ServedModel& model, ResponsesRequest& request, CallMemory& memory,
    std::function<void(const std::string& id, const std::string& reply)> keep) {
  return std::make_unique<ResponsesWriter>(model, request, memory, std::move(keep));
}

}  // namespace dsv4::server
