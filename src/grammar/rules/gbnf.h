// GBNF, the grammars of llama.cpp, and with a few more words the EBNF of xgrammar, vLLM and SGLang.
//
//   root   ::= greeting (", " name)* "!"      alternatives with |, groups, * + ? {m} {m,} {m,n}
//   name   ::= [A-Z] [a-z]{1,20} | 'it'       classes with ranges, ^ and escapes; literals in either quotes
//   # a comment
//
// Escapes: \n \r \t \\ \" \' \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH; in classes \d \w \s too. `.` is any
// character. A rule ends where the next begins. The text begins with the rule `root`. Not understood, and an
// error: tokens by name or id, look-ahead `(=`, TagDispatch.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/rules/rule_set.h"

namespace dsv4::grammar {

// InvalidArgument with the line, for what is malformed or names no rule; ResourceExhausted for what is too
// large to read.
Result<RuleSet> ParseGbnf(std::string_view text);

}  // namespace dsv4::grammar
