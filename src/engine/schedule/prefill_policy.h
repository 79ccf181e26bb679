// PrefillPolicy: how many prompt tokens a step reads beside answers, and whether prompts wait for others to
// be read together. It knows prices of steps (StepPrices) and plain numbers.
//
// A step with prompts has a fixed part, which small pieces pay as often as large ones. So a piece is the
// smallest that reads nearly as fast as any. Its step keeps to a target for the time between two tokens.
// Prompts that are less than such a piece wait for others. They wait until their added-up waiting is as long
// as all answers would be held up. They wait no longer than the target.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "engine/schedule/step_prices.h"

namespace dsv4::engine {

struct PrefillLimits {
  int64_t max_step_tokens = 512;
  // Prompt tokens beside answers at most; 0: by the prices of steps.
  int64_t max_beside_decode = 0;
  // Seconds that a step with answers may take: a bound if it was asked for, else an aim, which slow answers
  // stretch. 0: none.
  double max_gap = 0.0;
  bool gap_is_bound = false;
};

// Sequences that run, and those that could be admitted.
struct PromptLoad {
  int64_t answering = 0;
  int64_t tokens = 0;         // Prompt tokens that are not read yet,
  int64_t num_prompts = 0;    // and the prompts that have them.
  double waited = 0.0;        // Seconds that these have waited, together,
  double longest_wait = 0.0;  // and the one that came first.
  bool overdue = false;       // One of them should have been read already.

  void Add(int64_t prompt_tokens, double wait) {
    tokens += prompt_tokens;
    ++num_prompts;
    waited += wait;
    longest_wait = std::max(longest_wait, wait);
  }
};

class PrefillPolicy {
 public:
  // A piece beside answers before anything is known, and the least that is held to be economical.
  static constexpr int64_t kFirstPiece = 96;
  // Tokens of a piece beside answers at least, so that prompts move.
  static constexpr int64_t kLeastPiece = 8;

  explicit PrefillPolicy(const PrefillLimits& limits) : limits_(limits) {}

  void RecordStep(int64_t decode, int64_t prefill, double seconds) {
    prices_.RecordStep(decode, prefill, seconds);
  }

  // Prompt tokens of the next step, if it has answers.
  int64_t Piece(const PromptLoad& load) const;
  // Whether prompts of which nothing has been read wait for more of them.
  bool Holds(const PromptLoad& load) const;

  // The smallest piece beside so many answers that reads nearly as fast as any within the gap.
  int64_t EconomicalPiece(int64_t answering) const;
  // Prompt tokens of a step without answers, in whose midst another owner's prompt may come. They are the
  // fewest that are read nearly as fast as any; while nothing is known, as many as a step has.
  int64_t PieceBesideOthers() const;
  // Tokens with which a step beside so many answers takes no longer than `seconds`; none while nothing is
  // known.
  std::optional<int64_t> PieceWithin(int64_t answering, double seconds) const;
  // Seconds that steps with so many answers may take; 0: no limit is known.
  double Gap(int64_t answering) const;

  const StepPrices& prices() const { return prices_; }
  const PrefillLimits& limits() const { return limits_; }

 private:
  int64_t MostPiece(int64_t answering) const;
  // The smallest piece from `first` on that reads nearly as fast as any up to `most`.
  int64_t NearlyBest(int64_t answering, int64_t first, int64_t most) const;
  // Prompt tokens a second with steps of such a piece.
  double Rate(int64_t answering, int64_t piece) const;

  PrefillLimits limits_;
  StepPrices prices_;
};

}  // namespace dsv4::engine
