// Byte expressions of JSON's characters, strings, white space and numbers between bounds.
#include "grammar/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "base/utf8.h"
#include "grammar/token_trie.h"

namespace dsv4::grammar {
namespace {

constexpr char32_t kLastChar = 0x10FFFF;

std::string Utf8(char32_t c) {
  std::string text;
  AppendUtf8(c, &text);
  return text;
}

// Adds expressions for the UTF-8 forms of [first, last], which have the same length.
void AddUtf8Range(char32_t first, char32_t last, std::vector<Regex>& out) {
  const std::string low = Utf8(first);
  const std::string high = Utf8(last);
  const size_t length = low.size();
  // Split until all bytes after the first that differs run through their whole range.
  for (size_t i = 1; i < length; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) {
      AddUtf8Range(first, first | mask, out);
      AddUtf8Range((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      AddUtf8Range(first, (last & ~mask) - 1, out);
      AddUtf8Range(last & ~mask, last, out);
      return;
    }
  }
  std::vector<Regex> parts;
  for (size_t i = 0; i < length; ++i) {
    parts.push_back(ByteRange(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])));
  }
  out.push_back(Concat(std::move(parts)));
}

std::string Spelled(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return c < 0x20 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c)) : Utf8(c);
  }
}

bool NeedsEscape(char32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

ByteSet BytesOf(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<uint8_t>(c));
  return set;
}

Regex Digit() { return ByteRange('0', '9'); }
Regex Digits(int min, int max) { return Repeat(Digit(), min, max); }
Regex Hex() { return OneOf(BytesOf("0123456789abcdefABCDEF")); }

constexpr int kMaxDigits = 18;

Regex IntegerPart() {
  return Either({Literal("0"), Concat({ByteRange('1', '9'), Digits(0, kMaxDigits - 1)})});
}

Regex AnyFraction() { return Optional(Concat({Literal("."), Digits(1, kMaxDigits)})); }

// A number without sign: digits before the point (no leading zero but "0" itself), digits behind it (no trailing zero).
struct Decimal {
  bool negative = false;
  std::string whole;
  std::string fraction;
  bool zero() const { return whole == "0" && fraction.empty(); }
};

// From JSON's spelling. Long before its digits are too many it is a bound that numbers of ours cannot reach.
Decimal ParseDecimal(std::string_view text) {
  Decimal out;
  out.negative = text.starts_with('-');
  if (out.negative) text.remove_prefix(1);
  const size_t e = text.find_first_of("eE");
  int exponent = 0;
  if (e != std::string_view::npos) {
    // Beyond three digits all exponents are the same to us.
    const bool small = text[e + 1] == '-';
    for (const char c : text.substr(e + 1)) {
      if (c >= '0' && c <= '9') exponent = std::min(999, 10 * exponent + (c - '0'));
    }
    exponent = small ? -exponent : exponent;
    text = text.substr(0, e);
  }
  const size_t point = text.find('.');
  out.whole = text.substr(0, point);
  if (point != std::string_view::npos) out.fraction = text.substr(point + 1);
  for (; exponent > 0; --exponent) {
    out.whole.push_back(out.fraction.empty() ? '0' : out.fraction.front());
    if (!out.fraction.empty()) out.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    out.fraction.insert(out.fraction.begin(), out.whole.empty() ? '0' : out.whole.back());
    if (!out.whole.empty()) out.whole.pop_back();
  }
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  while (out.fraction.ends_with('0')) out.fraction.pop_back();
  if (out.zero()) out.negative = false;
  return out;
}

// Whole numbers above (below) `digits`, which has at most kMaxDigits.
Regex WholeAbove(const std::string& digits) {
  const int length = static_cast<int>(digits.size());
  std::vector<Regex> options;
  for (int i = 0; i < length; ++i) {
    const char digit = digits[static_cast<size_t>(i)];
    if (digit == '9') continue;
    options.push_back(Concat({Literal(std::string_view(digits).substr(0, static_cast<size_t>(i))),
                              ByteRange(digit + 1, '9'), Digits(length - i - 1, length - i - 1)}));
  }
  if (length < kMaxDigits) options.push_back(Concat({ByteRange('1', '9'), Digits(length, kMaxDigits - 1)}));
  return Either(std::move(options));
}

Regex WholeBelow(const std::string& digits) {
  const int length = static_cast<int>(digits.size());
  std::vector<Regex> options;
  for (int i = 0; i < length; ++i) {
    const char digit = digits[static_cast<size_t>(i)];
    const char least = i == 0 && length > 1 ? '1' : '0';
    if (digit <= least) continue;
    options.push_back(Concat({Literal(std::string_view(digits).substr(0, static_cast<size_t>(i))),
                              ByteRange(least, digit - 1), Digits(length - i - 1, length - i - 1)}));
  }
  if (length > 1) options.push_back(Literal("0"));
  if (length > 2) options.push_back(Concat({ByteRange('1', '9'), Digits(0, length - 2)}));
  if (length == 2) options.push_back(ByteRange('1', '9'));
  return Either(std::move(options));
}

// Fraction that may follow a whole part that equals the bound's, for numbers above (`above`) or below the
// bound.
Regex FractionBeside(const std::string& bound, bool above, bool exclusive) {
  const int length = static_cast<int>(bound.size());
  std::vector<Regex> options;  // After the point.
  for (int i = 0; i < length; ++i) {
    const char digit = bound[static_cast<size_t>(i)];
    const Regex same = Literal(std::string_view(bound).substr(0, static_cast<size_t>(i)));
    const Regex rest = Digits(0, kMaxDigits - i - 1);
    if (above && digit < '9') options.push_back(Concat({same, ByteRange(digit + 1, '9'), rest}));
    if (!above && digit > '0') options.push_back(Concat({same, ByteRange('0', digit - 1), rest}));
    // A number that stops here is the bound cut short, which is less.
    if (!above && i > 0) options.push_back(same);
  }
  const int left = kMaxDigits - length;
  const Regex zeros = Repeat(Literal("0"), length == 0 ? 1 : 0, left);
  if (!exclusive) options.push_back(Concat({Literal(bound), zeros}));
  if (above && left > 0) {
    options.push_back(Concat(
        {Literal(bound), Repeat(Literal("0"), 0, left - 1), ByteRange('1', '9'), Digits(0, left - 1)}));
  }
  const Regex fraction = Concat({Literal("."), Either(std::move(options))});
  // None at all is a fraction of zero.
  const bool zero_fits = above ? bound.empty() && !exclusive : !bound.empty() || !exclusive;
  return zero_fits ? Optional(fraction) : fraction;
}

// Numbers without sign on one side of a bound.
Regex Beside(const Decimal& bound, bool above, bool exclusive, bool integer) {
  const Regex beyond = above ? WholeAbove(bound.whole) : WholeBelow(bound.whole);
  std::vector<Regex> options = {integer ? beyond : Concat({beyond, AnyFraction()})};
  if (!integer) {
    options.push_back(Concat({Literal(bound.whole), FractionBeside(bound.fraction, above, exclusive)}));
  } else if (above ? bound.fraction.empty() && !exclusive : !bound.fraction.empty() || !exclusive) {
    options.push_back(Literal(bound.whole));
  }
  return Either(std::move(options));
}

// All numbers that are not beyond `bound`: at least it (`minimum`) or at most it.
Regex OneSided(const Decimal& bound, bool minimum, bool exclusive, bool integer) {
  const Regex all = integer ? IntegerPart() : Concat({IntegerPart(), AnyFraction()});
  // Seen from zero: is the bound a wall in front, or behind us?
  const bool above = minimum != bound.negative;
  const Regex beside = Beside(bound, above, exclusive, integer);
  const Regex same_side = bound.negative ? Concat({Literal("-"), beside}) : beside;
  if (minimum && bound.negative) return Either({same_side, all});
  if (!minimum && !bound.negative) {
    // "-0" is a way to write zero.
    const Regex magnitude = bound.zero() && exclusive ? Beside(bound, true, true, integer) : all;
    return Either({same_side, Concat({Literal("-"), magnitude})});
  }
  return same_side;
}

}  // namespace

bool ToCodePoints(std::string_view text, std::u32string& out) {
  if (FindInvalidUtf8(text) != std::string_view::npos) return false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = DecodeUtf8(text.data() + i);
    out.push_back(c.value);
    i += c.num_bytes;
  }
  return true;
}

CharSet Normalized(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet joined;
  for (const auto& range : set) {
    if (!joined.empty() && range.first <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, range.second);
    } else {
      joined.push_back(range);
    }
  }
  CharSet out;
  for (const auto& [first, last] : joined) {
    if (first < 0xD800) out.emplace_back(first, std::min<char32_t>(last, 0xD7FF));
    if (last > 0xDFFF) out.emplace_back(std::max<char32_t>(first, 0xE000), last);
  }
  return out;
}

CharSet AllChars() { return Normalized({{0, kLastChar}}); }

CharSet Complement(const CharSet& set) {
  CharSet out;
  char32_t next = 0;
  for (const auto& [first, last] : set) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastChar) out.emplace_back(next, kLastChar);
  return Normalized(std::move(out));
}

Regex SpelledChar(const CharSet& set, Spelling spelling) {
  constexpr std::array<char32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLastChar};
  std::vector<Regex> options;
  const auto add_plain = [&](char32_t first, char32_t last) {
    for (const char32_t end : kLastOfLength) {
      if (first > last) return;
      if (first <= end) {
        AddUtf8Range(first, std::min(last, end), options);
        first = end + 1;
      }
    }
  };
  for (const auto& [first, last] : set) {
    char32_t plain = first;
    for (char32_t c = first; spelling == Spelling::kJson && c <= std::min<char32_t>(last, '\\'); ++c) {
      if (!NeedsEscape(c)) continue;
      if (plain < c) add_plain(plain, c - 1);
      options.push_back(Literal(Spelled(c)));
      plain = c + 1;
    }
    add_plain(plain, last);
  }
  return Character(Either(std::move(options)));
}

Regex SpelledText(std::string_view text, Spelling spelling) {
  if (spelling == Spelling::kRaw) return Literal(text);
  std::u32string decoded;
  ToCodePoints(text, decoded);
  std::string spelled;
  for (const char32_t c : decoded) spelled += Spelled(c);
  return Literal(spelled);
}

Regex AnyChar() {
  const Regex hex = Hex();
  const Regex not_surrogate =
      Either({Concat({OneOf(BytesOf("0123456789abcefABCEF")), Repeat(hex, 3, 3)}),
              Concat({OneOf(BytesOf("dD")), ByteRange('0', '7'), Repeat(hex, 2, 2)})});
  const Regex pair =
      Concat({OneOf(BytesOf("dD")), OneOf(BytesOf("89abAB")), Repeat(hex, 2, 2), Literal("\\u"),
              OneOf(BytesOf("dD")), OneOf(BytesOf("cdefCDEF")), Repeat(hex, 2, 2)});
  const Regex escape =
      Concat({Literal("\\"),
              Either({OneOf(BytesOf("\"\\/bfnrt")), Concat({Literal("u"), Either({not_surrogate, pair})})})});
  return Either(
      {SpelledChar(Normalized({{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLastChar}})), escape});
}

Regex Quoted(Regex content) { return Concat({Literal("\""), std::move(content), Literal("\"")}); }

Regex Tagged(Regex content) {
  return Concat(
      {Literal(">"), std::move(content), Literal("</"), ByteRange(kCallMarkerByte, kCallMarkerByte)});
}

Regex Space() {
  constexpr int kMaxIndentation = 64;
  return Optional(
      Either({Literal(" "), Concat({Literal("\n"), Repeat(OneOf(BytesOf(" \t")), 0, kMaxIndentation)})}));
}

Regex AnyInteger() { return Concat({Optional(Literal("-")), IntegerPart()}); }

Regex AnyNumber() {
  return Concat({AnyInteger(), AnyFraction(),
                 Optional(Concat({OneOf(BytesOf("eE")), Optional(OneOf(BytesOf("+-"))), Digits(1, 2)}))});
}

Result<Dfa> BoundedNumber(const NumberBounds& bounds, DfaLimits& limits) {
  const Regex any = bounds.integer ? AnyInteger() : Concat({AnyInteger(), AnyFraction()});
  DSV4_ASSIGN_OR_RETURN(Dfa numbers, Dfa::Compile(any, limits));
  for (const bool minimum : {true, false}) {
    const std::optional<std::string>& text = minimum ? bounds.minimum : bounds.maximum;
    if (!text) continue;
    const Decimal bound = ParseDecimal(*text);
    if (bound.whole.size() > kMaxDigits) {
      if (bound.negative == minimum) continue;  // Far behind every number that can be written.
      return Error(
          InvalidArgument(fmt::format("{}: numbers have at most {}", *text, Counted(kMaxDigits, "digit"))));
    }
    if (bound.fraction.size() > kMaxDigits) {
      return Error(
          InvalidArgument(fmt::format("{}: fractions have at most {}", *text, Counted(kMaxDigits, "digit"))));
    }
    const bool exclusive = minimum ? bounds.exclusive_minimum : bounds.exclusive_maximum;
    DSV4_ASSIGN_OR_RETURN(const Dfa side,
                          Dfa::Compile(OneSided(bound, minimum, exclusive, bounds.integer), limits));
    DSV4_ASSIGN_OR_RETURN(numbers, Dfa::Intersect(numbers, side, limits));
  }
  return numbers;
}

Regex NumberValue(std::string_view text, bool integer) {
  const Decimal value = ParseDecimal(text);
  if (integer && !value.fraction.empty()) return Either({});
  const Regex sign = value.zero() ? Optional(Literal("-")) : value.negative ? Literal("-") : Concat({});
  const auto zeros = [](int min) { return Repeat(Literal("0"), min, kMaxDigits); };
  if (integer) return Concat({sign, Literal(value.whole)});
  const Regex fraction = value.fraction.empty() ? Optional(Concat({Literal("."), zeros(1)}))
                                                : Concat({Literal("." + value.fraction), zeros(0)});
  return Concat({sign, Literal(value.whole), fraction});
}

Result<Dfa> Multiples(std::string_view divisor, DfaLimits& limits) {
  const Decimal value = ParseDecimal(divisor);
  // As a whole number of the last digit.
  const std::string digits = (value.whole == "0" ? "" : value.whole) + value.fraction;
  const size_t first = digits.find_first_not_of('0');
  constexpr size_t kMostDigits = 4;
  if (value.negative || first == std::string::npos || digits.size() - first > kMostDigits ||
      value.fraction.size() > kMaxDigits) {
    return Error(InvalidArgument(fmt::format("{}: wanted a number above 0 and of at most {}", divisor,
                                             Counted(kMostDigits, "digit"))));
  }
  return Dfa::DecimalMultiples(static_cast<uint32_t>(std::stoul(digits.substr(first))),
                               static_cast<int>(value.fraction.size()), limits);
}

}  // namespace dsv4::grammar
