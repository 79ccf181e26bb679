// A context-free grammar as a request or a file gives it, whatever its notation: rules of expressions over
// the bytes of a text.
//
//   gbnf.h, lark.h, structural_tag.h   read a notation
//   rule_compiler.h                    makes nodes of a grammar of it
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grammar/regex.h"

namespace dsv4::grammar {

struct ExprNode;
// A value: immutable, parts are shared.
using Expr = std::shared_ptr<const ExprNode>;

struct ExprNode {
  enum class Kind : uint8_t {
    kRegex,
    kRule,
    kJsonSchema,  // A JSON value of the schema.
    kFreeText,    // Any characters, but none of `excluded`.
    kSequence,    // Sequence of none: the empty text.
    kEither,      // Choice among none: no text.
    kRepeat,
  };
  Kind kind = Kind::kSequence;
  Regex regex = nullptr;                   // kRegex.
  uint32_t rule = 0;                       // kRule: an index.
  std::string schema = {};                 // kJsonSchema: its text.
  std::vector<std::string> excluded = {};  // kFreeText.
  std::vector<Expr> parts = {};            // kSequence, kEither; the one part of kRepeat.
  int min = 0;                             // kRepeat; kFreeText, kRule: 1 where it is not empty.
  int max = 0;                             // kRepeat, kFreeText; kUnbounded.
};

Expr RegexExpr(Regex regex);
Expr TextExpr(std::string_view text);
Expr RuleExpr(uint32_t rule);
Expr JsonSchemaExpr(std::string schema);
Expr FreeTextExpr(std::vector<std::string> excluded, int max_chars);
Expr SequenceExpr(std::vector<Expr> parts);
Expr EitherExpr(std::vector<Expr> parts);
Expr RepeatExpr(Expr part, int min, int max);

struct RuleSet {
  struct Rule {
    std::string name;
    Expr body;
  };
  std::vector<Rule> rules;
  uint32_t start = 0;
};

}  // namespace dsv4::grammar
