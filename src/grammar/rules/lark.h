// Lark's notation, as OpenAI's custom tools, llguidance and vLLM take it.
//
//   start: greeting ("," NAME)* "!"?        rules in small letters, terminals in capitals; an alternative may stand on a line of its own
//   greeting: "hello"i | /good [a-z]+/      literals with i, regexes with i, s, m, x, u, l
//   NAME: /[A-Z][a-z]*/                     * + ? ~ 3 ~ 1..3, groups, [maybe], "a".."z", templates no
//   %import common (INT, WS)                and %import common.INT -> N
//   %ignore WS                              between terminals, in front of the first and behind the last
//   json: %json { "type": "object" }        a value of a schema; %regex as llguidance has it is not understood
//   // a comment, # too
//
// Priorities, aliases (`-> name`), `?` and `!` in front of a rule are read and change no text. There is no
// lexer: a terminal is a rule like others, so two names may stand side by side. The text begins with the rule
// `start`. A line `%llguidance {...}` at the top is passed over.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/rules/rule_set.h"

namespace dsv4::grammar {

// InvalidArgument with the line, for what is malformed or names no rule; ResourceExhausted for what is too
// large to read.
Result<RuleSet> ParseLark(std::string_view text);

}  // namespace dsv4::grammar
