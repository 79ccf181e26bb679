// Parser of structural tags, old and new form, to rules.
#include "grammar/rules/structural_tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/pattern.h"
#include "grammar/rules/content.h"
#include "grammar/rules/scanner.h"
#include "grammar/schema_keywords.h"

namespace dsv4::grammar {
namespace {

constexpr int kMaxTagNesting = 32;
constexpr int kMaxRepeat = 10'000;

Status Bad(const std::string& pointer, std::string_view what) {
  return InvalidArgument(
      fmt::format("structural tag, {}: {}", pointer.empty() ? "top level" : pointer, what));
}

class TagParser {
 public:
  Result<RuleSet> Parse(const Json& document) {
    if (!document.is_object()) return Error(Bad("", "wanted an object"));
    Expr body;
    if (document.contains("structures")) {
      DSV4_ASSIGN_OR_RETURN(body, Structures(document));
    } else {
      if (!document.contains("format"))
        return Error(Bad("", "wanted \"format\", or \"structures\" with \"triggers\""));
      DSV4_ASSIGN_OR_RETURN(body, Format(document["format"], "/format", {}, 0));
    }
    rules_.start = static_cast<uint32_t>(rules_.rules.size());
    rules_.rules.push_back({"structural tag", std::move(body)});
    return std::move(rules_);
  }

 private:
  using Texts = std::vector<std::string>;
  struct Tag {
    std::string begin;
    Expr rest;  // Expression that follows the beginning.
  };

  // Only these members, so that nothing is passed over.
  static Status CheckMembers(const Json& object, const std::string& pointer,
                             std::initializer_list<std::string_view> known) {
    for (const auto& [name, value] : object.items()) {
      if (name != "type" && std::find(known.begin(), known.end(), name) == known.end() && !value.is_null())
        return Bad(Below(pointer, name), "is not supported");
    }
    return {};
  }
  static Result<std::string> Text(const Json& object, const char* key, const std::string& pointer) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) return Error(Bad(Below(pointer, key), "wanted a text"));
    return found->get<std::string>();
  }
  static Result<Texts> TextList(const Json& object, const char* key, const std::string& pointer) {
    Texts out;
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return out;
    if (!found->is_array()) return Error(Bad(Below(pointer, key), "wanted a list of texts"));
    for (const Json& text : *found) {
      if (!text.is_string() || text.get_ref<const std::string&>().empty())
        return Error(Bad(Below(pointer, key), "wanted a list of texts that are not empty"));
      out.push_back(text);
    }
    return out;
  }
  static Result<bool> Flag(const Json& object, const char* key, const std::string& pointer, bool otherwise) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) return Error(Bad(Below(pointer, key), "wanted true or false"));
    return found->get<bool>();
  }
  static Result<const Json*> List(const Json& object, const char* key, const std::string& pointer) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_array() || found->empty())
      return Error(Bad(Below(pointer, key), "wanted a list that is not empty"));
    return &*found;
  }
  static Result<int> Count(const Json& object, const char* key, const std::string& pointer, int least) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number_integer() || *found < least || *found > kMaxRepeat)
      return Error(Bad(Below(pointer, key), fmt::format("wanted a count of at most {}", kMaxRepeat)));
    return found->get<int>();
  }
  Result<Expr> Schema(const Json& schema, const std::string& pointer) {
    if (schema.is_string()) return JsonSchemaExpr(schema.get<std::string>());
    if (!schema.is_object() && !schema.is_boolean()) return Error(Bad(pointer, "wanted a schema"));
    return JsonSchemaExpr(JsonText(schema));
  }

  // `ends`: what free text here must not contain, because it ends it.
  Result<Expr> Format(const Json& format, const std::string& pointer, const Texts& ends, int depth) {
    if (depth > kMaxTagNesting) return Error(Bad(pointer, "nested too deeply"));
    if (!format.is_object()) return Error(Bad(pointer, "wanted an object"));
    DSV4_ASSIGN_OR_RETURN(const std::string type, Text(format, "type", pointer));
    const auto inner = [&](const char* key, const Texts& inner_ends) -> Result<Expr> {
      const auto found = format.find(key);
      if (found == format.end()) return Error(Bad(Below(pointer, key), "missing"));
      return Format(*found, Below(pointer, key), inner_ends, depth + 1);
    };
    if (type == "const_string") {
      DSV4_TRY(CheckMembers(format, pointer, {"value"}));
      DSV4_ASSIGN_OR_RETURN(const std::string value, Text(format, "value", pointer));
      return TextExpr(value);
    }
    if (type == "json_schema") {
      DSV4_TRY(CheckMembers(format, pointer, {"json_schema", "style"}));
      if (format.value("style", Json("json")) != "json")
        return Error(Bad(Below(pointer, "style"), "only json is supported"));
      const auto found = format.find("json_schema");
      if (found == format.end()) return Error(Bad(Below(pointer, "json_schema"), "missing"));
      return Schema(*found, Below(pointer, "json_schema"));
    }
    if (type == "regex") {
      DSV4_TRY(CheckMembers(format, pointer, {"pattern"}));
      DSV4_ASSIGN_OR_RETURN(const std::string pattern, Text(format, "pattern", pointer));
      const Result<Regex> regex = WholePattern(pattern);
      if (!regex) return Error(Bad(Below(pointer, "pattern"), regex.error().message()));
      return RegexExpr(*regex);
    }
    if (type == "grammar") {
      DSV4_TRY(CheckMembers(format, pointer, {"grammar"}));
      DSV4_ASSIGN_OR_RETURN(const std::string grammar, Text(format, "grammar", pointer));
      Result<RuleSet> rules = ParseGrammar(grammar);
      if (!rules) return Error(Bad(Below(pointer, "grammar"), rules.error().message()));
      return Embedded(std::move(*rules));
    }
    if (type == "any_text") {
      DSV4_TRY(CheckMembers(format, pointer, {"excludes", "max_chars"}));
      DSV4_ASSIGN_OR_RETURN(Texts excluded, TextList(format, "excludes", pointer));
      excluded.insert(excluded.end(), ends.begin(), ends.end());
      int max = kUnbounded;
      if (const auto found = format.find("max_chars"); found != format.end() && !found->is_null()) {
        DSV4_ASSIGN_OR_RETURN(max, Count(format, "max_chars", pointer, 0));
      }
      return FreeTextExpr(std::move(excluded), max);
    }
    if (type == "sequence" || type == "or") {
      DSV4_TRY(CheckMembers(format, pointer, {"elements"}));
      DSV4_ASSIGN_OR_RETURN(const Json* elements, List(format, "elements", pointer));
      std::vector<Expr> parts;
      for (size_t i = 0; i < elements->size(); ++i) {
        const std::string at = Below(Below(pointer, "elements"), i);
        // Text in front of a text ends at it.
        Texts inner_ends = ends;
        const Json* next = type == "sequence" && i + 1 < elements->size() ? &(*elements)[i + 1] : nullptr;
        if (next != nullptr && next->is_object() && next->value("type", Json()) == "const_string" &&
            next->value("value", Json()).is_string() && !next->value("value", std::string()).empty()) {
          inner_ends = {next->value("value", std::string())};
        } else if (next != nullptr) {
          inner_ends.clear();
        }
        DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), Format((*elements)[i], at, inner_ends, depth + 1));
      }
      return type == "or" ? EitherExpr(std::move(parts)) : SequenceExpr(std::move(parts));
    }
    if (type == "optional" || type == "plus" || type == "star" || type == "repeat") {
      DSV4_TRY(CheckMembers(format, pointer, {"content", "min", "max"}));
      DSV4_ASSIGN_OR_RETURN(Expr content, inner("content", ends));
      int min = type == "plus" ? 1 : 0;
      int max = type == "optional" ? 1 : kUnbounded;
      if (type == "repeat") {
        DSV4_ASSIGN_OR_RETURN(min, Count(format, "min", pointer, 0));
        DSV4_ASSIGN_OR_RETURN(max, Count(format, "max", pointer, kUnbounded));
        if (max != kUnbounded && max < min) return Error(Bad(pointer, "max is less than min"));
      }
      return RepeatExpr(std::move(content), min, max);
    }
    if (type == "tag") {
      DSV4_ASSIGN_OR_RETURN(const Tag tag, ReadTag(format, pointer, depth));
      return SequenceExpr({TextExpr(tag.begin), tag.rest});
    }
    if (type == "triggered_tags") return TriggeredTags(format, pointer, ends, depth);
    if (type == "tags_with_separator") return SeparatedTags(format, pointer, depth);
    if (type == "dispatch") return Dispatch(format, pointer, ends, depth);
    return Error(Bad(Below(pointer, "type"), fmt::format("\"{}\" is not supported", type)));
  }

  Result<Tag> ReadTag(const Json& tag, const std::string& pointer, int depth) {
    if (!tag.is_object()) return Error(Bad(pointer, "wanted a tag"));
    DSV4_TRY(CheckMembers(tag, pointer, {"begin", "content", "end"}));
    Tag out;
    DSV4_ASSIGN_OR_RETURN(out.begin, Text(tag, "begin", pointer));
    Texts ends;
    if (tag.contains("end") && tag["end"].is_array()) {
      DSV4_ASSIGN_OR_RETURN(ends, TextList(tag, "end", pointer));
    } else {
      DSV4_ASSIGN_OR_RETURN(ends.emplace_back(), Text(tag, "end", pointer));
    }
    Texts inner_ends = ends;
    std::erase(inner_ends, "");
    if (!tag.contains("content")) return Error(Bad(Below(pointer, "content"), "missing"));
    DSV4_ASSIGN_OR_RETURN(Expr content,
                          Format(tag["content"], Below(pointer, "content"), inner_ends, depth + 1));
    std::vector<Expr> closers;
    for (const std::string& end : ends) closers.push_back(TextExpr(end));
    out.rest = SequenceExpr({std::move(content), EitherExpr(std::move(closers))});
    return out;
  }

  Result<std::vector<Tag>> ReadTags(const Json& format, const std::string& pointer, int depth) {
    DSV4_ASSIGN_OR_RETURN(const Json* list, List(format, "tags", pointer));
    std::vector<Tag> tags;
    for (size_t i = 0; i < list->size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(tags.emplace_back(),
                            ReadTag((*list)[i], Below(Below(pointer, "tags"), i), depth + 1));
    }
    return tags;
  }

  // Free text, in it tags that each begin with a trigger: what has begun as one must be one.
  static Result<Expr> Triggered(const Texts& triggers, const std::vector<Tag>& tags, Texts excluded,
                                bool at_least_one, bool stop_after_first, const std::string& pointer) {
    if (triggers.empty()) return Error(Bad(Below(pointer, "triggers"), "wanted a list that is not empty"));
    std::vector<Expr> options;
    for (const Tag& tag : tags) {
      const bool triggered = std::any_of(triggers.begin(), triggers.end(),
                                         [&](const std::string& one) { return tag.begin.starts_with(one); });
      if (!triggered)
        return Error(Bad(pointer, fmt::format("the tag \"{}\" begins with none of the triggers", tag.begin)));
      options.push_back(SequenceExpr({TextExpr(tag.begin), tag.rest}));
    }
    excluded.insert(excluded.end(), triggers.begin(), triggers.end());
    const Expr text = FreeTextExpr(std::move(excluded), kUnbounded);
    const Expr one = SequenceExpr({text, EitherExpr(std::move(options))});
    if (stop_after_first) return at_least_one ? one : EitherExpr({one, text});
    return SequenceExpr({RepeatExpr(one, at_least_one ? 1 : 0, kUnbounded), text});
  }

  Result<Expr> TriggeredTags(const Json& format, const std::string& pointer, const Texts& ends, int depth) {
    DSV4_TRY(
        CheckMembers(format, pointer, {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}));
    DSV4_ASSIGN_OR_RETURN(const Texts triggers, TextList(format, "triggers", pointer));
    DSV4_ASSIGN_OR_RETURN(Texts excluded, TextList(format, "excludes", pointer));
    DSV4_ASSIGN_OR_RETURN(const bool at_least_one, Flag(format, "at_least_one", pointer, false));
    DSV4_ASSIGN_OR_RETURN(const bool stop_after_first, Flag(format, "stop_after_first", pointer, false));
    DSV4_ASSIGN_OR_RETURN(const std::vector<Tag> tags, ReadTags(format, pointer, depth));
    excluded.insert(excluded.end(), ends.begin(), ends.end());
    return Triggered(triggers, tags, std::move(excluded), at_least_one, stop_after_first, pointer);
  }

  Result<Expr> SeparatedTags(const Json& format, const std::string& pointer, int depth) {
    DSV4_TRY(CheckMembers(format, pointer, {"tags", "separator", "at_least_one", "stop_after_first"}));
    DSV4_ASSIGN_OR_RETURN(const std::string separator, Text(format, "separator", pointer));
    DSV4_ASSIGN_OR_RETURN(const bool at_least_one, Flag(format, "at_least_one", pointer, false));
    DSV4_ASSIGN_OR_RETURN(const bool stop_after_first, Flag(format, "stop_after_first", pointer, false));
    DSV4_ASSIGN_OR_RETURN(const std::vector<Tag> tags, ReadTags(format, pointer, depth));
    std::vector<Expr> options;
    for (const Tag& tag : tags) options.push_back(SequenceExpr({TextExpr(tag.begin), tag.rest}));
    const Expr one = EitherExpr(std::move(options));
    const Expr more = SequenceExpr({TextExpr(separator), one});
    const Expr all = SequenceExpr({one, RepeatExpr(more, 0, stop_after_first ? 0 : kUnbounded)});
    return at_least_one ? all : RepeatExpr(all, 0, 1);
  }

  Result<Expr> Dispatch(const Json& format, const std::string& pointer, const Texts& ends, int depth) {
    DSV4_TRY(CheckMembers(format, pointer, {"rules", "loop", "excludes"}));
    DSV4_ASSIGN_OR_RETURN(const Json* list, List(format, "rules", pointer));
    DSV4_ASSIGN_OR_RETURN(Texts excluded, TextList(format, "excludes", pointer));
    DSV4_ASSIGN_OR_RETURN(const bool loop, Flag(format, "loop", pointer, true));
    excluded.insert(excluded.end(), ends.begin(), ends.end());
    Texts triggers;
    std::vector<Tag> tags;
    for (size_t i = 0; i < list->size(); ++i) {
      const Json& rule = (*list)[i];
      const std::string at = Below(Below(pointer, "rules"), i);
      if (!rule.is_array() || rule.size() != 2 || !rule[0].is_string() ||
          rule[0].get_ref<const std::string&>().empty())
        return Error(Bad(at, "wanted a pair of a text and a format"));
      DSV4_ASSIGN_OR_RETURN(Expr content, Format(rule[1], Below(at, 1), {}, depth + 1));
      triggers.push_back(rule[0]);
      tags.push_back({rule[0], std::move(content)});
    }
    return Triggered(triggers, tags, std::move(excluded), /*at_least_one=*/false, !loop, pointer);
  }

  Result<Expr> Structures(const Json& document) {
    DSV4_TRY(CheckMembers(document, "", {"structures", "triggers"}));
    DSV4_ASSIGN_OR_RETURN(const Texts triggers, TextList(document, "triggers", ""));
    DSV4_ASSIGN_OR_RETURN(const Json* list, List(document, "structures", ""));
    std::vector<Tag> tags;
    for (size_t i = 0; i < list->size(); ++i) {
      const Json& item = (*list)[i];
      const std::string at = Below("/structures", i);
      if (!item.is_object()) return Error(Bad(at, "wanted an object"));
      DSV4_TRY(CheckMembers(item, at, {"begin", "schema", "end"}));
      Tag tag;
      DSV4_ASSIGN_OR_RETURN(tag.begin, Text(item, "begin", at));
      DSV4_ASSIGN_OR_RETURN(const std::string end, Text(item, "end", at));
      DSV4_ASSIGN_OR_RETURN(Expr schema, Schema(item.value("schema", Json::object()), Below(at, "schema")));
      tag.rest = SequenceExpr({std::move(schema), TextExpr(end)});
      tags.push_back(std::move(tag));
    }
    return Triggered(triggers, tags, {}, false, false, "");
  }

  // The rules of a grammar in it, behind those that are there.
  Expr Embedded(RuleSet other) {
    const auto shift = static_cast<uint32_t>(rules_.rules.size());
    const auto shifted = [&](const auto& self, const Expr& expr) -> Expr {
      if (expr->kind != ExprNode::Kind::kRule && expr->parts.empty()) return expr;
      ExprNode node = *expr;
      node.rule += shift;
      for (Expr& part : node.parts) part = self(self, part);
      return std::make_shared<const ExprNode>(std::move(node));
    };
    for (RuleSet::Rule& rule : other.rules)
      rules_.rules.push_back({std::move(rule.name), shifted(shifted, rule.body)});
    return RuleExpr(other.start + shift);
  }

  RuleSet rules_;
};

}  // namespace

Result<RuleSet> ParseStructuralTag(std::string_view text) {
  DSV4_TRY(Scanner::CheckText(text));
  DSV4_ASSIGN_OR_RETURN(const Json document, ParseJson(text, "structural tag"));
  return TagParser().Parse(document);
}

}  // namespace dsv4::grammar
