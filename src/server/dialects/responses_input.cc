// Reader of a /v1/responses request.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/log.h"
#include "server/dialects/known_fields.h"
#include "server/dialects/openai_json.h"
#include "server/dialects/openai_responses.h"

namespace dsv4::server {
namespace {

constexpr std::string_view kReference = "item_reference";
constexpr std::string_view kCompaction = "compaction";
constexpr std::string_view kCompactionTask =
    "Summarise the conversation so far for yourself: it will be taken away, and you will go on from the "
    "summary alone. "
    "Keep the task and its constraints, what was decided and why, what was done and found (files, names, "
    "commands, "
    "results), what is open, and the next step. Write the summary alone.";

// A text, or a list of parts. Clients mix up the types of texts (input_text, output_text, text); images and files are named to the model.
// An assistant's parts may be of other servers: its reasoning goes to `reasoning`, and what is not known is left out. Null: a user's.
Result<std::string> ReadParts(const chat::JsonValue& content, const std::string& where,
                              std::string* reasoning = nullptr) {
  if (content.is_string()) return content.text();
  if (!content.is_array()) {
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted a text or a list of parts", where, content.kind_name())));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.items().size(); ++i) {
    Fields part(content.items()[i], fmt::format("{}[{}].", where, i));
    std::string type;
    std::string text;
    part.Read("type", &type);
    constexpr std::array kReasoning = {"reasoning_text", "summary_text", "thinking", "reasoning"};
    if (reasoning != nullptr && std::ranges::find(kReasoning, type) != kReasoning.end()) {
      if (!part.Read("text", &text)) part.Read(type == "thinking" ? "thinking" : "reasoning", &text);
      DSV4_TRY(part.status());
      *reasoning += reasoning->empty() || text.empty() ? text : "\n\n" + text;
      continue;
    }
    if (type == "refusal") {
      if (!part.Read("refusal", &text)) part.Fail("refusal", "missing");
    } else if (type == "text" || type.ends_with("_text")) {
      if (!part.Read("text", &text)) part.Fail("text", "missing");
    } else if (text = chat::UnseenPart(type); text.empty()) {
      if (reasoning != nullptr && !type.empty() && part.status().ok()) {
        LogInfo(fmt::format("{}[{}]: a part of type '{}' is left out, which this server does not know", where,
                            i, type));
        continue;
      }
      part.Fail("type", fmt::format("got '{}', wanted input_text, output_text, refusal, input_image, "
                                    "input_audio or input_file",
                                    type));
    }
    DSV4_TRY(part.status());
    texts.push_back(std::move(text));
  }
  if (texts.size() == 1) return std::move(texts[0]);
  std::string joined;
  size_t num_bytes = 0;
  for (const std::string& text : texts) num_bytes += text.size() + 2;
  joined.reserve(num_bytes);
  for (size_t i = 0; i < texts.size(); ++i) joined.append(i > 0 ? "\n\n" : "").append(texts[i]);
  return joined;
}

// The items of the input, put together to messages: reasoning, text and calls that follow one another are one assistant turn.
class InputReader {
 public:
  // `mark`: of FunctionName.
  explicit InputReader(std::string_view mark) : mark_(mark) {}

  Status Read(const chat::JsonValue& item, const std::string& where) {
    Fields fields(item, where + ".");
    std::string type = "message";
    fields.Read("type", &type);
    DSV4_RETURN_IF_ERROR(fields.status());
    if (type == "message") return ReadMessage(fields, where);
    if (type == "function_call") return ReadCall(fields, where, /*is_custom=*/false);
    if (type == "custom_tool_call") return ReadCall(fields, where, /*is_custom=*/true);
    if (type == "function_call_output" || type == "custom_tool_call_output") return ReadOutput(fields, where);
    if (type == "reasoning") return ReadReasoning(fields, where);
    if (type == kReference) {
      fields.Fail("type", "got item_reference: send the item itself (store: false), or previous_response_id");
      return fields.status();
    }
    if (type == kCompaction) return ReadCompaction(fields, where);
    skipped_.insert(type);  // A trace of what other servers run: web_search_call, compaction, ...
    return {};
  }

  std::vector<chat::Message> Take() {
    if (!skipped_.empty()) {
      LogInfo(fmt::format("responses: input items left out, which this server does not know: {}",
                          fmt::join(skipped_, ", ")));
    }
    // Reasoning that led to nothing: the turn was interrupted.
    std::erase_if(messages_, [](const chat::Message& message) {
      return message.role == chat::Role::kAssistant && message.content.kind == chat::Content::Kind::kAbsent &&
             message.tool_calls.empty();
    });
    return std::move(messages_);
  }

 private:
  chat::Message& Assistant(const std::string& where) {
    if (messages_.empty() || messages_.back().role != chat::Role::kAssistant) {
      messages_.push_back({.role = chat::Role::kAssistant, .label = where});
    }
    return messages_.back();
  }

  Status ReadMessage(Fields& fields, const std::string& where) {
    std::string role;
    if (!fields.Read("role", &role)) fields.Fail("role", "missing");
    const chat::JsonValue* content = fields.Find("content");
    if (content == nullptr) fields.Fail("content", "missing");
    DSV4_RETURN_IF_ERROR(fields.status());
    if (role == "assistant") {
      chat::Message& message = Assistant(where);
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text,
                                   ReadParts(*content, where + ".content", &message.reasoning_content));
      chat::Content& said = message.content;
      said = said.text.empty() || text.empty() ? said.text + text : fmt::format("{}\n\n{}", said.text, text);
      return {};
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(std::string text, ReadParts(*content, where + ".content"));
    chat::Message message = {.content = std::move(text), .label = where};
    if (role == "user") {
      message.role = chat::Role::kUser;
    } else if (role == "system") {
      message.role = chat::Role::kSystem;
    } else if (role == "developer") {
      message.role = chat::Role::kDeveloper;
    } else {
      fields.Fail("role", fmt::format("got '{}', wanted user, assistant, system or developer", role));
      return fields.status();
    }
    messages_.push_back(std::move(message));
    return {};
  }

  Status ReadCall(Fields& fields, const std::string& where, bool is_custom) {
    chat::ToolCall call;
    std::string name_space;
    std::string input;
    if (!fields.Read("call_id", &call.id)) fields.Fail("call_id", "missing");
    if (!fields.Read("name", &call.name)) fields.Fail("name", "missing");
    const chat::JsonValue* const arguments = is_custom ? nullptr : fields.Find("arguments");
    if (is_custom) fields.Read("input", &input);  // Many clients keep none of a tool that was told nothing.
    fields.Read("namespace", &name_space);
    DSV4_RETURN_IF_ERROR(fields.status());
    call.arguments = is_custom ? CustomArguments(input) : chat::CallArguments(arguments);
    call.name = FunctionName(mark_, name_space, call.name);
    Assistant(where).tool_calls.push_back(std::move(call));
    return {};
  }

  Status ReadOutput(Fields& fields, const std::string& where) {
    chat::Message message = {.role = chat::Role::kTool, .label = where};
    if (!fields.Read("call_id", &message.tool_call_id)) fields.Fail("call_id", "missing");
    const chat::JsonValue* output = fields.Find("output");
    if (output == nullptr) fields.Fail("output", "missing");
    DSV4_RETURN_IF_ERROR(fields.status());
    DSV4_ASSIGN_OR_RETURN_STATUS(message.content, ReadParts(*output, where + ".output"));
    messages_.push_back(std::move(message));
    return {};
  }

  Status ReadReasoning(Fields& fields, const std::string& where) {
    // Our own replies carry the reasoning in the summary; others may send it as content.
    for (const std::string_view name : {"content", "summary"}) {
      const chat::JsonValue* parts = fields.Find(name);
      if (parts == nullptr || (parts->is_array() && parts->items().empty())) continue;
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text,
                                   ReadParts(*parts, fmt::format("{}.{}", where, name)));
      Assistant(where).reasoning_content += text;
      return {};
    }
    return fields.status();
  }

  // The item that stands for the conversation in front of it. Another server's is nothing that can be read here.
  Status ReadCompaction(Fields& fields, const std::string& where) {
    std::string text;
    fields.Read("encrypted_content", &text);
    DSV4_RETURN_IF_ERROR(fields.status());
    if (!text.starts_with(kOwnCompaction)) {
      skipped_.insert(std::string(kCompaction));
      return {};
    }
    messages_.push_back({.role = chat::Role::kUser,
                         .content = chat::ReminderText("The conversation so far, in short:\n\n" +
                                                       text.substr(kOwnCompaction.size())),
                         .label = where});
    return {};
  }

  std::vector<chat::Message> messages_;
  std::string_view mark_;
  std::set<std::string> skipped_;
};

// Bytes that a value has in memory, about.
size_t SizeOf(const chat::JsonValue& value) {
  size_t size = sizeof(value) + value.text().size() + value.tokens().size() * sizeof(int32_t);
  for (const chat::JsonValue& item : value.items()) size += SizeOf(item);
  for (const auto& [name, member] : value.members()) size += name.size() + SizeOf(member);
  return size;
}

// Replaces references by their items. A reference of fifty bytes may stand for megabytes, and many for the same.
Status Dereference(chat::JsonValue& input, const FindItem& find) {
  constexpr size_t kMostBytes = size_t{32} << 20;
  size_t num_bytes = 0;
  for (size_t i = 0; i < input.items().size(); ++i) {
    chat::JsonValue& item = input.mutable_items()[i];
    const chat::JsonValue* const type = item.Find("type");
    const chat::JsonValue* const id = item.Find("id");
    // Its type may be left out.
    const bool alone = item.members().size() == 1 && id != nullptr;
    if (!find || !(alone || (type != nullptr && type->text() == kReference))) continue;
    if (id == nullptr || !id->is_string())
      return InvalidArgument(fmt::format("input[{}].id: missing, wanted the id of an item", i));
    Result<chat::JsonValue> found = find(id->text());
    if (!found) return InvalidArgument(fmt::format("input[{}].id: {}", i, found.error().message()));
    num_bytes += SizeOf(*found);
    if (num_bytes > kMostBytes)
      return InvalidArgument(fmt::format("input[{}].id: the items so far have more than {} MiB; send less", i,
                                         kMostBytes >> 20));
    item = std::move(*found);
  }
  return {};
}

// The items of the input, taken out of the body: there is no second copy of a text of megabytes.
chat::JsonValue TakeItems(chat::JsonValue& body) {
  using chat::JsonValue;
  const auto member = std::ranges::find(body.mutable_members(), "input", &JsonValue::Member::first);
  JsonValue input = std::exchange(member->second, JsonValue());
  if (input.is_array()) return input;
  std::vector<JsonValue::Member> message;
  message.emplace_back("type", JsonValue::String("message"));
  message.emplace_back("role", JsonValue::String("user"));
  message.emplace_back("content", std::move(input));
  std::vector<JsonValue> items;
  items.push_back(JsonValue::Object(std::move(message)));
  return JsonValue::Array(std::move(items));
}

// Takes the wish for a compaction from the end of the input; false: there is none.
Result<bool> TakeTrigger(chat::JsonValue& input) {
  for (size_t i = 0; i < input.items().size(); ++i) {
    const chat::JsonValue* const type = input.items()[i].Find("type");
    if (type == nullptr || type->text() != "compaction_trigger") continue;
    if (i + 1 != input.items().size())
      return Error(
          InvalidArgument(fmt::format("input[{}].type: got compaction_trigger, wanted it at the end", i)));
    input.mutable_items().pop_back();
    return true;
  }
  return false;
}

// text.format, in the layout of chat completions' response_format.
chat::JsonValue ReadFormat(Fields& fields) {
  const chat::JsonValue* text = nullptr;
  if (!fields.ReadObject("text", &text)) return {};
  Fields inner(*text, "text.");
  const chat::JsonValue* format = nullptr;
  if (inner.ReadObject("format", &format)) {
    Fields members(*format, "text.format.");
    std::string type;
    const chat::JsonValue* schema = nullptr;
    members.Read("type", &type);
    bool strict = false;
    if (type == "json_schema") {
      members.Read("strict", &strict);
      if (!members.ReadObject("schema", &schema)) members.Fail("schema", "missing, wanted an object");
    } else if (type != "text" && type != "json_object") {
      members.Fail("type", fmt::format("got '{}', wanted text, json_object or json_schema", type));
    }
    fields.Adopt(members.status());
    if (schema != nullptr) return chat::ResponseFormatOf(*schema, strict);
  }
  fields.Adopt(inner.status());
  return format == nullptr ? chat::JsonValue() : *format;
}

// include, of which one member has an effect: the others are of tools that the server does not run. And top_logprobs.
void ReadLogprobs(Fields& fields, SamplingCall& sampling) {
  constexpr std::array<std::string_view, 8> kParts = {
      "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
      "file_search_call.results",       "message.input_image.image_url",
      "message.output_text.logprobs",   "reasoning.encrypted_content",
      "web_search_call.action.sources", "web_search_call.results"};
  std::vector<std::string> include;
  fields.ReadStrings("include", &include);
  for (const std::string& part : include) {
    if (std::ranges::find(kParts, part) == kParts.end())
      fields.Fail("include", fmt::format("got '{}', wanted any of {}", part, fmt::join(kParts, ", ")));
  }
  int top = 0;
  const bool has_top = fields.Read("top_logprobs", &top);
  if (top < 0 || top > 20) fields.Fail("top_logprobs", fmt::format("got {}, wanted 0..20", top));
  const bool wanted =
      std::find(include.begin(), include.end(), "message.output_text.logprobs") != include.end();
  if (wanted || (has_top && top > 0)) sampling.num_logprobs = top;
}

// Fields that are given back as they came, which a client's types must be able to read.
void CheckEchoes(Fields& fields) {
  const chat::JsonValue* metadata = nullptr;
  if (fields.ReadObject("metadata", &metadata)) {
    Fields members(*metadata, "metadata.");
    std::string text;
    for (const chat::JsonValue::Member& one : metadata->members()) members.Read(one.first, &text);
    fields.Adopt(members.status());
  }
  std::string user;
  fields.Read("user", &user);
  const chat::JsonValue* const reasoning = fields.Find("reasoning");
  if (reasoning == nullptr || !reasoning->is_object()) return;
  Fields members(*reasoning, "reasoning.");
  for (const std::string_view name : {"summary", "generate_summary"}) {
    std::string summary;
    if (members.Read(name, &summary) && summary != "auto" && summary != "concise" && summary != "detailed")
      members.Fail(name, fmt::format("got '{}', wanted auto, concise or detailed", summary));
  }
  fields.Adopt(members.status());
}

}  // namespace

std::string PreviousResponse(const chat::JsonValue& body) {
  const chat::JsonValue* previous = body.Find("previous_response_id");
  return previous == nullptr ? std::string() : previous->text();
}

Result<ResponsesRequest> ReadResponses(const ServedModel& model, chat::JsonValue body,
                                       std::vector<chat::JsonValue> history, const FindItem& find,
                                       bool compacts) {
  Fields fields(body);
  ResponsesRequest request;
  ChatCall& call = request.call;
  const chat::JsonValue* input = fields.Find("input");
  if (input == nullptr || !(input->is_string() || input->is_array()))
    fields.Fail("input", "wanted a text or a list of items");
  std::string instructions;
  const bool has_instructions = fields.Read("instructions", &instructions);
  fields.Read("previous_response_id", &request.previous);
  fields.Read("store", &request.store);
  bool background = false;
  if (fields.Read("background", &background) && background)
    fields.Fail("background", "an answer is given while its request waits, wanted false");
  fields.Read("stream", &request.stream);
  int64_t max_tokens = 0;
  if (fields.Read("max_output_tokens", &max_tokens)) {
    if (max_tokens <= 0)
      fields.Fail("max_output_tokens", fmt::format("got {}, wanted 1 or more", max_tokens));
    call.sampling.max_tokens = max_tokens;
  }
  ReadSampling(fields, call.sampling);
  if (call.sampling.num_choices != 1) fields.Fail("n", "this dialect has one answer");
  fields.Read("parallel_tool_calls", &call.parallel_calls);
  ReadToolChoice(fields, FunctionLayout::kFlat, model.profile->namespace_mark, call);
  call.conversation.response_format = ReadFormat(fields);
  call.schema_label = "text.format.schema";
  const chat::JsonValue* tools = nullptr;
  fields.ReadList("tools", &tools);
  const auto keep = [&](std::string_view name, chat::JsonValue& value) {
    if (const chat::JsonValue* found = fields.Find(name)) value = *found;
  };
  keep("instructions", request.instructions);
  keep("tools", request.tools);
  keep("tool_choice", request.tool_choice);
  keep("metadata", request.metadata);
  keep("text", request.text);
  keep("reasoning", request.reasoning);
  keep("user", request.user);
  keep("top_logprobs", request.top_logprobs);
  CheckEchoes(fields);
  ReadLogprobs(fields, call.sampling);
  std::string truncation;
  if (fields.Read("truncation", &truncation) && truncation != "disabled" && truncation != "auto")
    fields.Fail("truncation", fmt::format("got '{}', wanted disabled or auto", truncation));
  ExpectThinking(fields);
  fields.Expect({"model"});
  CheckFields(fields, body, kResponses, model, call.sampling);
  DSV4_TRY(fields.status());

  const bool is_text = input->is_string();
  request.own_input = TakeItems(body);
  DSV4_TRY(Dereference(request.own_input, find));
  DSV4_ASSIGN_OR_RETURN(const bool triggered, TakeTrigger(request.own_input));
  request.compacts_alone = compacts;
  request.compacts = compacts || triggered;
  if (request.compacts_alone && request.stream)
    return Error(InvalidArgument("stream: got true, wanted false: a compaction is sent as a whole"));
  InputReader reader(model.profile->namespace_mark);
  for (const chat::JsonValue& item : history) DSV4_TRY(reader.Read(item, "previous_response_id"));
  for (size_t i = 0; i < request.own_input.items().size(); ++i) {
    DSV4_TRY(reader.Read(request.own_input.items()[i],
                         is_text ? std::string("input") : fmt::format("input[{}]", i)));
  }
  call.conversation.messages = reader.Take();
  if (request.compacts && !call.conversation.messages.empty()) {
    call.conversation.messages.push_back(
        {.role = chat::Role::kUser, .content = std::string(kCompactionTask), .label = "compaction"});
    call.tool_choice = ToolChoice::kNone;  // The summary is the answer.
    call.conversation.response_format = {};
  }
  if (call.conversation.messages.empty())
    return Error(InvalidArgument("input: empty, wanted at least one item"));
  if (has_instructions) {
    call.conversation.messages.insert(
        call.conversation.messages.begin(),
        {.role = chat::Role::kSystem, .content = instructions, .label = "instructions"});
  }
  if (tools != nullptr) DSV4_TRY(ReadResponsesTools(*model.profile, *tools, call, request.client_tools));
  DSV4_ASSIGN_OR_RETURN(call.thinking, chat::ResolveThinking(*model.profile, body, model.default_thinking));
  // A summary may not be lost to reasoning that uses its tokens up.
  if (request.compacts) call.thinking.mode = chat::ThinkingMode::kChat;
  FillDefaults(model, call);
  return request;
}

}  // namespace dsv4::server
