// Structural tags, as xgrammar, vLLM and SGLang take them: free text in which some openings must be followed
// by content of a form.
//
//   {"type": "structural_tag", "format": F}                                        the newer form
//   {"structures": [{"begin": B, "schema": S, "end": E}, ...], "triggers": [T]}    the older one, with `type` or without
//
// F is one of
//   const_string value | json_schema json_schema | regex pattern | grammar grammar (GBNF or Lark)
//   any_text excludes, max_chars
//   sequence elements | or elements | optional, plus, star content | repeat min, max, content
//   tag begin, content, end (a text or a list)
//   triggered_tags triggers, tags, at_least_one, stop_after_first, excludes
//   tags_with_separator tags, separator, at_least_one, stop_after_first
//   dispatch rules ([[text, F], ...]), loop, excludes
//
// Free text is any characters, and no added token. In front of an end, free text does not contain it. Formats
// of tokens, and styles of json_schema other than json, are errors that name their position.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/rules/rule_set.h"

namespace dsv4::grammar {

// `text` is JSON. InvalidArgument names the position by its JSON pointer; ResourceExhausted for what is too
// large.
Result<RuleSet> ParseStructuralTag(std::string_view text);

}  // namespace dsv4::grammar
