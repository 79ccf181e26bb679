// Deterministic automata over bytes: the terminals of a grammar, ready to run.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/partition.h"
#include "grammar/regex.h"

namespace dsv4::grammar {

// What making automata may cost. One for all automata of a grammar bounds them together.
struct DfaLimits {
  size_t max_states = 100'000;     // Of one automaton.
  int64_t work_left = 30'000'000;  // Falls; within a second.
};

// Immutable after it is made. From every state some text leads to acceptance, so a live state is never a dead end; the one
// exception is an automaton of no text at all, IsEmpty().
class Dfa {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;
  static constexpr uint32_t kStart = 0;

  // Of no text.
  Dfa() = default;
  // ResourceExhausted when that takes more than the limits, or a few times as many intermediate states.
  static Result<Dfa> Compile(const Regex& regex, DfaLimits& limits);
  // The texts of both; those of `a` that are not of `b`. ResourceExhausted as Compile.
  static Result<Dfa> Intersect(const Dfa& a, const Dfa& b, DfaLimits& limits);
  static Result<Dfa> Subtract(const Dfa& a, const Dfa& b, DfaLimits& limits);
  // `min` to `max` (kUnbounded) texts of `unit` between the bytes `open` and `close`. No text of the unit begins another or with `close`.
  static Result<Dfa> EnclosedRepeat(const Dfa& unit, uint8_t open, uint8_t close, int min, int max,
                                    DfaLimits& limits);

  // Decimal numbers, perhaps with a sign, that are `unit` / 10^`places` times a whole number. How many digits there are, and where zeros may stand, is
  // not asked.
  static Result<Dfa> DecimalMultiples(uint32_t unit, int places, DfaLimits& limits);

  // kDead when no text of the automaton goes on with `byte`. `state` is live.
  uint32_t Next(uint32_t state, uint8_t byte) const { return next_[state * num_classes_ + classes_[byte]]; }
  bool IsAccepting(uint32_t state) const { return accepting_[state] != 0; }
  // Whether any byte may follow in `state`.
  bool GoesOn(uint32_t state) const { return goes_on_[state] != 0; }
  // A state that no text of at most kAlikeBytes bytes tells apart from `state`: counting makes many such.
  static constexpr size_t kAlikeBytes = 256;
  uint32_t Alike(uint32_t state) const { return alike_.empty() ? state : alike_[state]; }
  bool IsEmpty() const { return accepting_.empty(); }
  size_t num_states() const { return accepting_.size(); }

  // Of the whole automaton: equal automata of different grammars can share what is derived from them.
  using Fingerprint = std::pair<uint64_t, uint64_t>;
  const Fingerprint& fingerprint() const { return fingerprint_; }

 private:
  using Classes = std::array<uint8_t, 256>;
  Dfa(const Classes& classes, size_t num_classes) : classes_(classes), num_classes_(num_classes) {}
  template <typename Accepts>
  static Result<Dfa> Product(const Dfa& a, const Dfa& b, DfaLimits& limits, const Accepts& accepts);
  uint32_t AddState(bool accepting);
  // Makes one of states that no text tells apart. Of large automata states stay apart.
  void Minimize();
  // The states and, behind them, kDead in groups that no text tells apart.
  Partition SplitStates() const;
  // Drops states that lead nowhere, and fingerprints the rest.
  void Finish();

  Classes classes_ = {};  // Bytes that no state tells apart are one class.
  size_t num_classes_ = 1;
  std::vector<uint32_t> next_;      // [num_states, num_classes].
  std::vector<uint8_t> accepting_;  // [num_states].
  std::vector<uint8_t> goes_on_;    // [num_states].
  std::vector<uint32_t> alike_;     // [num_states] or empty.
  Fingerprint fingerprint_ = {};
};

}  // namespace dsv4::grammar
