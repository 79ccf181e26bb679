// Reader of a /v1/messages request.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/log.h"
#include "server/dialects/anthropic_messages.h"
#include "server/dialects/known_fields.h"

namespace dsv4::server {
namespace {

// A text, or a list of text blocks, joined as the encoder joins the parts of a turn.
Result<std::string> ReadText(const chat::JsonValue& content, const std::string& where) {
  if (content.is_string()) return content.text();
  if (!content.is_array()) {
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted a text or a list of blocks", where, content.kind_name())));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.items().size(); ++i) {
    Fields block(content.items()[i], fmt::format("{}[{}].", where, i));
    std::string type;
    std::string text;
    block.Read("type", &type);
    if (type != "text") block.Fail("type", fmt::format("got '{}', wanted text", type));
    if (!block.Read("text", &text)) block.Fail("text", "missing");
    DSV4_TRY(block.status());
    texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, "\n\n"));
}

// Claude Code begins its system blocks with one that says which version asks, and a number that changes with
// every request. It is for a vendor's bill, and would keep every prompt from the cache.
bool IsBillingHeader(const chat::JsonValue& block) {
  constexpr std::string_view kStart = "x-anthropic-billing-header";
  const chat::JsonValue* text = block.Find("text");
  return text != nullptr && text->text().size() >= kStart.size() &&
         std::equal(kStart.begin(), kStart.end(), text->text().begin(), [](char wanted, char got) {
           return wanted == std::tolower(static_cast<unsigned char>(got));
         });
}

Result<std::string> ReadSystem(const chat::JsonValue& system) {
  if (!system.is_array() || system.items().empty() || !IsBillingHeader(system.items().front()))
    return ReadText(system, "system");
  const std::vector<chat::JsonValue>& blocks = system.items();
  return ReadText(chat::JsonValue::Array({blocks.begin() + 1, blocks.end()}), "system");
}

// A document's text where it has one; else what it is.
Result<std::string> ReadDocument(Fields& block, const std::string& where) {
  std::string title;
  block.Read("title", &title);
  const chat::JsonValue* source = nullptr;
  if (!block.ReadObject("source", &source)) block.Fail("source", "missing, wanted an object");
  DSV4_TRY(block.status());
  Fields fields(*source, where + ".source.");
  std::string type;
  std::string media_type;
  std::string text;
  fields.Read("type", &type);
  fields.Read("media_type", &media_type);
  if (type == "text") {
    if (!fields.Read("data", &text)) fields.Fail("data", "missing");
  } else if (type == "content") {
    const chat::JsonValue* content = fields.Find("content");
    if (content == nullptr) fields.Fail("content", "missing");
    DSV4_TRY(fields.status());
    DSV4_ASSIGN_OR_RETURN(text, ReadText(*content, where + ".source.content"));
  } else if (media_type.empty()) {
    text = chat::UnseenPart("document");
  } else {
    text = fmt::format("[Unsupported document type: {}]", media_type);
  }
  DSV4_TRY(fields.status());
  return title.empty() ? text : fmt::format("{}\n\n{}", title, text);
}

// A block of a user turn or of a tool's result, as text. What the model cannot see is named to it. `found`
// gains the name of a tool that a search has found.
Result<std::string> ReadShownBlock(const chat::JsonValue& json, const std::string& where,
                                   std::vector<std::string>& found) {
  Fields block(json, where + ".");
  std::string type;
  std::string text;
  if (!block.Read("type", &type)) block.Fail("type", "missing");
  if (type == "text") {
    if (!block.Read("text", &text)) block.Fail("text", "missing");
  } else if (type == "tool_reference") {
    if (block.Read("tool_name", &text))
      found.push_back(text);
    else
      block.Fail("tool_name", "missing");
  } else if (type == "document") {
    return ReadDocument(block, where);
  } else if (type == "search_result") {
    std::string source;
    block.Read("title", &text);
    block.Read("source", &source);
    const chat::JsonValue* content = block.Find("content");
    if (content == nullptr) block.Fail("content", "missing");
    DSV4_TRY(block.status());
    DSV4_ASSIGN_OR_RETURN(const std::string passage, ReadText(*content, where + ".content"));
    return fmt::format("{}\n{}\n\n{}", text, source, passage);
  } else if (text = chat::UnseenPart(type); text.empty()) {
    text = fmt::format("[Unsupported {}]", type);
  }
  DSV4_TRY(block.status());
  return text;
}

Result<chat::Content> ReadToolResult(const chat::JsonValue* content, const std::string& where,
                                     std::vector<std::string>& found) {
  if (content == nullptr) return chat::Content("");
  if (content->is_string()) return chat::Content(content->text());
  if (!content->is_array()) {
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted a text or a list of blocks", where, content->kind_name())));
  }
  chat::Content result;
  result.kind = chat::Content::Kind::kParts;
  for (size_t i = 0; i < content->items().size(); ++i) {
    chat::ContentPart part = {.type = "text"};
    DSV4_ASSIGN_OR_RETURN(part.text,
                          ReadShownBlock(content->items()[i], fmt::format("{}[{}]", where, i), found));
    result.parts.push_back(std::move(part));
  }
  return result;
}

Status ReadUserBlock(const chat::JsonValue& json, const std::string& where,
                     std::vector<chat::Message>& messages, std::vector<std::string>& found) {
  Fields block(json, where + ".");
  std::string type;
  block.Read("type", &type);
  DSV4_RETURN_IF_ERROR(block.status());
  if (type == "tool_result") {
    chat::Message message = {.role = chat::Role::kTool, .label = where};
    if (!block.Read("tool_use_id", &message.tool_call_id)) block.Fail("tool_use_id", "missing");
    DSV4_RETURN_IF_ERROR(block.status());
    DSV4_ASSIGN_OR_RETURN_STATUS(message.content,
                                 ReadToolResult(block.Find("content"), where + ".content", found));
    messages.push_back(std::move(message));
    return {};
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(std::string text, ReadShownBlock(json, where, found));
  messages.push_back({.role = chat::Role::kUser, .content = std::move(text), .label = where});
  return {};
}

void AppendBlock(const std::string& text, std::string& joined) {
  if (!joined.empty() && !text.empty()) joined += "\n\n";
  joined += text;
}

Status ReadAssistantBlock(const chat::JsonValue& json, const std::string& where, chat::Message& message) {
  Fields block(json, where + ".");
  std::string type;
  std::string text;
  if (!block.Read("type", &type)) block.Fail("type", "missing");
  if (type == "text") {
    if (!block.Read("text", &text)) block.Fail("text", "missing");
    AppendBlock(text, message.content.text);
  } else if (type == "thinking") {
    block.Read("thinking", &text);  // Beside a signature alone clients leave it out.
    AppendBlock(text, message.reasoning_content);
  } else if (type == "tool_use") {
    chat::ToolCall call;
    if (!block.Read("id", &call.id)) block.Fail("id", "missing");
    if (!block.Read("name", &call.name)) block.Fail("name", "missing");
    call.arguments = chat::CallArguments(block.Find("input"));
    message.tool_calls.push_back(std::move(call));
  } else if (block.status().ok() && type != "redacted_thinking") {
    // Another server's: redacted_thinking is a model's that this one cannot read; server_tool_use,
    // web_search_tool_result and the like were run there.
    LogInfo(fmt::format("messages: {}: a block of type {} is left out, which this server does not know",
                        where, type));
  }
  return block.status();
}

Result<std::vector<chat::Message>> ReadMessages(const chat::ChatProfile& profile,
                                                const chat::JsonValue& list) {
  std::vector<chat::Message> messages;
  for (size_t i = 0; i < list.items().size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    Fields fields(list.items()[i], where + ".");
    std::string role;
    fields.Read("role", &role);
    const chat::JsonValue* content = fields.Find("content");
    if (role != "user" && role != "assistant" && role != "system")
      fields.Fail("role", fmt::format("got '{}', wanted user, assistant or system", role));
    if (content == nullptr) fields.Fail("content", "missing");
    DSV4_TRY(fields.status());
    const bool is_user = role == "user";
    if (role ==
        // The rule changes on the way, and keeps its index: what is in front of it stays in the cache.
        "system") {
      DSV4_ASSIGN_OR_RETURN(const std::string text, ReadText(*content, where + ".content"));
      if (profile.system_turns)
        messages.push_back({.role = chat::Role::kSystem, .content = text, .label = where});
      else
        messages.push_back({.role = chat::Role::kUser, .content = chat::ReminderText(text), .label = where});
      continue;
    }
    if (content->is_string()) {
      messages.push_back({.role = is_user ? chat::Role::kUser : chat::Role::kAssistant,
                          .content = content->text(),
                          .label = where});
      continue;
    }
    if (!content->is_array()) {
      return Error(InvalidArgument(
          fmt::format("{}.content: got {}, wanted a text or a list of blocks", where, content->kind_name())));
    }
    std::vector<std::string> found;
    chat::Message answer = {.role = chat::Role::kAssistant, .content = "", .label = where};
    for (size_t j = 0; j < content->items().size(); ++j) {
      const std::string block = fmt::format("{}.content[{}]", where, j);
      if (is_user)
        DSV4_TRY(ReadUserBlock(content->items()[j], block, messages, found));
      else
        DSV4_TRY(ReadAssistantBlock(content->items()[j], block, answer));
    }
    if (!is_user) messages.push_back(std::move(answer));
    if (profile.system_turns && !found.empty()) {
      messages.push_back(
          {.role = chat::Role::kSystem, .content = "", .shows = std::move(found), .label = where});
    }
  }
  return messages;
}

// Tools that Anthropic's servers run; a date follows the name.
bool IsHosted(std::string_view type) {
  constexpr std::string_view kHosted[] = {"web_search_",       "web_fetch_",  "code_execution_",
                                          "tool_search_tool_", "mcp_toolset", "advisor_"};
  return std::any_of(std::begin(kHosted), std::end(kHosted),
                     [&](std::string_view name) { return type.starts_with(name); });
}

Status ReadTools(const chat::JsonValue& list, ChatCall& call) {
  bool may_defer = true;
  for (size_t i = 0; i < list.items().size(); ++i) {
    Fields fields(list.items()[i], fmt::format("tools[{}].", i));
    std::string type = "custom";
    std::string name;
    std::string description;
    fields.Read("type", &type);
    if (IsHosted(type)) {
      LogInfo(fmt::format("messages: tools[{}] is left out: {} runs on another server", i, type));
      // The search that would find deferred tools.
      may_defer &= !type.starts_with("tool_search_tool_");
      continue;
    }
    if (type != "custom") {
      fields.Fail(
          "type",
          fmt::format("got '{}', which only its vendor's models know; wanted custom, with an input_schema",
                      type));
    }
    if (!fields.Read("name", &name)) fields.Fail("name", "missing");
    const chat::JsonValue* schema = nullptr;
    if (!fields.ReadObject("input_schema", &schema)) fields.Fail("input_schema", "missing, wanted an object");
    const bool has_description = fields.Read("description", &description);
    ToolRule rule = {.schema_label = fmt::format("tools[{}].input_schema", i)};
    fields.Read("strict", &rule.strict);
    bool is_deferred = false;
    fields.Read("defer_loading", &is_deferred);
    if (is_deferred) call.conversation.deferred_tools.insert(name);
    DSV4_RETURN_IF_ERROR(fields.status());
    std::vector<chat::JsonValue::Member> function = {{"name", chat::JsonValue::String(name)}};
    if (has_description) function.emplace_back("description", chat::JsonValue::String(description));
    function.emplace_back("parameters", *schema);
    call.conversation.tools.push_back(
        chat::JsonValue::Object({{"type", chat::JsonValue::String("function")},
                                 {"function", chat::JsonValue::Object(std::move(function))}}));
    call.tool_rules.push_back(std::move(rule));
  }
  if (!may_defer) call.conversation.deferred_tools.clear();
  return {};
}

void ReadToolChoice(Fields& fields, ChatCall& call) {
  const chat::JsonValue* choice = nullptr;
  if (!fields.ReadObject("tool_choice", &choice)) return;
  Fields inner(*choice, "tool_choice.");
  std::string type;
  inner.Read("type", &type);
  bool sequential = false;
  inner.Read("disable_parallel_tool_use", &sequential);
  call.parallel_calls = !sequential;
  if (type == "none")
    call.tool_choice = ToolChoice::kNone;
  else if (type == "any" || type == "tool")
    call.tool_choice = ToolChoice::kRequired;
  else if (type != "auto")
    inner.Fail("type", fmt::format("got '{}', wanted auto, any, tool or none", type));
  std::string name;
  if (type == "tool") {
    if (!inner.Read("name", &name)) inner.Fail("name", "missing");
    call.tool_names = {name};
  }
  fields.Adopt(inner.status());
}

// output_config.format, and output_format as it was called first: {"type": "json_schema", "schema"}.
void ReadFormat(Fields& fields, ChatCall& call) {
  const auto read = [&](Fields& holder, const char* name, const std::string& path) {
    const chat::JsonValue* format = nullptr;
    if (!holder.ReadObject(name, &format)) return;
    Fields members(*format, path + ".");
    std::string type;
    const chat::JsonValue* schema = nullptr;
    members.Read("type", &type);
    if (type != "json_schema") members.Fail("type", fmt::format("got '{}', wanted json_schema", type));
    if (!members.ReadObject("schema", &schema)) members.Fail("schema", "missing, wanted an object");
    fields.Adopt(members.status());
    if (schema == nullptr) return;
    call.conversation.response_format = chat::ResponseFormatOf(*schema);
    call.schema_label = path + ".schema";
  };
  read(fields, "output_format", "output_format");
  const chat::JsonValue* config = nullptr;
  if (!fields.ReadObject("output_config", &config)) return;
  Fields inner(*config, "output_config.");
  read(inner, "format", "output_config.format");
  fields.Adopt(inner.status());
}

}  // namespace

Result<AnthropicRequest> ReadAnthropic(const ServedModel& model, const chat::JsonValue& body) {
  Fields fields(body);
  AnthropicRequest request;
  ChatCall& call = request.call;
  const chat::JsonValue* messages = nullptr;
  if (!fields.ReadList("messages", &messages)) fields.Fail("messages", "missing, wanted a list of messages");
  int64_t max_tokens = 0;
  if (fields.Read("max_tokens", &max_tokens)) call.sampling.max_tokens = max_tokens;
  fields.Read("stream", &request.stream);
  ReadStop(fields, "stop_sequences", call.sampling);
  ReadSampling(fields, call.sampling);
  if (call.sampling.num_choices != 1) fields.Fail("n", "this dialect has one answer");
  ReadToolChoice(fields, call);
  ReadFormat(fields, call);
  const chat::JsonValue* tools = nullptr;
  fields.ReadList("tools", &tools);
  const chat::JsonValue* system = fields.Find("system");
  ExpectThinking(fields);
  fields.Expect({"model", "metadata"});
  CheckFields(fields, body, kMessages, model, call.sampling);
  DSV4_TRY(fields.status());
  if (system != nullptr) {
    DSV4_ASSIGN_OR_RETURN(std::string text, ReadSystem(*system));
    call.conversation.messages.push_back(
        {.role = chat::Role::kSystem, .content = std::move(text), .label = "system"});
  }
  DSV4_ASSIGN_OR_RETURN(std::vector<chat::Message> turns, ReadMessages(*model.profile, *messages));
  if (turns.empty() && !messages->items().empty())
    return Error(InvalidArgument("messages[0].content: empty, wanted a text or at least one block"));
  if (turns.empty()) return Error(InvalidArgument("messages: empty, wanted at least one message"));
  // An assistant message at the end is the beginning of the answer.
  call.conversation.continue_final_message = turns.back().role == chat::Role::kAssistant;
  for (chat::Message& turn : turns) call.conversation.messages.push_back(std::move(turn));
  if (tools != nullptr) DSV4_TRY(ReadTools(*tools, call));
  DSV4_ASSIGN_OR_RETURN(call.thinking, chat::ResolveThinking(*model.profile, body, model.default_thinking));
  FillDefaults(model, call);
  return request;
}

}  // namespace dsv4::server
