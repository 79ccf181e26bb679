// Rules for the content of an answer, in any of the ways that requests say it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dsv4::grammar {

struct ContentRule {
  enum class Kind : uint8_t {
    kJsonSchema,  // A JSON schema.
    kRegex,       // A regular expression that all of it matches.
    kChoice,      // A JSON list of texts, one of which it is.
    kGrammar,     // GBNF or Lark.
    kGbnf,
    kLark,
    kStructuralTag,  // A JSON text, see structural_tag.h.
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;
  std::string label;  // Name by which errors call it: "guided_regex".
  bool strict =
      false;  // kJsonSchema: a `format` that is not known is an error, where otherwise it says nothing.
  bool operator==(const ContentRule&) const = default;
};

// Whether a grammar can be made of the rule alone; the same errors as CompileAnswer, and one where no text
// satisfies it.
Status CheckContent(const ContentRule& rule);

}  // namespace dsv4::grammar
