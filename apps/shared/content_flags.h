// Rules for the content of an answer, as options of a command say it: a JSON schema, a regular expression, a
// choice, a grammar.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/rules/content_rule.h"

namespace dsv4::apps {

// One of them at most is given.
struct ContentFlags {
  std::string json_schema_path;
  bool json_object = false;
  std::string regex;
  std::vector<std::string> choices;
  std::string grammar_path;         // GBNF or Lark.
  std::string structural_tag_path;  // JSON.

  bool from_file() const {
    return !json_schema_path.empty() || !grammar_path.empty() || !structural_tag_path.empty();
  }
  bool any() const { return from_file() || json_object || !regex.empty() || !choices.empty(); }
};

// Reads the file and checks the rule, which needs no model; empty where none is given. Errors name the file
// or the option.
Result<std::optional<grammar::ContentRule>> ReadContentRule(const ContentFlags& flags);

}  // namespace dsv4::apps
