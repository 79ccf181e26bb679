// Drafter: guesses how a sequence's text goes on. A guess costs rows of a step, never a token of the answer: the engine samples
// each token as if there were no guess, and keeps a guess's rows as far as it was right (engine.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace dsv4::speculation {

struct Draft {
  std::vector<int32_t> tokens;
  // How sure the drafter is, on a scale of its own that only grows: 0 to kMostEvidence - 1 (draft_policy.h learns what it is worth).
  int evidence = 0;
};
inline constexpr int kMostEvidence = 13;
// Of text that a constraint leaves no choice about.
inline constexpr int kForcedEvidence = kMostEvidence - 1;

// One per sequence; one thread at a time.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // `text` is all of the sequence: what was given before, and what has come since.
  virtual void Read(std::span<const int32_t> text) = 0;
  // Up to `most` tokens that may follow what was read; none if it has no idea.
  virtual Draft Propose(int64_t most) = 0;
};

// From the text alone: what followed the longest end of the text when that stood there before.
std::unique_ptr<Drafter> MakeSuffixDrafter();

}  // namespace dsv4::speculation
