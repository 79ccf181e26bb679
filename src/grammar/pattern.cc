// Parser of regular expressions to byte expressions, with unsupported parts named.
#include "grammar/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"

namespace dsv4::grammar {
namespace {

constexpr int kMaxGroups = 64;
// A pattern of these takes less than 100 MB while it is compiled, whatever its characters are.
constexpr size_t kMaxCharacters = 8192;
constexpr size_t kMaxSets = 1024;

const CharSet kDigits = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                         {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                         {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

CharSet BothCases(CharSet set) {
  const size_t count = set.size();
  for (size_t i = 0; i < count; ++i) {
    const char32_t first = set[i].first;
    const char32_t last = set[i].second;
    const auto add = [&](char32_t from, char32_t to, int shift) {
      const char32_t low = std::max(first, from);
      const char32_t high = std::min(last, to);
      if (low <= high)
        set.emplace_back(low + static_cast<char32_t>(shift), high + static_cast<char32_t>(shift));
    };
    add('a', 'z', 'A' - 'a');
    add('A', 'Z', 'a' - 'A');
  }
  return Normalized(std::move(set));
}

class Parser {
 public:
  Parser(std::u32string text, Spelling spelling, bool whole, PatternFlags flags)
      : text_(std::move(text)), spelling_(spelling), whole_(whole), flags_(flags) {}

  Result<Regex> Parse() {
    if (whole_) ReadLeadingFlags();
    // Alternatives at the top have ends of their own: "^a|b$".
    std::vector<Regex> alternatives;
    do {
      const bool from_start = Take('^');
      DSV4_ASSIGN_OR_RETURN(Regex sequence, ParseSequence());
      const bool to_end = Take('$');
      if (Peek() && *Peek() != '|')
        return Error(Bad(*Peek() == ')' ? "no group to close" : "not at an end of the pattern"));
      DSV4_ASSIGN_OR_RETURN(const Regex any, Char(AllChars()));
      const Regex anything = Repeat(any, 0, kUnbounded);
      if (whole_) {
        alternatives.push_back(std::move(sequence));
        continue;
      }
      if (!from_start) sequence = Concat({anything, sequence});
      if (!to_end) sequence = Concat({sequence, anything});
      alternatives.push_back(std::move(sequence));
    } while (Take('|'));
    return Either(std::move(alternatives));
  }

 private:
  std::optional<char32_t> Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? std::optional(text_[at_ + ahead]) : std::nullopt;
  }
  bool Take(char32_t c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  Status Bad(std::string_view what) const {
    return InvalidArgument(fmt::format("pattern, character {}: {}", at_, what));
  }

  // "(?i)", "(?s)" and both.
  void ReadLeadingFlags() {
    size_t at = at_;
    if (!text_.starts_with(U"(?")) return;
    PatternFlags flags = flags_;
    for (at += 2; at < text_.size() && (text_[at] == 'i' || text_[at] == 's'); ++at) {
      (text_[at] == 'i' ? flags.ignore_case : flags.dot_all) = true;
    }
    if (at == at_ + 2 || at >= text_.size() || text_[at] != ')') return;
    at_ = at + 1;
    flags_ = flags;
  }

  // Every set is spelled once: that of `.` is some 30 KB.
  Result<Regex> Char(CharSet set) {
    if (flags_.ignore_case) set = BothCases(std::move(set));
    const auto found = spelled_.find(set);
    if (found != spelled_.end()) return found->second;
    if (spelled_.size() == kMaxSets) {
      return Error(Bad(fmt::format("more than {} and classes", Counted(kMaxSets, "different character"))));
    }
    return spelled_.emplace(set, SpelledChar(set, spelling_)).first->second;
  }

  Result<Regex> ParseSequence() {
    std::vector<Regex> parts;
    while (Peek() && *Peek() != '|' && *Peek() != ')' && *Peek() != '$') {
      DSV4_ASSIGN_OR_RETURN(Regex part, ParseAtom());
      DSV4_ASSIGN_OR_RETURN(part, ParseQuantifier(std::move(part)));
      parts.push_back(std::move(part));
    }
    return Concat(std::move(parts));
  }

  Result<Regex> ParseAtom() {
    const char32_t c = *Peek();
    switch (c) {
      case '(':
        return ParseGroup();
      case '[':
        return ParseClass();
      case '.':
        ++at_;
        return Char(flags_.dot_all
                        ? AllChars()
                        : Complement(flags_.newline_ends_lines ? CharSet{{U'\n', U'\n'}} : kLineEnds));
      case '\\': {
        DSV4_ASSIGN_OR_RETURN(const CharSet set, ParseEscape());
        return Char(set);
      }
      case '^':
        return Error(Bad("^ is supported at the start of the pattern only"));
      case '*':
      case '+':
      case '?':
      case '{':
        return Error(Bad("nothing to repeat"));
      default:
        ++at_;
        return Char({{c, c}});
    }
  }

  Result<Regex> ParseGroup() {
    ++at_;
    if (++depth_ > kMaxGroups) return Error(Bad(fmt::format("groups nested deeper than {}", kMaxGroups)));
    if (Take('?') && !Take(':')) DSV4_TRY(ParseGroupName());
    std::vector<Regex> alternatives;
    do {
      DSV4_ASSIGN_OR_RETURN(alternatives.emplace_back(), ParseSequence());
    } while (Take('|'));
    if (Peek() == U'$') return Error(Bad("$ is supported at the end of the pattern only"));
    if (!Take(')')) return Error(Bad("a group is not closed"));
    --depth_;
    return Either(std::move(alternatives));
  }

  // "P<name>" or "<name>": what the group is called does not matter.
  Status ParseGroupName() {
    const Status unsupported = Bad("of the groups with (? only (?: and names are supported");
    Take('P');
    if (!Take('<') || Peek() == U'=' || Peek() == U'!') return unsupported;
    while (Peek() && *Peek() != '>' && *Peek() != ')') ++at_;
    return Take('>') ? Status() : unsupported;
  }

  Result<Regex> ParseQuantifier(Regex part) {
    int min = 0;
    int max = kUnbounded;
    if (Take('*')) {
    } else if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (Take('{')) {
      DSV4_ASSIGN_OR_RETURN(min, ParseCount());
      max = min;
      if (Take(',')) {
        max = kUnbounded;
        if (Peek() != U'}') {
          DSV4_ASSIGN_OR_RETURN(max, ParseCount());
        }
      }
      if (!Take('}')) return Error(Bad("a repetition is not closed"));
      if (max != kUnbounded && max < min) return Error(Bad("a repetition ends before it begins"));
    } else {
      return part;
    }
    Take('?');  // Lazy: another order of trying, the same texts.
    if (Peek() == U'+') return Error(Bad("possessive quantifiers are not supported"));
    return Repeat(std::move(part), min, max);
  }

  Result<int> ParseCount() {
    int value = -1;
    while (Peek() && *Peek() >= '0' && *Peek() <= '9' && value <= kMostRepeats) {
      value = 10 * std::max(value, 0) + static_cast<int>(*Peek() - '0');
      ++at_;
    }
    if (value < 0 || value > kMostRepeats)
      return Error(Bad(fmt::format("wanted a count of at most {}", kMostRepeats)));
    return value;
  }

  Result<Regex> ParseClass() {
    ++at_;
    const bool negated = Take('^');
    CharSet set;
    while (Peek() && *Peek() != ']') {
      DSV4_ASSIGN_OR_RETURN(CharSet first, ParseClassAtom());
      const bool is_range = Peek() == U'-' && Peek(1) && *Peek(1) != ']';
      if (is_range) {
        ++at_;
        DSV4_ASSIGN_OR_RETURN(const CharSet last, ParseClassAtom());
        const bool single = first.size() == 1 && last.size() == 1 && first[0].first == first[0].second &&
                            last[0].first == last[0].second;
        if (!single || first[0].first > last[0].first) return Error(Bad("not a range of characters"));
        first[0].second = last[0].first;
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    if (!Take(']')) return Error(Bad("a class is not closed"));
    set = Normalized(std::move(set));
    // Case first: [^a] without case is neither a nor A.
    if (negated && flags_.ignore_case) set = BothCases(std::move(set));
    return Char(negated ? Complement(set) : set);
  }

  Result<CharSet> ParseClassAtom() {
    const char32_t c = *Peek();
    if (c == '\\') return ParseEscape();
    ++at_;
    return CharSet{{c, c}};
  }

  Result<CharSet> ParseEscape() {
    ++at_;
    if (!Peek()) return Error(Bad("\\ at the end"));
    const char32_t c = *Peek();
    ++at_;
    const auto one = [](char32_t code) { return CharSet{{code, code}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return Complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return Complement(kWord);
      case 's':
        return kSpaces;
      case 'S':
        return Complement(kSpaces);
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case 'x':
        return ParseHex(2);
      case 'u':
        if (Take('{')) {
          DSV4_ASSIGN_OR_RETURN(CharSet one_char, ParseHex(0));
          if (!Take('}')) return Error(Bad("\\u{ is not closed"));
          return one_char;
        }
        return ParseHex(4);
      default:
        break;
    }
    constexpr std::u32string_view kPunctuation = U"^$\\.*+?()[]{}|/-\"'`~!@#%&=_,:;<> ";
    if (kPunctuation.find(c) != std::u32string_view::npos) return one(c);
    --at_;
    return Error(Bad("this escape is not supported"));
  }

  // `digits` of them, or with 0 up to six.
  Result<CharSet> ParseHex(int digits) {
    char32_t code = 0;
    for (int i = 0; i < (digits == 0 ? 6 : digits); ++i) {
      const char32_t c = Peek().value_or(0);
      const bool number = c >= '0' && c <= '9';
      const char32_t lower = c | 0x20;
      if (digits == 0 && i > 0 && c == '}') break;
      if (!number && (lower < 'a' || lower > 'f'))
        return Error(Bad(fmt::format("wanted {}", Counted(digits, "hexadecimal digit"))));
      code = code * 16 + (number ? c - '0' : lower - 'a' + 10);
      ++at_;
    }
    if (code >= 0xD800 && code <= 0xDFFF) return Error(Bad("surrogates are not supported"));
    if (code > 0x10FFFF) return Error(Bad("no such character"));
    return CharSet{{code, code}};
  }

  std::u32string text_;
  Spelling spelling_;
  bool whole_;  // The pattern is all of the text, not somewhere in it.
  PatternFlags flags_;
  size_t at_ = 0;
  int depth_ = 0;
  std::map<CharSet, Regex> spelled_;
};

}  // namespace

namespace {

Result<Regex> ParsePattern(std::string_view pattern, Spelling spelling, bool whole, PatternFlags flags) {
  std::u32string text;
  if (!ToCodePoints(pattern, text)) return Error(InvalidArgument("pattern: not well-formed UTF-8"));
  if (text.size() > kMaxCharacters) {
    return Error(InvalidArgument(
        fmt::format("pattern: {} characters, at most {} are compiled", text.size(), kMaxCharacters)));
  }
  return Parser(std::move(text), spelling, whole, flags).Parse();
}

}  // namespace

Result<Regex> PatternContent(std::string_view pattern, Spelling spelling) {
  return ParsePattern(pattern, spelling, /*whole=*/false, {});
}

Result<Regex> WholePattern(std::string_view pattern, PatternFlags flags) {
  return ParsePattern(pattern, Spelling::kRaw, /*whole=*/true, flags);
}

}  // namespace dsv4::grammar
