// Regular expressions over bytes, built from parts. They describe the terminals of a grammar; dfa.h compiles them.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
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
};

Regex OneOf(const ByteSet& bytes);
// One byte of [first, last].
Regex ByteRange(int first, int last);
Regex Literal(std::string_view text);
Regex Concat(std::vector<Regex> parts);
Regex Either(std::vector<Regex> parts);
Regex Repeat(Regex part, int min, int max);
inline Regex Optional(Regex part) { return Repeat(std::move(part), 0, 1); }

// States of an automaton that has one for every part of every repetition, roughly.
double NumStates(const RegexNode& regex);

// From this count on a repetition is counted by a number, where that goes: below, its states are few.
inline constexpr int kLargeCount = 200;
// Counts that an expression may have.
inline constexpr int kMostRepeats = 1'000'000;

// Whether the empty text matches.
bool MayBeEmpty(const RegexNode& regex);

}  // namespace dsv4::grammar
