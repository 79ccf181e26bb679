// Reader of content rules under the names of vLLM, SGLang, llama.cpp and OpenAI.
#include "server/api/content_rule_fields.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace dsv4::server {
namespace {

using chat::JsonValue;
using grammar::ContentRule;
using Kind = ContentRule::Kind;

class RuleReader {
 public:
  RuleReader(Fields& fields, std::optional<ContentRule>& rule) : fields_(fields), rule_(rule) {}

  // A member of `holder`, which is the request or an object in it; errors and labels call it `path`.
  void Read(Fields& holder, const char* name, Kind kind, const std::string& path) {
    const JsonValue* value = holder.Find(name);
    if (value == nullptr) return;
    if (kind == Kind::kChoice) return ReadChoice(*value, path);
    if (value->is_string()) {
      if (!value->text().empty()) Take(kind, value->text(), path);
      return;
    }
    const bool is_json = kind == Kind::kJsonSchema || kind == Kind::kStructuralTag;
    const bool is_schema = value->is_object() || (kind == Kind::kJsonSchema && value->is_bool());
    if (!is_json || !is_schema)
      return fields_.Fail(path, fmt::format("got {}, wanted {}", value->kind_name(),
                                            is_json ? "an object, or a text of one" : "a text"));
    Take(kind, chat::WriteJson(*value), path);
  }

  void Take(Kind kind, std::string text, const std::string& path) {
    if (rule_) {
      return fields_.Fail(path, fmt::format("beside {}, wanted one of them", rule_->label));
    }
    rule_ = ContentRule{.kind = kind, .text = std::move(text), .label = path};
  }

 private:
  void ReadChoice(const JsonValue& value, const std::string& path) {
    if (!value.is_array() || value.items().empty())
      return fields_.Fail(path, "wanted a list of texts that is not empty");
    for (const JsonValue& item : value.items()) {
      if (!item.is_string()) return fields_.Fail(path, fmt::format("got {}, wanted texts", item.kind_name()));
    }
    Take(Kind::kChoice, chat::WriteJson(value), path);
  }

  Fields& fields_;
  std::optional<ContentRule>& rule_;
};

// `structured_outputs` of vLLM.
void ReadStructuredOutputs(Fields& fields, RuleReader& reader) {
  const JsonValue* value = nullptr;
  if (!fields.ReadObject("structured_outputs", &value)) return;
  const std::string path = "structured_outputs.";
  Fields inner(*value, path);
  reader.Read(inner, "json", Kind::kJsonSchema, path + "json");
  reader.Read(inner, "regex", Kind::kRegex, path + "regex");
  reader.Read(inner, "choice", Kind::kChoice, path + "choice");
  reader.Read(inner, "grammar", Kind::kGrammar, path + "grammar");
  reader.Read(inner, "structural_tag", Kind::kStructuralTag, path + "structural_tag");
  bool json_object = false;
  if (inner.Read("json_object", &json_object) && json_object)
    reader.Take(Kind::kJsonSchema, R"({"type": "object"})", path + "json_object");
  // How its own back ends go about it, which changes no text that is allowed here.
  inner.Expect({"disable_fallback", "disable_additional_properties"});
  bool no_blanks = false;
  if (inner.Read("disable_any_whitespace", &no_blanks) && no_blanks)
    inner.Fail("disable_any_whitespace", "is not supported, wanted false");
  fields.Adopt(inner.status());
  for (const std::string& name : inner.Unknown()) {
    if (const JsonValue* other = inner.Find(name); other != nullptr && !other->is_null())
      fields.Fail(path + name, "is not supported");
  }
}

}  // namespace

void ReadContentRule(Fields& fields, std::optional<ContentRule>& rule) {
  RuleReader reader(fields, rule);
  reader.Read(fields, "guided_json", Kind::kJsonSchema, "guided_json");
  reader.Read(fields, "guided_regex", Kind::kRegex, "guided_regex");
  reader.Read(fields, "guided_choice", Kind::kChoice, "guided_choice");
  reader.Read(fields, "guided_grammar", Kind::kGrammar, "guided_grammar");
  reader.Read(fields, "json_schema", Kind::kJsonSchema, "json_schema");
  reader.Read(fields, "regex", Kind::kRegex, "regex");
  reader.Read(fields, "ebnf", Kind::kGbnf, "ebnf");
  reader.Read(fields, "grammar", Kind::kGrammar, "grammar");
  reader.Read(fields, "structural_tag", Kind::kStructuralTag, "structural_tag");
  ReadStructuredOutputs(fields, reader);
  // Only has a meaning beside one of these, and is how a back end is chosen, of which there is one.
  fields.Expect({"guided_decoding_backend"});
}

bool ReadFormatRule(Fields& fields, const JsonValue& format, std::optional<ContentRule>& rule) {
  const JsonValue* type = format.Find("type");
  const std::string name = type != nullptr && type->is_string() ? type->text() : "";
  RuleReader reader(fields, rule);
  Fields inner(format, "response_format.");
  // Servers call the text itself by several names.
  const auto read = [&](Kind kind, std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (inner.Find(key) == nullptr) continue;
      reader.Read(inner, key, kind, std::string("response_format.") + key);
      return true;
    }
    fields.Fail(std::string("response_format.") + *keys.begin(), "missing, wanted a text");
    return true;
  };
  if (name == "regex") return read(Kind::kRegex, {"pattern", "regex", "value"});
  if (name == "grammar") return read(Kind::kGrammar, {"grammar", "definition", "value"});
  if (name == "ebnf") return read(Kind::kGbnf, {"ebnf", "grammar", "value"});
  if (name == "structural_tag") {
    reader.Take(Kind::kStructuralTag, chat::WriteJson(format), "response_format");
    return true;
  }
  return false;
}

}  // namespace dsv4::server
