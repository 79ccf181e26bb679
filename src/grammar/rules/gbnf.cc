// Parser of GBNF and xgrammar's EBNF to rules.
#include "grammar/rules/gbnf.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "grammar/rules/scanner.h"

namespace dsv4::grammar {
namespace {

constexpr int kMaxGroupDepth = 64;
constexpr std::string_view kNameChars = "-";

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : in_(text) {}

  Result<RuleSet> Parse() {
    SkipSpace();
    while (!in_.AtEnd()) {
      DSV4_TRY(ParseRule());
    }
    const auto root = ids_.find("root");
    if (root == ids_.end()) {
      return Error(InvalidArgument("grammar: there is no rule \"root\", with which a text begins"));
    }
    for (const RuleSet::Rule& rule : rules_.rules) {
      if (rule.body == nullptr) {
        in_.Rewind(first_use_.at(rule.name));
        return Error(in_.Bad(fmt::format("no rule is named \"{}\"", rule.name)));
      }
    }
    rules_.start = root->second;
    return std::move(rules_);
  }

 private:
  uint32_t RuleId(const std::string& name) {
    const auto [found, is_new] = ids_.try_emplace(name, static_cast<uint32_t>(rules_.rules.size()));
    if (is_new) rules_.rules.push_back({name, nullptr});
    return found->second;
  }

  // Blanks, ends of lines and comments.
  void SkipSpace() {
    for (;;) {
      const char c = in_.Peek();
      if (c == '#') {
        in_.SkipLine();
      } else if (!in_.AtEnd() && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
        in_.Skip(1);
      } else {
        return;
      }
    }
  }

  // Whether the next rule begins here. Nothing is read.
  bool AtRule() {
    const size_t at = in_.at();
    const bool named = !in_.TakeName(kNameChars).empty();
    while (in_.Peek() == ' ' || in_.Peek() == '\t') in_.Skip(1);
    const bool is_rule = named && in_.StartsWith("::=");
    in_.Rewind(at);
    return is_rule;
  }

  Status ParseRule() {
    const std::string name = in_.TakeName(kNameChars);
    if (name.empty()) return in_.Bad("wanted the name of a rule");
    SkipSpace();
    if (!in_.Take("::=")) return in_.Bad(fmt::format("wanted ::= behind \"{}\"", name));
    const uint32_t id = RuleId(name);
    if (rules_.rules[id].body != nullptr) return in_.Bad(fmt::format("a second rule is named \"{}\"", name));
    DSV4_ASSIGN_OR_RETURN_STATUS(Expr body, ParseAlternatives(0));
    if (!in_.AtEnd() && !AtRule()) return in_.Bad(fmt::format("'{}' stands where none can", in_.Peek()));
    rules_.rules[id].body = std::move(body);
    return {};
  }

  Result<Expr> ParseAlternatives(int depth) {
    if (depth > kMaxGroupDepth)
      return Error(in_.Bad(fmt::format("groups nested deeper than {}", kMaxGroupDepth)));
    std::vector<Expr> options;
    do {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), ParseSequence(depth));
    } while (in_.Take("|"));
    return EitherExpr(std::move(options));
  }

  Result<Expr> ParseSequence(int depth) {
    std::vector<Expr> parts;
    for (SkipSpace(); !in_.AtEnd() && in_.Peek() != '|' && in_.Peek() != ')' && !AtRule(); SkipSpace()) {
      DSV4_ASSIGN_OR_RETURN(Expr part, ParseAtom(depth));
      for (SkipSpace(); in_.Peek() == '*' || in_.Peek() == '+' || in_.Peek() == '?' || in_.Peek() == '{';
           SkipSpace()) {
        DSV4_ASSIGN_OR_RETURN(part, ParseQuantifier(std::move(part)));
      }
      parts.push_back(std::move(part));
    }
    return SequenceExpr(std::move(parts));
  }

  Result<Expr> ParseQuantifier(Expr part) {
    if (in_.Take("*")) return RepeatExpr(std::move(part), 0, kUnbounded);
    if (in_.Take("+")) return RepeatExpr(std::move(part), 1, kUnbounded);
    if (in_.Take("?")) return RepeatExpr(std::move(part), 0, 1);
    in_.Take("{");
    SkipSpace();
    int min = 0;
    if (in_.Peek() != ',') {
      DSV4_ASSIGN_OR_RETURN(min, in_.TakeCount(kMostRepeats));
    }
    int max = min;
    SkipSpace();
    if (in_.Take(",")) {
      SkipSpace();
      max = kUnbounded;
      if (in_.Peek() != '}') {
        DSV4_ASSIGN_OR_RETURN(max, in_.TakeCount(kMostRepeats));
        SkipSpace();
      }
    }
    if (!in_.Take("}")) return Error(in_.Bad("a repetition is not closed"));
    if (max != kUnbounded && max < min) return Error(in_.Bad("a repetition ends before it begins"));
    return RepeatExpr(std::move(part), min, max);
  }

  Result<Expr> ParseAtom(int depth) {
    const char c = in_.Peek();
    if (c == '"' || c == '\'') return ParseLiteral();
    if (c == '[') return ParseClass();
    if (c == '(') {
      in_.Skip(1);
      if (in_.Peek() == '=') return Error(in_.Bad("look-ahead is not supported"));
      DSV4_ASSIGN_OR_RETURN(Expr group, ParseAlternatives(depth + 1));
      if (!in_.Take(")")) return Error(in_.Bad("a group is not closed"));
      return group;
    }
    if (c == '.') {
      in_.Skip(1);
      DSV4_ASSIGN_OR_RETURN(Regex any, in_.Char(AllChars()));
      return RegexExpr(std::move(any));
    }
    if (c == '<' || c == '!') return Error(in_.Bad("tokens cannot be asked for, only text"));
    const size_t at = in_.at();
    const std::string name = in_.TakeName(kNameChars);
    if (name.empty()) return Error(in_.Bad(fmt::format("'{}' stands where none can", c)));
    if (in_.Peek() == '(') return Error(in_.Bad(fmt::format("{}(...) is not supported", name)));
    const uint32_t id = RuleId(name);
    first_use_.try_emplace(name, at);
    return RuleExpr(id);
  }

  Result<Expr> ParseLiteral() {
    const char quote = in_.Peek();
    in_.Skip(1);
    std::string text;
    while (in_.Peek() != quote) {
      if (in_.AtEnd() || in_.Peek() == '\n') return Error(in_.Bad("a literal is not closed"));
      if (in_.Peek() != '\\') {
        text.push_back(in_.Peek());
        in_.Skip(1);
        continue;
      }
      DSV4_ASSIGN_OR_RETURN(const CharSet one, ParseEscape(false));
      AppendUtf8(one[0].first, &text);
    }
    in_.Skip(1);
    return TextExpr(text);
  }

  // Behind a backslash. Sets such as \d only in classes.
  Result<CharSet> ParseEscape(bool in_class) {
    in_.Skip(1);
    const char c = in_.Peek();
    const auto one = [](char32_t code) { return CharSet{{code, code}}; };
    if (in_.AtEnd()) return Error(in_.Bad("\\ at the end"));
    in_.Skip(1);
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      DSV4_ASSIGN_OR_RETURN(const char32_t code, in_.TakeHex(digits));
      return one(code);
    }
    if (c == 'n') return one('\n');
    if (c == 'r') return one('\r');
    if (c == 't') return one('\t');
    if (c == 'f') return one('\f');
    if (c == 'v') return one('\v');
    if (c == '0') return one(0);
    if (in_class && std::string_view("dwsDWS").find(c) != std::string_view::npos) return NamedSet(c);
    constexpr std::string_view kPunctuation = "^$\\.*+?()[]{}|/-\"'`~!@#%&=_,:;<> ";
    if (kPunctuation.find(c) != std::string_view::npos) return one(static_cast<char32_t>(c));
    return Error(in_.Bad(fmt::format("the escape \\{} is not supported", c)));
  }

  static CharSet NamedSet(char c) {
    const CharSet set = (c | 0x20) == 'd'   ? CharSet{{'0', '9'}}
                        : (c | 0x20) == 'w' ? CharSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}
                                            : CharSet{{'\t', '\r'}, {' ', ' '}};
    return (c & 0x20) != 0 ? set : Complement(set);
  }

  Result<Expr> ParseClass() {
    in_.Skip(1);
    const bool negated = in_.Take("^");
    CharSet set;
    while (in_.Peek() != ']') {
      DSV4_ASSIGN_OR_RETURN(CharSet first, ParseClassChar());
      if (in_.Peek() == '-' && in_.Peek(1) != ']') {
        in_.Skip(1);
        DSV4_ASSIGN_OR_RETURN(const CharSet last, ParseClassChar());
        const bool single = first.size() == 1 && last.size() == 1 && first[0].first == first[0].second &&
                            last[0].first == last[0].second;
        if (!single || first[0].first > last[0].first) return Error(in_.Bad("not a range of characters"));
        first[0].second = last[0].first;
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    in_.Skip(1);
    set = Normalized(std::move(set));
    DSV4_ASSIGN_OR_RETURN(Regex regex, in_.Char(negated ? Complement(set) : set));
    return RegexExpr(std::move(regex));
  }

  Result<CharSet> ParseClassChar() {
    if (in_.AtEnd() || in_.Peek() == '\n') return Error(in_.Bad("a class is not closed"));
    if (in_.Peek() == '\\') return ParseEscape(true);
    const char32_t c = in_.TakeChar();
    return CharSet{{c, c}};
  }

  Scanner in_;
  RuleSet rules_;
  std::map<std::string, uint32_t> ids_;
  std::map<std::string, size_t> first_use_;  // Positions of first uses in the text.
};

}  // namespace

Result<RuleSet> ParseGbnf(std::string_view text) {
  DSV4_TRY(Scanner::CheckText(text));
  return GbnfParser(text).Parse();
}

}  // namespace dsv4::grammar
