// Parser of Lark's notation to rules: imports, terminals, regexes, ignored text and JSON.
#include "grammar/rules/lark.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/pattern.h"
#include "grammar/rules/scanner.h"

namespace dsv4::grammar {
namespace {

constexpr int kMaxLarkDepth = 64;

// The terminals of lark's module `common`, in its own notation.
constexpr std::string_view kCommon = R"(
DIGIT: "0".."9"
HEXDIGIT: "a".."f"|"A".."F"|DIGIT
INT: DIGIT+
SIGNED_INT: ["+"|"-"] INT
DECIMAL: INT "." INT? | "." INT
_EXP: ("e"|"E") SIGNED_INT
FLOAT: INT _EXP | DECIMAL _EXP?
SIGNED_FLOAT: ["+"|"-"] FLOAT
NUMBER: FLOAT | INT
SIGNED_NUMBER: ["+"|"-"] NUMBER
ESCAPED_STRING: /"([^"\\\n]|\\[^\n])*"/
LCASE_LETTER: "a".."z"
UCASE_LETTER: "A".."Z"
LETTER: UCASE_LETTER | LCASE_LETTER
WORD: LETTER+
CNAME: ("_"|LETTER) ("_"|LETTER|DIGIT)*
WS_INLINE: (" "|/\t/)+
WS: /[ \t\f\r\n]/+
CR: /\r/
LF: /\n/
NEWLINE: (CR? LF)+
SH_COMMENT: /#[^\n]*/
CPP_COMMENT: /\/\/[^\n]*/
C_COMMENT: /\/\*([^*]|\*+[^*\/])*\*+\//
SQL_COMMENT: /--[^\n]*/
)";

bool IsTerminalName(std::string_view name) {
  const size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

class LarkParser {
 public:
  LarkParser(std::string_view text, bool is_common) : in_(text), is_common_(is_common) {
    RuleId(" ignored");  // No rule of a text can be called so.
    rules_.rules[kIgnoredRule].body = SequenceExpr({});
  }

  Result<RuleSet> Parse() {
    DSV4_TRY(ParseStatements());
    const auto start = ids_.find("start");
    if (start == ids_.end() || rules_.rules[start->second].body == nullptr) {
      return Error(InvalidArgument("grammar: there is no rule \"start\", with which a text begins"));
    }
    for (const RuleSet::Rule& rule : rules_.rules) {
      if (rule.body != nullptr) continue;
      in_.Rewind(first_use_.at(rule.name));
      return Error(in_.Bad(fmt::format("no rule is named \"{}\"", rule.name)));
    }
    rules_.start = start->second;
    if (!ignored_.empty()) {
      const uint32_t spaced = RuleId(" start");
      rules_.rules[spaced].body = SequenceExpr({RuleExpr(kIgnoredRule), RuleExpr(rules_.start)});
      rules_.rules[kIgnoredRule].body = RepeatExpr(EitherExpr(ignored_), 0, kUnbounded);
      rules_.start = spaced;
    }
    return std::move(rules_);
  }

  Status ParseStatements() {
    for (SkipSpace(true); !in_.AtEnd(); SkipSpace(true)) {
      if (in_.Peek() == '%') {
        DSV4_RETURN_IF_ERROR(ParseDirective());
      } else {
        DSV4_RETURN_IF_ERROR(ParseRule());
      }
    }
    return {};
  }

 private:
  uint32_t RuleId(const std::string& name) {
    const auto [found, is_new] = ids_.try_emplace(name, static_cast<uint32_t>(rules_.rules.size()));
    if (is_new) rules_.rules.push_back({name, nullptr});
    return found->second;
  }

  // Blanks and comments; ends of lines too if `lines`.
  void SkipSpace(bool lines) {
    while (!in_.AtEnd()) {
      const char c = in_.Peek();
      const bool line_end = c == '\n' || c == '\r';
      if (in_.StartsWith("//") || c == '#') {
        in_.SkipLine();
      } else if (c == ' ' || c == '\t' || (line_end && lines)) {
        in_.Skip(1);
      } else if (c == '\\' && (in_.Peek(1) == '\n')) {
        in_.Skip(2);
      } else {
        return;
      }
    }
  }

  // Ends of lines in front of a `|`, and inside of groups.
  void SkipToNext(int depth) {
    SkipSpace(depth > 0);
    if (depth > 0) return;
    const size_t at = in_.at();
    SkipSpace(true);
    if (in_.Peek() != '|') in_.Rewind(at);
  }

  Status ParseDirective() {
    if (in_.Take("%llguidance")) {
      SkipSpace(false);
      if (in_.Peek() == '{') {
        DSV4_ASSIGN_OR_RETURN_STATUS(const std::string options, TakeJson());
      }
      return {};
    }
    if (in_.Take("%ignore")) {
      in_terminal_ = true;
      DSV4_ASSIGN_OR_RETURN_STATUS(ignored_.emplace_back(), ParseAlternatives(0));
      return AtLineEnd();
    }
    if (in_.Take("%import")) return ParseImport();
    const std::string name = (in_.Skip(1), in_.TakeName());
    return in_.Bad(fmt::format("%{} is not supported; %import common, %ignore and %json are", name));
  }

  Status AtLineEnd() {
    SkipSpace(false);
    if (in_.AtEnd() || in_.Peek() == '\n' || in_.Peek() == '\r') return {};
    return in_.Bad(fmt::format("'{}' stands where none can", in_.Peek()));
  }

  // "common.INT", "common.INT -> N", "common (INT, WS)".
  Status ParseImport() {
    SkipSpace(false);
    in_.Take(".");
    const std::string module = in_.TakeName();
    if (module != "common")
      return in_.Bad(fmt::format("the module \"{}\" is not supported, only common", module));
    SkipSpace(false);
    if (in_.Take("(")) {
      for (SkipSpace(true); !in_.Take(")"); SkipSpace(true)) {
        const std::string name = in_.TakeName();
        DSV4_RETURN_IF_ERROR(Import(name, name));
        SkipSpace(true);
        in_.Take(",");
      }
      return AtLineEnd();
    }
    if (!in_.Take(".")) return in_.Bad("wanted common.NAME or common (NAME, ...)");
    const std::string name = in_.TakeName();
    std::string own = name;
    SkipSpace(false);
    if (in_.Take("->")) {
      SkipSpace(false);
      own = in_.TakeName();
    }
    DSV4_RETURN_IF_ERROR(Import(name, own));
    return AtLineEnd();
  }

  Status Import(const std::string& name, const std::string& own) {
    LarkParser common(kCommon, /*is_common=*/true);
    DSV4_RETURN_IF_ERROR(common.ParseStatements());
    if (name.empty() || !common.ids_.contains(name) || name.starts_with('_'))
      return in_.Bad(fmt::format("common has no \"{}\"", name));
    const uint32_t id = RuleId(own);
    if (rules_.rules[id].body != nullptr) return in_.Bad(fmt::format("a second rule is named \"{}\"", own));
    rules_.rules[id].body = common.Written(common.ids_.at(name));
    return {};
  }

  // The rule with what it names written out: those of `common` do not lead back to themselves.
  Expr Written(uint32_t rule) const { return Written(rules_.rules[rule].body); }
  Expr Written(const Expr& expr) const {
    if (expr->kind == ExprNode::Kind::kRule) return Written(expr->rule);
    if (expr->parts.empty()) return expr;
    ExprNode node = *expr;
    for (Expr& part : node.parts) part = Written(part);
    return std::make_shared<const ExprNode>(std::move(node));
  }

  Status ParseRule() {
    while (in_.Peek() == '?' || in_.Peek() == '!') in_.Skip(1);
    const std::string name = in_.TakeName();
    if (name.empty()) return in_.Bad("wanted the name of a rule");
    if (in_.Peek() == '{') return in_.Bad("templates are not supported");
    if (in_.Peek() == '[') {
      return in_.Bad("attributes of rules ([max_tokens=...] and such) are not supported");
    }
    if (in_.Take(".")) {
      in_.Take("-");
      DSV4_ASSIGN_OR_RETURN_STATUS(const int priority, in_.TakeCount(1'000'000));
      static_cast<void>(priority);  // Priorities are a lexer's; there is none.
    }
    SkipSpace(false);
    if (!in_.Take(":")) return in_.Bad(fmt::format("wanted : behind \"{}\"", name));
    const uint32_t id = RuleId(name);
    if (rules_.rules[id].body != nullptr) return in_.Bad(fmt::format("a second rule is named \"{}\"", name));
    in_terminal_ = IsTerminalName(name);
    SkipToNext(0);
    in_.Take("|");
    DSV4_ASSIGN_OR_RETURN_STATUS(rules_.rules[id].body, ParseAlternatives(0));
    return AtLineEnd();
  }

  Result<Expr> ParseAlternatives(int depth) {
    if (depth > kMaxLarkDepth)
      return Error(in_.Bad(fmt::format("groups nested deeper than {}", kMaxLarkDepth)));
    std::vector<Expr> options;
    do {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), ParseSequence(depth));
      SkipToNext(depth);
    } while (in_.Take("|"));
    return EitherExpr(std::move(options));
  }

  Result<Expr> ParseSequence(int depth) {
    std::vector<Expr> parts;
    constexpr std::string_view kEnds = "|)]\n\r";
    for (SkipSpace(depth > 0); !in_.AtEnd() && kEnds.find(in_.Peek()) == std::string_view::npos;
         SkipSpace(depth > 0)) {
      if (in_.Take("->")) {
        SkipSpace(false);
        if (in_.TakeName().empty()) return Error(in_.Bad("wanted a name behind ->"));
        continue;
      }
      DSV4_ASSIGN_OR_RETURN(Expr part, ParseAtom(depth));
      DSV4_ASSIGN_OR_RETURN(part, ParseQuantifiers(std::move(part)));
      parts.push_back(std::move(part));
    }
    return SequenceExpr(std::move(parts));
  }

  Result<Expr> ParseQuantifiers(Expr part) {
    for (;;) {
      SkipSpace(false);
      if (in_.Take("*")) {
        part = RepeatExpr(std::move(part), 0, kUnbounded);
      } else if (in_.Take("+")) {
        part = RepeatExpr(std::move(part), 1, kUnbounded);
      } else if (in_.Take("?")) {
        part = RepeatExpr(std::move(part), 0, 1);
      } else if (in_.Peek() == '~' || in_.Peek() == '{') {
        DSV4_ASSIGN_OR_RETURN(part, ParseCounted(std::move(part)));
      } else {
        return part;
      }
    }
  }

  // "~ 3", "~ 1..3", and "{3}", "{1,3}", "{1,}" of llguidance.
  Result<Expr> ParseCounted(Expr part) {
    const bool braces = in_.Peek() == '{';
    in_.Skip(1);
    SkipSpace(false);
    int min = 0;
    if (in_.Peek() != ',') {
      DSV4_ASSIGN_OR_RETURN(min, in_.TakeCount(kMostRepeats));
    }
    int max = min;
    SkipSpace(false);
    if (in_.Take(braces ? "," : "..")) {
      SkipSpace(false);
      max = kUnbounded;
      if (!braces || in_.Peek() != '}') {
        DSV4_ASSIGN_OR_RETURN(max, in_.TakeCount(kMostRepeats));
        SkipSpace(false);
      }
    }
    if (braces && !in_.Take("}")) return Error(in_.Bad("a repetition is not closed"));
    if (max != kUnbounded && max < min) return Error(in_.Bad("a repetition ends before it begins"));
    return RepeatExpr(std::move(part), min, max);
  }

  Result<Expr> ParseAtom(int depth) {
    const char c = in_.Peek();
    if (c == '(' || c == '[') {
      in_.Skip(1);
      DSV4_ASSIGN_OR_RETURN(Expr group, ParseAlternatives(depth + 1));
      SkipSpace(true);
      if (!in_.Take(c == '(' ? ")" : "]")) return Error(in_.Bad("a group is not closed"));
      return c == '(' ? group : RepeatExpr(std::move(group), 0, 1);
    }
    if (c == '"') return ParseLiteral();
    if (c == '/') return ParseRegex();
    if (in_.Take("%json")) {
      SkipSpace(true);
      DSV4_ASSIGN_OR_RETURN(std::string schema, TakeJson());
      return Lexeme(JsonSchemaExpr(std::move(schema)));
    }
    if (c == '<') return Error(in_.Bad("tokens cannot be asked for, only text"));
    const size_t at = in_.at();
    const std::string name = in_.TakeName();
    if (name.empty()) return Error(in_.Bad(fmt::format("'{}' stands where none can", c)));
    if (in_.Peek() == '{') {
      const char digit = in_.Peek(1);
      if (digit != ',' && (digit < '0' || digit > '9')) return Error(in_.Bad("templates are not supported"));
    }
    const uint32_t id = RuleId(name);
    first_use_.try_emplace(name, at);
    Expr rule = RuleExpr(id);
    return IsTerminalName(name) ? Lexeme(std::move(rule)) : rule;
  }

  // A JSON text, which ends where its brackets do.
  Result<std::string> TakeJson() {
    const std::string_view rest = in_.rest();
    size_t end = 0;
    int depth = 0;
    bool quoted = false;
    for (; end < rest.size(); ++end) {
      const char c = rest[end];
      if (quoted) {
        if (c == '\\') ++end;
        quoted = c != '"';
        continue;
      }
      quoted = c == '"';
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth <= 0) break;
      if (depth == 0) return Error(in_.Bad("wanted a JSON object"));
    }
    if (end >= rest.size()) return Error(in_.Bad("a JSON text is not closed"));
    std::string text(rest.substr(0, end + 1));
    if (const auto json = ParseJson(text, "%json"); !json) return Error(in_.Bad(json.error().message()));
    in_.Skip(end + 1);
    return text;
  }

  Result<Expr> ParseLiteral() {
    DSV4_ASSIGN_OR_RETURN(const std::string text, TakeQuoted());
    if (in_.Take("..")) {
      DSV4_ASSIGN_OR_RETURN(const std::string last_text, TakeQuoted());
      std::u32string first;
      std::u32string last;
      if (!ToCodePoints(text, first) || !ToCodePoints(last_text, last) || first.size() != 1 ||
          last.size() != 1 || first[0] > last[0]) {
        return Error(in_.Bad("not a range of characters"));
      }
      DSV4_ASSIGN_OR_RETURN(Regex regex, in_.Char({{first[0], last[0]}}));
      return Lexeme(RegexExpr(std::move(regex)));
    }
    if (!in_.Take("i")) return Lexeme(TextExpr(text));
    std::vector<Regex> parts;
    for (const char c : text) {
      const char lower = static_cast<char>(c | 0x20);
      const bool letter = lower >= 'a' && lower <= 'z';
      parts.push_back(letter ? Either({Literal(std::string(1, lower)),
                                       Literal(std::string(1, static_cast<char>(lower - 0x20)))})
                             : Literal(std::string(1, c)));
    }
    return Lexeme(RegexExpr(Concat(std::move(parts))));
  }

  Result<std::string> TakeQuoted() {
    if (!in_.Take("\"")) return Error(in_.Bad("wanted a literal"));
    std::string text;
    while (in_.Peek() != '"') {
      if (in_.AtEnd() || in_.Peek() == '\n') return Error(in_.Bad("a literal is not closed"));
      const char c = in_.Peek();
      in_.Skip(1);
      if (c != '\\') {
        text.push_back(c);
        continue;
      }
      const char escaped = in_.Peek();
      in_.Skip(1);
      const int digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : escaped == 'U' ? 8 : 0;
      constexpr std::string_view kNames = "nrtfv0\\\"'/";
      constexpr std::string_view kValues = {"\n\r\t\f\v\0\\\"'/", 10};
      if (digits > 0) {
        DSV4_ASSIGN_OR_RETURN(const char32_t code, in_.TakeHex(digits));
        AppendUtf8(code, &text);
      } else if (const size_t known = kNames.find(escaped); known != std::string_view::npos) {
        text.push_back(kValues[known]);
      } else {
        return Error(in_.Bad(fmt::format("the escape \\{} is not supported", escaped)));
      }
    }
    in_.Skip(1);
    return text;
  }

  Result<Expr> ParseRegex() {
    in_.Skip(1);
    std::string pattern;
    bool in_class = false;
    while (in_class || in_.Peek() != '/') {
      const char c = in_.Peek();
      if (in_.AtEnd() || c == '\n') return Error(in_.Bad("a regex is not closed"));
      if (c == '\\') {
        if (in_.Peek(1) != '/') pattern.push_back(c);
        in_.Skip(1);
        if (in_.AtEnd()) return Error(in_.Bad("a regex is not closed"));
      } else if (c == '[' || c == ']') {
        in_class = c == '[';
      }
      pattern.push_back(in_.Peek());
      in_.Skip(1);
    }
    in_.Skip(1);
    PatternFlags flags = {.newline_ends_lines = true};
    for (;; in_.Skip(1)) {
      const char flag = in_.Peek();
      if (flag == 'i') flags.ignore_case = true;
      if (flag == 's') flags.dot_all = true;
      if (flag == 'x') return Error(in_.Bad("the flag x of a regex is not supported"));
      if (flag == '\0' || std::string_view("imslu").find(flag) == std::string_view::npos) break;
    }
    const Result<Regex> regex = WholePattern(pattern, flags);
    if (!regex) return Error(in_.Bad(regex.error().message()));
    return Lexeme(RegexExpr(*regex));
  }

  // Text that a lexer would read in one piece, as a rule has it: what is ignored may follow.
  Expr Lexeme(Expr terminal) {
    if (in_terminal_ || is_common_) return terminal;
    return SequenceExpr({std::move(terminal), RuleExpr(kIgnoredRule)});
  }

  static constexpr uint32_t kIgnoredRule = 0;

  Scanner in_;
  bool is_common_;
  bool in_terminal_ = false;  // Reading of a terminal.
  RuleSet rules_;
  std::map<std::string, uint32_t> ids_;
  std::map<std::string, size_t> first_use_;  // Positions of first uses in the text.
  std::vector<Expr> ignored_;
};

}  // namespace

Result<RuleSet> ParseLark(std::string_view text) {
  DSV4_TRY(Scanner::CheckText(text));
  return LarkParser(text, /*is_common=*/false).Parse();
}

}  // namespace dsv4::grammar
