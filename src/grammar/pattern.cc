#include "grammar/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dsv4::grammar {
namespace {

constexpr int kMaxRepeat = 10000;
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

// Code points of well-formed UTF-8; false when it is not.
bool Decode(std::string_view text, std::u32string& out) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
    if (length == 0 || i + length > text.size()) return false;
    char32_t c = length == 1 ? lead : lead & (0x7FU >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      if ((byte & 0xC0) != 0x80) return false;
      c = (c << 6) | (byte & 0x3FU);
    }
    out.push_back(c);
    i += length;
  }
  return true;
}

class Parser {
 public:
  Parser(std::u32string text, Spelling spelling) : text_(std::move(text)), spelling_(spelling) {}

  Result<Regex> Parse() {
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

  // Every set is spelled once: that of `.` is some 30 KB.
  Result<Regex> Char(const CharSet& set) {
    const auto found = spelled_.find(set);
    if (found != spelled_.end()) return found->second;
    if (spelled_.size() == kMaxSets) {
      return Error(Bad(fmt::format("more than {} different characters and classes", kMaxSets)));
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
        return Char(Complement(kLineEnds));
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
    if (Take('?') && !Take(':')) return Error(Bad("of the groups with (? only (?: is supported"));
    std::vector<Regex> alternatives;
    do {
      DSV4_ASSIGN_OR_RETURN(alternatives.emplace_back(), ParseSequence());
    } while (Take('|'));
    if (Peek() == U'$') return Error(Bad("$ is supported at the end of the pattern only"));
    if (!Take(')')) return Error(Bad("a group is not closed"));
    --depth_;
    return Either(std::move(alternatives));
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
    if (Peek() == U'?') return Error(Bad("lazy quantifiers are not supported"));
    return Repeat(std::move(part), min, max);
  }

  Result<int> ParseCount() {
    int value = -1;
    while (Peek() && *Peek() >= '0' && *Peek() <= '9' && value <= kMaxRepeat) {
      value = 10 * std::max(value, 0) + static_cast<int>(*Peek() - '0');
      ++at_;
    }
    if (value < 0 || value > kMaxRepeat)
      return Error(Bad(fmt::format("wanted a count of at most {}", kMaxRepeat)));
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
        return ParseHex(4);
      default:
        break;
    }
    constexpr std::u32string_view kPunctuation = U"^$\\.*+?()[]{}|/-\"'`~!@#%&=_,:;<> ";
    if (kPunctuation.find(c) != std::u32string_view::npos) return one(c);
    --at_;
    return Error(Bad("this escape is not supported"));
  }

  Result<CharSet> ParseHex(int digits) {
    char32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = Peek().value_or(0);
      const bool number = c >= '0' && c <= '9';
      const char32_t lower = c | 0x20;
      if (!number && (lower < 'a' || lower > 'f'))
        return Error(Bad(fmt::format("wanted {} hexadecimal digits", digits)));
      code = code * 16 + (number ? c - '0' : lower - 'a' + 10);
      ++at_;
    }
    if (code >= 0xD800 && code <= 0xDFFF) return Error(Bad("surrogates are not supported"));
    return CharSet{{code, code}};
  }

  std::u32string text_;
  Spelling spelling_;
  size_t at_ = 0;
  int depth_ = 0;
  std::map<CharSet, Regex> spelled_;
};

}  // namespace

Result<Regex> PatternContent(std::string_view pattern, Spelling spelling) {
  std::u32string text;
  if (!Decode(pattern, text)) return Error(InvalidArgument("pattern: not well-formed UTF-8"));
  if (text.size() > kMaxCharacters) {
    return Error(InvalidArgument(
        fmt::format("pattern: {} characters, at most {} are compiled", text.size(), kMaxCharacters)));
  }
  return Parser(std::move(text), spelling).Parse();
}

}  // namespace dsv4::grammar
