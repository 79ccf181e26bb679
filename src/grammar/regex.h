// Regular expressions over bytes, built from parts. They describe the terminals of a grammar; dfa.h compiles them.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace dsv4::grammar {

using ByteSet = std::bitset<256>;

struct RegexNode;
// A value: immutable, parts are shared.
using Regex = std::shared_ptr<const RegexNode>;

inline constexpr int kUnbounded = -1;

struct RegexNode {
  enum class Kind : uint8_t { kBytes, kConcat, kEither, kRepeat };
  Kind kind;
  ByteSet bytes;             // kBytes: one byte of these; none of them matches nothing at all.
  std::vector<Regex> parts;  // kConcat (of none: the empty text), kEither; the one part of kRepeat.
  int min = 0;               // kRepeat.
  int max = 0;               // kRepeat; kUnbounded.
  bool character = false;    // One character of a text, however many bytes spell it.
};

Regex OneOf(const ByteSet& bytes);
// One byte of [first, last].
Regex ByteRange(int first, int last);
Regex Literal(std::string_view text);
Regex Concat(std::vector<Regex> parts);
Regex Either(std::vector<Regex> parts);
Regex Repeat(Regex part, int min, int max);
// The same as one character of a text. No text of it begins another.
Regex Character(Regex part);
inline Regex Optional(Regex part) { return Repeat(std::move(part), 0, 1); }

// States of an automaton that has one for every part of every repetition, roughly.
double NumStates(const RegexNode& regex);

// From this count on a repetition is counted by a number, where that goes: below, its states are few.
inline constexpr int kLargeCount = 200;
// Counts that an expression may have.
inline constexpr int kMostRepeats = 1'000'000;

// Whether the empty text matches.
bool MayBeEmpty(const RegexNode& regex);
// The same without the empty text.
Regex NonEmpty(const Regex& regex);
bool IsLarge(const RegexNode& regex);
// Whether some repetition in it is large.
bool HasLargeCount(const RegexNode& regex);
// Parts that stand one behind the other, groups around them left out.
std::vector<Regex> SequenceOf(const Regex& regex);

struct Lengths {
  int min = 0;
  int max = 0;  // kUnbounded.
};
// Characters of its texts; none where it has bytes that are not of characters.
std::optional<Lengths> LengthsOf(const RegexNode& regex);

// One repetition of at least `least` times a known number of characters, beside others of known numbers, as what it is without a count: `endless`, and so long.
struct SizedText {
  Regex endless;
  Lengths lengths;
};
std::optional<SizedText> AsSizedText(const std::vector<Regex>& sequence, int least = kLargeCount);
// The characters that it is made of, each once.
std::vector<Regex> CharactersOf(const RegexNode& regex);

}  // namespace dsv4::grammar
