// Constructors of the expressions that rules are made of.
#include "grammar/rules/rule_set.h"

#include <utility>

namespace dsv4::grammar {
namespace {

using Kind = ExprNode::Kind;

Expr Make(ExprNode node) { return std::make_shared<const ExprNode>(std::move(node)); }

}  // namespace

Expr RegexExpr(Regex regex) { return Make({.kind = Kind::kRegex, .regex = std::move(regex)}); }
Expr TextExpr(std::string_view text) { return RegexExpr(Literal(text)); }
Expr RuleExpr(uint32_t rule) { return Make({.kind = Kind::kRule, .rule = rule}); }
Expr JsonSchemaExpr(std::string schema) {
  return Make({.kind = Kind::kJsonSchema, .schema = std::move(schema)});
}
Expr FreeTextExpr(std::vector<std::string> excluded, int max_chars) {
  return Make({.kind = Kind::kFreeText, .excluded = std::move(excluded), .max = max_chars});
}
Expr SequenceExpr(std::vector<Expr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return Make({.kind = Kind::kSequence, .parts = std::move(parts)});
}
Expr EitherExpr(std::vector<Expr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return Make({.kind = Kind::kEither, .parts = std::move(parts)});
}
Expr RepeatExpr(Expr part, int min, int max) {
  return Make({.kind = Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}

}  // namespace dsv4::grammar
