// How JSON spells characters, strings and numbers, as expressions over bytes.
//
// Text is UTF-8. Where a schema says nothing about a string, every spelling JSON has is allowed (`\n`,
// `\u000a`; surrogates only in pairs). Where it does, each character has one spelling: itself, or the
// shortest escape if it needs one. An expression over characters thereby becomes one over bytes. Numbers have
// at most 18 digits before the point, 18 behind it and two in the exponent. Every parser reads them, and no
// number goes on for ever.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/dfa.h"
#include "grammar/regex.h"

namespace dsv4::grammar {

// Inclusive ranges of Unicode code points, ascending and apart; never a surrogate.
using CharSet = std::vector<std::pair<char32_t, char32_t>>;
CharSet AllChars();
// The code points of `text`; false when it is not well-formed UTF-8.
bool ToCodePoints(std::string_view text, std::u32string& out);
// Sorts and joins ranges, and cuts out surrogates.
CharSet Normalized(CharSet set);
CharSet Complement(const CharSet& set);

// How the characters of a string are written: as JSON does, or as they are, which is how a tool call writes a
// string parameter.
enum class Spelling : uint8_t { kJson, kRaw };

// One character of the set in its one spelling, inside a string.
Regex SpelledChar(const CharSet& set, Spelling spelling = Spelling::kJson);
// `text`, well-formed UTF-8, each character in its one spelling.
Regex SpelledText(std::string_view text, Spelling spelling);
// Any character in any spelling of JSON, inside a string.
Regex AnyChar();
Regex Quoted(Regex content);
// A raw string between what stands around it in a call: the `>` of the parameter's tag, and "</" with the
// marker's byte.
Regex Tagged(Regex content);

// White space that may stand between two tokens: nothing, a blank, or a new line and its indentation.
// Bounded, so that no answer is blank for ever.
Regex Space();

// Any number; any integer.
Regex AnyNumber();
Regex AnyInteger();

struct NumberBounds {
  // As JSON spells them.
  std::optional<std::string> minimum;
  std::optional<std::string> maximum;
  bool exclusive_minimum = false;
  bool exclusive_maximum = false;
  bool integer = false;
};
// The numbers between the bounds, without exponents. InvalidArgument when a bound is out of the reach of 18
// digits on the side where it binds.
Result<Dfa> BoundedNumber(const NumberBounds& bounds, DfaLimits& limits);
// The spellings of the number that `text` spells, without exponents.
Regex NumberValue(std::string_view text, bool integer);
// Numbers that are a whole multiple of `divisor`, a number as JSON spells it. InvalidArgument where it is not
// above 0, or has more than four digits beside zeros.
Result<Dfa> Multiples(std::string_view divisor, DfaLimits& limits);

// The content of a string of a JSON Schema format; null for formats that are not supported.
std::optional<Regex> FormatContent(std::string_view format, Spelling spelling = Spelling::kJson);
std::string SupportedFormats();

}  // namespace dsv4::grammar
