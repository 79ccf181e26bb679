// Reader and writer of ollama's dialect: chat, generate, models and options.
#include "server/dialects/ollama.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <utility>
#include <vector>

#include "base/json.h"
#include "server/api/fields.h"
#include "server/dialects/known_fields.h"

namespace dsv4::server {
namespace {

using chat::JsonValue;
using Clock = std::chrono::steady_clock;

// Options by ollama's names, and ours.
constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"seed", "seed"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"repeat_last_n", "penalty_window"},
    {"stop", "stop"},
};
// Options of the machine, not of the answer.
constexpr std::string_view kOfTheMachine[] = {"num_ctx",    "num_batch", "num_gpu",    "main_gpu",
                                              "num_thread", "use_mmap",  "use_mlock",  "num_keep",
                                              "low_vram",   "numa",      "vocab_only", "draft_num_predict"};

// Calls have no ids here, and arguments are objects; results follow the calls in their order.
class MessageReader {
 public:
  Result<JsonValue> Read(const JsonValue& message, const std::string& where) {
    Fields fields(message, where);
    std::string role;
    std::string text;
    if (!fields.Read("role", &role)) fields.Fail("role", "missing");
    std::vector<JsonValue::Member> members = {{"role", JsonValue::String(role)}};
    std::string content;
    fields.Read("content", &content);
    const JsonValue* images = nullptr;
    if (fields.ReadList("images", &images)) {
      for (size_t i = 0; i < images->items().size(); ++i)
        content += (content.empty() ? "" : "\n\n") + chat::UnseenPart("image");
    }
    members.emplace_back("content", JsonValue::String(content));
    if (fields.Read("thinking", &text)) members.emplace_back("reasoning_content", JsonValue::String(text));
    const JsonValue* calls = nullptr;
    if (fields.ReadList("tool_calls", &calls)) {
      std::vector<JsonValue> list;
      for (size_t i = 0; i < calls->items().size(); ++i) {
        DSV4_ASSIGN_OR_RETURN(list.emplace_back(),
                              ReadCall(calls->items()[i], fmt::format("{}tool_calls[{}].", where, i)));
      }
      members.emplace_back("tool_calls", JsonValue::Array(std::move(list)));
    }
    if (role == "tool") {
      if (open_ids_.empty()) fields.Fail("role", "a result without a call in front of it");
      if (!open_ids_.empty()) {
        members.emplace_back("tool_call_id", JsonValue::String(open_ids_.front()));
        open_ids_.erase(open_ids_.begin());
      }
    }
    fields.Expect({"tool_name", "tool_call_id"});
    DSV4_TRY(fields.status());
    return JsonValue::Object(std::move(members));
  }

 private:
  Result<JsonValue> ReadCall(const JsonValue& call, const std::string& where) {
    Fields fields(call, where);
    const JsonValue* function = nullptr;
    if (!fields.ReadObject("function", &function)) fields.Fail("function", "missing, wanted an object");
    DSV4_TRY(fields.status());
    Fields inner(*function, where + "function.");
    std::string name;
    if (!inner.Read("name", &name)) inner.Fail("name", "missing");
    const JsonValue* arguments = inner.Find("arguments");
    DSV4_TRY(inner.status());
    open_ids_.push_back(fmt::format("call_{}", num_calls_++));
    const std::string text = chat::CallArguments(arguments);
    return JsonValue::Object({{"id", JsonValue::String(open_ids_.back())},
                              {"type", JsonValue::String("function")},
                              {"function", JsonValue::Object({{"name", JsonValue::String(name)},
                                                              {"arguments", JsonValue::String(text)}})}});
  }

  int num_calls_ = 0;
  std::vector<std::string> open_ids_;  // Ids of calls that wait for their result.
};

Status ReadOptions(const JsonValue& options, std::vector<JsonValue::Member>& members) {
  for (const JsonValue::Member& option_given : options.members()) {
    const std::string& name = option_given.first;  // No structured binding: clang 14 captures none.
    const JsonValue& value = option_given.second;
    if (value.is_null()) continue;
    if (name == "num_predict") {
      int64_t most = 0;
      if (!ToInteger(value, &most))
        return InvalidArgument(
            fmt::format("options.num_predict: got {}, wanted an integer", chat::WriteJson(value)));
      if (most > 0) members.emplace_back("max_tokens", value);  // -1 and -2: no bound of its own.
      continue;
    }
    const auto* const option = std::find_if(std::begin(kOptions), std::end(kOptions),
                                            [&](const auto& known) { return known.first == name; });
    if (option != std::end(kOptions)) {
      members.emplace_back(std::string(option->second), value);
      continue;
    }
    // A member of the request that it becomes cannot be set here, nor twice.
    constexpr std::string_view kOwn[] = {"messages",         "model",          "stream", "tools", "think",
                                         "reasoning_effort", "response_format"};
    const bool taken =
        std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn) ||
        std::any_of(members.begin(), members.end(), [&](const auto& member) { return member.first == name; });
    if (taken) return InvalidArgument(fmt::format("options.{}: not an option", name));
    const bool harmless =
        std::find(std::begin(kOfTheMachine), std::end(kOfTheMachine), name) != std::end(kOfTheMachine);
    if (!harmless)
      members.emplace_back(name, value);  // Known elsewhere or refused by name, as in chat completions.
  }
  return {};
}

std::string Time(int64_t seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}
std::string Now() { return Time(std::time(nullptr)); }

Json Details() {
  return {{"parent_model", ""},    {"format", "safetensors"},
          {"family", "deepseek4"}, {"families", Json::array({"deepseek4"})},
          {"parameter_size", ""},  {"quantization_level", ""}};
}

// Members that a reply begins with. One of /api/generate has the members of the message itself, and its
// content as `response`.
Json OllamaDocument(const ServedModel& model, bool generates, Json message) {
  Json document = {{"model", model.id}, {"created_at", Now()}};
  if (!generates) {
    document["message"] = std::move(message);
    return document;
  }
  document["response"] = message["content"];
  for (const char* name : {"thinking", "tool_calls"}) {
    if (message.contains(name)) document[name] = message[name];
  }
  return document;
}

class OllamaWriter final : public AnswerWriter {
 public:
  OllamaWriter(const ServedModel& model, const OllamaRequest& request)
      : model_(model),
        generates_(request.kind == OllamaKind::kGenerate),
        streamed_(request.stream),
        shows_reasoning_(request.chat.call.thinking.shows_reasoning) {}

  bool streamed() const override { return streamed_; }
  std::string_view content_type() const override {
    return streamed_ ? "application/x-ndjson" : "application/json";
  }
  std::string_view KeepAlive() const override { return "\n"; }

  void Begin(const Usage&, std::string&) override {}

  void Write(size_t, const chat::Delta& delta, session::AnswerTokens, const session::AnswerReader&,
             std::string& out) override {
    if (!first_token_ && delta.kind != chat::Delta::Kind::kDone) first_token_ = Clock::now();
    switch (delta.kind) {
      case chat::Delta::Kind::kReasoning:
        if (shows_reasoning_) Say("thinking", delta.text, out);
        return;
      case chat::Delta::Kind::kContent:
        return Say("content", delta.text, out);
      case chat::Delta::Kind::kToolCallBegin:
        name_ = delta.text;
        arguments_.clear();
        return;
      case chat::Delta::Kind::kArguments:
        arguments_ += delta.text;
        return;
      case chat::Delta::Kind::kToolCallEnd: {
        const Json call = {{"function",
                            {{"index", num_calls_++},
                             {"name", name_},
                             {"arguments", Json::parse(arguments_, nullptr, /*allow_exceptions=*/false)}}}};
        calls_.push_back(call);
        if (streamed_)
          Line({{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}, out);
        return;
      }
      case chat::Delta::Kind::kDone:
        reason_ = delta.finish_reason == chat::FinishReason::kLength ? "length" : "stop";
        return;
    }
  }

  void End(const Usage& usage, std::string& out) override {
    Json message = {{"role", "assistant"}, {"content", streamed_ ? "" : content_}};
    if (!streamed_ && !thinking_.empty()) message["thinking"] = thinking_;
    if (!streamed_ && !calls_.empty()) message["tool_calls"] = calls_;
    const auto nanoseconds = [](Clock::duration time) {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    };
    const Clock::time_point now = Clock::now();
    const Clock::time_point first = first_token_.value_or(now);
    Json document = Document(std::move(message));
    document["done_reason"] = reason_;
    document["done"] = true;
    document["total_duration"] = nanoseconds(now - start_);
    document["load_duration"] = 0;
    document["prompt_eval_count"] = usage.num_prompt_tokens;
    document["prompt_eval_duration"] = nanoseconds(first - start_);
    document["eval_count"] = usage.num_output_tokens;
    document["eval_duration"] = nanoseconds(now - first);
    out += JsonText(document) + "\n";
  }

  std::string ErrorBody(const Status& status) override { return OllamaError(status); }
  void Fail(const Status& status, std::string& out) override { out += OllamaError(status) + "\n"; }

 private:
  Json Document(Json message) const { return OllamaDocument(model_, generates_, std::move(message)); }
  void Line(Json message, std::string& out) const {
    Json document = Document(std::move(message));
    document["done"] = false;
    out += JsonText(document) + "\n";
  }
  void Say(const char* name, const std::string& text, std::string& out) {
    (std::string_view(name) == "content" ? content_ : thinking_) += text;
    if (!streamed_) return;
    Json message = {{"role", "assistant"}, {"content", ""}};
    message[name] = text;
    Line(std::move(message), out);
  }

  const ServedModel& model_;
  bool generates_;
  bool streamed_;
  bool shows_reasoning_;
  std::string content_;
  std::string thinking_;
  std::string name_;  // Name of the call that grows, and its
  std::string arguments_;
  int num_calls_ = 0;
  Json calls_ = Json::array();
  std::string reason_ = "stop";
  Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> first_token_;
};

// response_format of `format`.
void ReadFormat(Fields& fields, std::vector<JsonValue::Member>& members) {
  const JsonValue* format = fields.Find("format");
  if (format == nullptr) return;
  if (format->is_object()) {
    members.emplace_back("response_format", chat::ResponseFormatOf(*format));
  } else if (format->text() == "json") {
    members.emplace_back("response_format", JsonValue::Object({{"type", JsonValue::String("json_object")}}));
  } else if (!format->text().empty() || !format->is_string()) {
    fields.Fail("format", fmt::format("got {}, wanted \"json\" or a schema", chat::WriteJson(*format)));
  }
}

// The other members of both kinds of requests, and those of no dialect, which the request names.
Status ReadOthers(const ServedModel& model, Fields& fields, std::vector<JsonValue::Member>& members,
                  std::vector<std::string>& unknown) {
  ReadFormat(fields, members);
  const JsonValue* options = nullptr;
  if (fields.ReadObject("options", &options)) fields.Adopt(ReadOptions(*options, members));
  fields.Expect({"model", "keep_alive"});
  // Members of its objects are looked at as what they become.
  NoteUnknown(fields, JsonValue(), kChat, model, unknown);
  return fields.status();
}

Result<OllamaRequest> FinishChat(const ServedModel& model, Fields& fields,
                                 std::vector<JsonValue::Member> members, OllamaRequest request) {
  if (const JsonValue* tools = fields.Find("tools")) members.emplace_back("tools", *tools);
  if (const JsonValue* think = fields.Find("think"))
    members.emplace_back(think->is_string() ? "reasoning_effort" : "think", *think);
  // Spellings of other servers.
  for (const chat::ThinkingField& field : chat::ThinkingFields()) {
    const JsonValue* value = field.inside.empty() ? fields.Find(field.name) : nullptr;
    const bool is_said = std::ranges::any_of(
        members, [&](const JsonValue::Member& member) { return member.first == field.name; });
    if (value != nullptr && field.name != "think" && !is_said) members.emplace_back(field.name, *value);
  }
  std::vector<std::string> unknown;
  DSV4_TRY(ReadOthers(model, fields, members, unknown));
  DSV4_ASSIGN_OR_RETURN(request.chat, ReadOpenAiChat(model, JsonValue::Object(std::move(members))));
  std::ranges::move(unknown, std::back_inserter(request.chat.call.sampling.unknown_fields));
  if (request.chat.call.sampling.num_choices != 1)
    return Error(InvalidArgument("options.n: this dialect has one answer"));
  return request;
}

Result<OllamaRequest> FinishText(const ServedModel& model, Fields& fields,
                                 std::vector<JsonValue::Member> members, OllamaRequest request) {
  std::vector<std::string> unknown;
  DSV4_TRY(ReadOthers(model, fields, members, unknown));
  const bool is_bounded =
      std::ranges::any_of(members, [](const auto& member) { return member.first == "max_tokens"; });
  DSV4_ASSIGN_OR_RETURN(request.text, ReadCompletions(model, JsonValue::Object(std::move(members))));
  SamplingCall& sampling = request.text->sampling;
  if (!is_bounded) sampling.max_tokens.reset();  // OpenAI's 16 are not this dialect's.
  std::ranges::move(unknown, std::back_inserter(sampling.unknown_fields));
  if (sampling.num_choices != 1) return Error(InvalidArgument("options.n: this dialect has one answer"));
  return request;
}

}  // namespace

std::string WithoutTag(const std::string& name) {
  constexpr std::string_view kTag = ":latest";
  return name.ends_with(kTag) ? name.substr(0, name.size() - kTag.size()) : name;
}

Result<OllamaRequest> ReadOllamaChat(const ServedModel& model, const JsonValue& body) {
  Fields fields(body);
  OllamaRequest request;
  std::vector<JsonValue::Member> members;
  const JsonValue* messages = nullptr;
  if (!fields.ReadList("messages", &messages)) fields.Fail("messages", "missing, wanted a list of messages");
  fields.Read("stream", &request.stream);
  DSV4_TRY(fields.status());
  DSV4_TRY(RefusePictures(model, body));
  MessageReader reader;
  std::vector<JsonValue> list;
  for (size_t i = 0; i < messages->items().size(); ++i) {
    DSV4_ASSIGN_OR_RETURN(list.emplace_back(),
                          reader.Read(messages->items()[i], fmt::format("messages[{}].", i)));
  }
  members.emplace_back("messages", JsonValue::Array(std::move(list)));
  return FinishChat(model, fields, std::move(members), std::move(request));
}

Result<OllamaRequest> ReadOllamaGenerate(const ServedModel& model, const JsonValue& body) {
  Fields fields(body);
  OllamaRequest request = {.kind = OllamaKind::kGenerate, .chat = {}, .text = {}};
  std::string prompt;
  std::string suffix;
  std::string system;
  std::string other_template;
  bool raw = false;
  fields.Read("prompt", &prompt);
  fields.Read("suffix", &suffix);
  fields.Read("system", &system);
  fields.Read("raw", &raw);
  fields.Read("stream", &request.stream);
  if (fields.Read("template", &other_template) && !other_template.empty())
    fields.Fail("template", "the model's own is built in; wanted none, or raw: true with the text itself");
  const JsonValue* context = nullptr;
  if (fields.ReadList("context", &context) && !context->items().empty())
    fields.Fail("context", "conversations are not kept as tokens; see /api/chat");
  const JsonValue* images = nullptr;
  fields.ReadList("images", &images);
  DSV4_TRY(fields.status());
  DSV4_TRY(RefusePictures(model, body));
  std::vector<JsonValue::Member> members;
  if (raw || !suffix.empty()) {
    members.emplace_back("prompt", JsonValue::String(prompt));
    if (!suffix.empty()) members.emplace_back("suffix", JsonValue::String(suffix));
    fields.Expect({"think"});
    return FinishText(model, fields, std::move(members), std::move(request));
  }
  for (size_t i = 0; images != nullptr && i < images->items().size(); ++i)
    prompt += (prompt.empty() ? "" : "\n\n") + chat::UnseenPart("image");
  const auto message = [](const char* role, const std::string& text) {
    return JsonValue::Object({{"role", JsonValue::String(role)}, {"content", JsonValue::String(text)}});
  };
  std::vector<JsonValue> messages;
  if (!system.empty()) messages.push_back(message("system", system));
  messages.push_back(message("user", prompt));
  members.emplace_back("messages", JsonValue::Array(std::move(messages)));
  return FinishChat(model, fields, std::move(members), std::move(request));
}

std::string OllamaLoad(const ServedModel& model, const JsonValue& body, OllamaKind kind) {
  const JsonValue* const said = body.Find(kind == OllamaKind::kChat ? "messages" : "prompt");
  const JsonValue* const suffix = body.Find("suffix");
  const bool says = said != nullptr && (said->is_array() ? !said->items().empty() : !said->text().empty());
  // Chats without the member are mistakes; a prompt may be left out.
  const bool is_given = said != nullptr || kind == OllamaKind::kGenerate;
  if (says || !is_given || (said != nullptr && said->is_object()) ||
      (suffix != nullptr && !suffix->text().empty()))
    return {};
  const JsonValue* const keep = body.Find("keep_alive");
  const bool unloads =
      keep != nullptr && (keep->text() == "0" || keep->text() == "0s" || keep->text() == "0m");
  Json document =
      OllamaDocument(model, kind == OllamaKind::kGenerate, {{"role", "assistant"}, {"content", ""}});
  document["done"] = true;
  document["done_reason"] = unloads ? "unload" : "load";
  return JsonText(document) + "\n";
}

std::unique_ptr<AnswerWriter> MakeOllamaWriter(const ServedModel& model, const OllamaRequest& request) {
  return std::make_unique<OllamaWriter>(model, request);
}

std::string OllamaError(const Status& status) { return JsonText({{"error", status.message()}}); }

std::string OllamaModels(const ServedModel& model, bool running) {
  Json entry = {{"name", model.id + ":latest"},
                {"model", model.id + ":latest"},
                {"modified_at", Time(model.created)},
                {"size", model.num_bytes},
                {"digest", ""},
                {"details", Details()}};
  if (running) {
    constexpr int64_t kForever = int64_t{100} * 365 * 24 * 3600;  // It stays as long as the server.
    entry["expires_at"] = Time(model.created + kForever);
    entry["size_vram"] = model.num_gpu_bytes;
    entry["context_length"] = model.context_length;
  }
  return JsonText({{"models", Json::array({std::move(entry)})}});
}

std::string OllamaShow(const ServedModel& model) {
  return JsonText({{"license", ""},
                   {"modelfile", ""},
                   {"parameters", ""},
                   {"template", fmt::format("deepseek {} (built in)", model.profile->revision)},
                   {"modified_at", Time(model.created)},
                   {"details", Details()},
                   {"model_info",
                    {{"general.architecture", "deepseek4"},
                     {"general.basename", model.id},
                     {"deepseek4.context_length", model.context_length},
                     {"deepseek4.vocab_size", model.vocab_size}}},
                   {"capabilities", Json::array({"completion", "tools", "thinking", "insert"})}});
}

}  // namespace dsv4::server
