// Deterministic automata over bytes: the terminals of a grammar, ready to run.
//
// An automaton that counts has a block of states for each text that is counted. Blocks in a row are alike: it keeps the rows of one, and
// how many there are. States are numbers all the same, so that a user of an automaton need not know.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/partition.h"
#include "grammar/regex.h"

namespace dsv4::grammar {

// Limits of the cost of making automata. One for all automata of a grammar bounds them together.
struct DfaLimits {
  size_t max_states = 100'000;     // Most states of one automaton.
  int64_t work_left = 30'000'000;  // Falls; within a second.
  Status TooLarge() const;
};

// Immutable after it is made. From every state some text leads to acceptance, so a live state is never a dead
// end. The one exception is an automaton of no text at all, IsEmpty().
class Dfa {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;
  static constexpr uint32_t kStart = 0;

  // Automaton of no text.
  Dfa() = default;
  // ResourceExhausted when that takes more than the limits, or a few times as many intermediate states.
  static Result<Dfa> Compile(const Regex& regex, DfaLimits& limits);
  // The texts of both; those of `a` that are not of `b`. ResourceExhausted as Compile. Of two that count the smaller count becomes states, and
  // both where it is large.
  static Result<Dfa> Intersect(const Dfa& a, const Dfa& b, DfaLimits& limits);
  static Result<Dfa> Subtract(const Dfa& a, const Dfa& b, DfaLimits& limits);
  // `min` to `max` (kUnbounded) texts of `unit` between a text of `before` and one of `behind`, by a counter. None where a byte
  // may belong to two of them. No text of `before` or of the unit begins another, and none of the unit begins as one of `behind` does.
  static std::optional<Result<Dfa>> Counted(const Dfa& before, const Dfa& unit, const Dfa& behind, int min,
                                            int max, DfaLimits& limits);

  // Decimal numbers, perhaps with a sign, that are `unit` / 10^`places` times a whole number. How many digits there are, and where zeros may stand, is
  // not asked.
  static Result<Dfa> DecimalMultiples(uint32_t unit, int places, DfaLimits& limits);

  // kDead when no text of the automaton goes on with `byte`. `state` is live.
  uint32_t Next(uint32_t state, uint8_t byte) const { return Target(state, classes_[byte]); }
  bool IsAccepting(uint32_t state) const { return accepting_[RowOf(state)] != 0; }
  // Whether any byte may follow in `state`.
  bool GoesOn(uint32_t state) const { return goes_on_[RowOf(state)] != 0; }
  // A state that no text of at most kAlikeBytes bytes tells apart from `state`: counting makes many such.
  static constexpr size_t kAlikeBytes = 256;
  uint32_t Alike(uint32_t state) const;
  bool IsEmpty() const { return accepting_.empty(); }
  // States that take memory.
  size_t num_states() const { return accepting_.size(); }

  // Fingerprint of the whole automaton: equal automata of different grammars can share what is derived from
  // them.
  using Fingerprint = std::pair<uint64_t, uint64_t>;
  const Fingerprint& fingerprint() const { return fingerprint_; }

 private:
  using Classes = std::array<uint8_t, 256>;
  // `copies` times `width` states with the same rows.
  struct Block {
    uint32_t first;  // State.
    uint32_t width;
    uint32_t copies;
    uint32_t first_row;
  };
  Dfa(const Classes& classes, size_t num_classes) : classes_(classes), num_classes_(num_classes) {}
  template <typename Accepts>
  static Result<Dfa> Product(const Dfa& a, const Dfa& b, DfaLimits& limits, const Accepts& accepts);
  // The texts of one that counts which the plain one has too, or (`subtract`) has not.
  static Result<Dfa> CountedProduct(const Dfa& counted, const Dfa& plain, bool subtract, DfaLimits& limits);
  // By a counter, where the expression has one large count; none: it has not, or Counted cannot.
  static std::optional<Result<Dfa>> CompileCounted(const Regex& regex, DfaLimits& limits);
  // The same of expressions whose repetition ends where the next part begins, by the length of their texts.
  static std::optional<Result<Dfa>> CompileSized(const std::vector<Regex>& parts, DfaLimits& limits);
  // The same automaton without counts.
  Dfa Spread() const;
  // States that are told apart.
  uint64_t num_places() const {
    return counts() ? blocks_.back().first + uint64_t{blocks_.back().width} * blocks_.back().copies
                    : num_states();
  }
  static Result<Dfa> CompileStates(const Regex& regex, DfaLimits& limits);

  bool counts() const { return !blocks_.empty(); }
  // Whether ways of this block lead to the next copy, and so from the last one to the next block.
  bool LeadsOn(const Block& block) const;
  const Block& BlockOf(uint32_t state) const;
  size_t RowOf(uint32_t state) const {
    if (blocks_.empty()) return state;
    const Block& block = BlockOf(state);
    return block.first_row + (state - block.first) % block.width;
  }
  // A distance, which may be negative, is kept apart from kDead.
  static constexpr uint32_t kDistance = uint32_t{1} << 31;
  uint32_t Distance(size_t at) const { return next_[at] ^ kDistance; }
  uint32_t Target(uint32_t state, size_t byte_class) const {
    const size_t at = RowOf(state) * num_classes_ + byte_class;
    return blocks_.empty() || next_[at] == kDead || relative_[at] == 0 ? next_[at] : state + Distance(at);
  }
  uint32_t AddState(bool accepting);
  // Makes one of states that no text tells apart. Of large automata states stay apart.
  void Minimize();
  // The states and, behind them, kDead in groups that no text tells apart.
  Partition SplitStates() const;
  // Drops states that lead nowhere, and fingerprints the rest.
  void Finish();
  void Fingerprint128();

  Classes classes_ = {};  // Bytes that no state tells apart are one class.
  size_t num_classes_ = 1;
  std::vector<uint32_t> next_;      // [num_states, num_classes].
  std::vector<uint8_t> accepting_;  // [num_states].
  std::vector<uint8_t> goes_on_;    // [num_states].
  // For counting: blocks by their first states, and by next_ whether it is to be added to the state. A relative way leads into the same copy
  // of a block or the next, which may be the next block's first. Others lead into first copies of the same or later blocks.
  std::vector<Block> blocks_;
  std::vector<uint8_t> relative_;
  Fingerprint fingerprint_ = {};
};

}  // namespace dsv4::grammar
