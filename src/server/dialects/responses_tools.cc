// Tools of responses as functions: custom ones, namespaces, hosted ones left out, and calls back in their own
// shape.
#include "server/dialects/responses_tools.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/log.h"

namespace dsv4::server {
namespace {

using chat::JsonValue;

// Tools that OpenAI's servers run, or whose calls have a shape of their own; a date may follow the name.
constexpr std::array<std::string_view, 11> kHostedTools = {
    "web_search", "file_search", "code_interpreter", "image_generation", "mcp",         "local_shell",
    "shell",      "computer",    "apply_patch",      "tool_search",      "programmatic"};

bool IsHosted(std::string_view type) {
  return std::any_of(kHostedTools.begin(), kHostedTools.end(),
                     [&](std::string_view name) { return type.starts_with(name); });
}

class ToolsReader {
 public:
  ToolsReader(const chat::ChatProfile& profile, ChatCall& call, ClientTools& client_tools)
      : profile_(profile), call_(call), client_tools_(client_tools) {}

  // Reads a tool of the request, or of a namespace.
  Status Read(const JsonValue& tool, const std::string& where, std::string_view name_space,
              std::string_view space_description) {
    Fields fields(tool, where);
    std::string type;
    std::string name;
    fields.Read("type", &type);
    DSV4_RETURN_IF_ERROR(fields.status());
    if (IsHosted(type) && name_space.empty()) {
      left_out_.insert(type);
      return {};
    }
    const bool is_known =
        type == "function" || type == "custom" || (type == "namespace" && name_space.empty());
    if (!is_known) fields.Fail("type", fmt::format("got '{}', wanted function, custom or namespace", type));
    if (!fields.Read("name", &name)) fields.Fail("name", "missing");
    DSV4_RETURN_IF_ERROR(fields.status());
    if (type == "namespace") return ReadNamespace(fields, where, name);
    const std::string function_name = FunctionName(profile_.namespace_mark, name_space, name);
    if (!names_.insert(function_name).second) {
      fields.Fail("name", fmt::format("got '{}', which another tool is called too", function_name));
      return fields.status();
    }
    if (type == "custom" || !name_space.empty()) {
      client_tools_[function_name] = {
          .is_custom = type == "custom", .name = name, .name_space = std::string(name_space)};
    }
    return type == "custom" ? AddCustom(fields, where, function_name, space_description)
                            : AddFunction(tool, where, function_name, space_description);
  }

  const std::set<std::string>& left_out() const { return left_out_; }

 private:
  Status ReadNamespace(Fields& fields, const std::string& where, const std::string& name) {
    const JsonValue* tools = nullptr;
    std::string description;
    if (!fields.ReadList("tools", &tools)) fields.Fail("tools", "missing, wanted a list of functions");
    fields.Read("description", &description);
    DSV4_RETURN_IF_ERROR(fields.status());
    if (!profile_.describes_namespaces) description.clear();
    if (!description.empty()) description += "\n";
    for (size_t i = 0; i < tools->items().size(); ++i)
      DSV4_RETURN_IF_ERROR(Read(tools->items()[i], fmt::format("{}tools[{}].", where, i), name, description));
    return {};
  }

  // The members that the model gets to see, under the name it is to use.
  Status AddFunction(const JsonValue& tool, const std::string& where, const std::string& name,
                     std::string_view space_description) {
    Fields fields(tool, where);
    std::string description;
    ToolRule rule = {.schema_label = where + "parameters"};
    fields.Read("strict", &rule.strict);
    const JsonValue* parameters = nullptr;
    fields.ReadObject("parameters", &parameters);
    if (!space_description.empty()) fields.Read("description", &description);
    DSV4_RETURN_IF_ERROR(fields.status());
    std::vector<JsonValue::Member> function;
    if (!space_description.empty()) {
      function.emplace_back("description", JsonValue::String(std::string(space_description) + description));
    }
    for (const JsonValue::Member& member : tool.members()) {
      if (member.first == "name")
        function.emplace_back("name", JsonValue::String(name));
      else if (member.first == "description" && !space_description.empty())
        continue;
      else if (member.first != "type" && member.first != "strict" && member.first != "defer_loading" &&
               !member.second.is_null())
        function.push_back(member);
    }
    return Add(std::move(function), std::move(rule));
  }

  Status AddCustom(Fields& fields, const std::string& where, const std::string& name,
                   std::string_view space_description) {
    std::string description;
    std::optional<grammar::CallableTool::Text> text;
    fields.Read("description", &description);
    description.insert(0, space_description);
    const JsonValue* format = nullptr;
    if (fields.ReadObject("format", &format)) {
      Fields inner(*format, where + "format.");
      std::string type;
      std::string syntax = "lark";
      std::string definition;
      inner.Read("type", &type);
      if (type != "text" && type != "grammar")
        inner.Fail("type", fmt::format("got '{}', wanted text or grammar", type));
      inner.Read("syntax", &syntax);
      if (type == "grammar" && !inner.Read("definition", &definition)) inner.Fail("definition", "missing");
      if (syntax != "lark" && syntax != "regex" && !definition.empty())
        inner.Fail("syntax", fmt::format("got '{}', wanted lark or regex", syntax));
      fields.Adopt(inner.status());
      if (!definition.empty()) {
        using Kind = grammar::ContentRule::Kind;
        text = {.parameter = std::string(kCustomInput),
                .rule = {.kind = syntax == "regex" ? Kind::kRegex : Kind::kLark,
                         .text = definition,
                         .label = where + "format.definition"}};
        description += fmt::format("{}The input is plain text, not JSON, and follows this {} definition:\n{}",
                                   description.empty() ? "" : "\n\n", syntax, definition);
      }
    }
    DSV4_RETURN_IF_ERROR(fields.status());
    const JsonValue input = JsonValue::Object(
        {{"type", JsonValue::String("string")},
         {"description", JsonValue::String("The whole input of the tool, as plain text.")}});
    const JsonValue parameters =
        JsonValue::Object({{"type", JsonValue::String("object")},
                           {"properties", JsonValue::Object({{std::string(kCustomInput), input}})},
                           {"required", JsonValue::Array({JsonValue::String(std::string(kCustomInput))})},
                           {"additionalProperties", JsonValue::Bool(false)}});
    std::vector<JsonValue::Member> function = {{"name", JsonValue::String(name)}};
    if (!description.empty()) function.emplace_back("description", JsonValue::String(description));
    function.emplace_back("parameters", parameters);
    return Add(std::move(function), {.schema_label = where + "format", .text = std::move(text)});
  }

  Status Add(std::vector<JsonValue::Member> function, ToolRule rule) {
    call_.conversation.tools.push_back(JsonValue::Object(
        {{"type", JsonValue::String("function")}, {"function", JsonValue::Object(std::move(function))}}));
    call_.tool_rules.push_back(std::move(rule));
    return {};
  }

  const chat::ChatProfile& profile_;
  ChatCall& call_;
  ClientTools& client_tools_;
  std::set<std::string> names_;
  std::set<std::string> left_out_;
};

// The length of the JSON string characters at the front of `text` that are whole; the rest is the beginning
// of one. Ends before a quote that closes the string.
size_t WholeCharacters(std::string_view text) {
  size_t i = 0;
  while (i < text.size() && text[i] != '"') {
    const auto lead = static_cast<unsigned char>(text[i]);
    size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (text[i] == '\\') {
      length = 2;
      if (i + 1 < text.size() && text[i + 1] == 'u') {
        const std::string_view digits = text.substr(i, 6).substr(std::min<size_t>(text.size() - i, 2));
        const bool is_high = digits.size() >= 2 && (digits[0] | 0x20) == 'd' &&
                             std::string_view("89abAB").find(digits[1]) != std::string_view::npos;
        length = is_high ? 12 : 6;
      }
    }
    if (i + length > text.size()) break;
    i += length;
  }
  return i;
}

}  // namespace

std::string FunctionName(std::string_view mark, std::string_view name_space, std::string_view name) {
  if (name_space.empty()) return std::string(name);
  return fmt::format("{}{}{}", name_space, name_space.ends_with(mark) ? "" : mark, name);
}

Status ReadResponsesTools(const chat::ChatProfile& profile, const JsonValue& list, ChatCall& call,
                          ClientTools& client_tools) {
  ToolsReader reader(profile, call, client_tools);
  for (size_t i = 0; i < list.items().size(); ++i)
    DSV4_RETURN_IF_ERROR(reader.Read(list.items()[i], fmt::format("tools[{}].", i), "", ""));
  if (!reader.left_out().empty()) {
    LogInfo(fmt::format("responses: tools left out, which this server does not run: {}",
                        fmt::join(reader.left_out(), ", ")));
  }
  return {};
}

std::string CustomArguments(std::string_view input) {
  return chat::WriteJson(
      JsonValue::Object({{std::string(kCustomInput), JsonValue::String(std::string(input))}}));
}

void CustomInputReader::Feed(std::string_view piece, std::string& out) {
  arguments_ += piece;
  if (!in_text_) {
    if (has_given_) return;
    // {"input": "
    static constexpr std::array<std::string_view, 4> kOpening = {"{", "\"input\"", ":", "\""};
    size_t position = 0;
    for (const std::string_view part : kOpening) {
      position = arguments_.find_first_not_of(" \n\r\t", position);
      if (position == std::string::npos || arguments_.compare(position, part.size(), part) != 0) return;
      position += part.size();
    }
    position_ = position;
    in_text_ = true;
    has_given_ = true;
  }
  const std::string_view rest = std::string_view(arguments_).substr(position_);
  const size_t length = WholeCharacters(rest);
  if (length > 0) {
    const Result<JsonValue> text = chat::ReadJson(fmt::format("\"{}\"", rest.substr(0, length)), "input");
    if (text) out += text->text();
    position_ += length;
  }
  if (length < rest.size() && rest[length] == '"') in_text_ = false;
}

void CustomInputReader::Finish(std::string& out) {
  if (has_given_) return;
  const Result<JsonValue> arguments = chat::ReadJson(arguments_, "arguments");
  const JsonValue* input = arguments ? arguments->Find(kCustomInput) : nullptr;
  // A sole text under another name is what was meant.
  if (input == nullptr && arguments && arguments->is_object() && arguments->members().size() == 1)
    input = &arguments->members().front().second;
  out += input != nullptr && input->is_string() ? input->text() : arguments_;
}

}  // namespace dsv4::server
