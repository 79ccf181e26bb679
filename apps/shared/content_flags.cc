// Content rule from a command's options and the files they name.
#include "apps/shared/content_flags.h"

#include "base/json.h"
#include "base/read_file.h"

namespace dsv4::apps {

Result<std::optional<grammar::ContentRule>> ReadContentRule(const ContentFlags& flags) {
  using Kind = grammar::ContentRule::Kind;
  grammar::ContentRule rule;
  const auto from_file = [&](const std::string& path, Kind kind) -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(rule.text, ReadFile(path, FileKind::kAny));
    rule.kind = kind;
    rule.label = path;
    return {};
  };
  if (!flags.any()) return std::nullopt;
  if (flags.json_object) {
    rule = {.kind = Kind::kJsonSchema, .text = R"({"type": "object"})", .label = "--json-object"};
  } else if (!flags.json_schema_path.empty()) {
    DSV4_TRY(from_file(flags.json_schema_path, Kind::kJsonSchema));
  } else if (!flags.regex.empty()) {
    rule = {.kind = Kind::kRegex, .text = flags.regex, .label = "--regex"};
  } else if (!flags.choices.empty()) {
    rule = {.kind = Kind::kChoice, .text = JsonText(Json(flags.choices)), .label = "--choice"};
  } else if (!flags.grammar_path.empty()) {
    DSV4_TRY(from_file(flags.grammar_path, Kind::kGrammar));
  } else {
    DSV4_TRY(from_file(flags.structural_tag_path, Kind::kStructuralTag));
  }
  DSV4_TRY(grammar::CheckContent(rule));
  return rule;
}

}  // namespace dsv4::apps
