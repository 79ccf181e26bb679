// Speculator: decides which drafts the next step verifies, has them made, and learns from what became of them
// (speculator.cc).
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <span>

#include "engine/engine_core.h"
#include "speculation/draft_policy.h"

namespace dsv4::engine {

class Speculator {
 public:
  // Measures prices of steps and drafts where a device computes. The core outlives it.
  explicit Speculator(EngineCore& core);

  // Decides which drafts the next step verifies, besides one row of each running sequence; whether there are
  // any. Those of the model's drafter are then to be made.
  bool Plan();
  // The same, and makes them.
  bool Choose();
  // A step gave the sequence so many tokens, in front of the last one its draft's. Takes back the draft's
  // other tokens.
  Status RecordSampled(Sequence& sequence, int64_t num_sampled);
  // A step of decode rows alone took the time since `begin`.
  void RecordDecodeStep(int64_t rows, int64_t num_sequences, std::chrono::steady_clock::time_point begin);

 private:
  using Clock = std::chrono::steady_clock;

  void MeasureFirst();
  bool MakeModelDrafts();
  // Decides how much of the blocks that have been drafted is verified, now that it is known how sure the
  // drafter is. The rest is watched.
  void ShortenBlocks(std::span<Sequence* const> drafted);
  // Sets the cost of the step's drafts to each sequence; of those in `made` the model's drafter made up to
  // `longest` tokens.
  void PriceDrafts(std::span<Sequence* const> made, int64_t longest);
  // Learns from the token that came behind a block of which nothing was verified.
  void LearnUnverified(Sequence& sequence);
  void RecordDraft(Sequence& sequence, const speculation::Draft& draft, int64_t verified, int64_t accepted);
  void Learn(Sequence& sequence);
  // Up to `most` tokens that may follow: what the constraint forces, or the drafter's as far as the
  // constraint allows them.
  static speculation::Draft Propose(Sequence& sequence, int64_t most);
  // Whether the request may use the model's drafter.
  bool MayAskModel(const Sequence& sequence) const;
  // Its drafts' length where it says one, else 0.
  int64_t AlwaysOf(const Sequence& sequence) const;

  EngineCore& core_;
  speculation::DraftPolicy draft_policy_;
  // Steps of so many rows, and drafts of so many tokens, that have been there before. The first of a kind
  // pays for memory that later ones find. A price that no short answer could afford would not be seen again,
  // and so not be corrected.
  std::set<int64_t> known_rows_;
  std::set<int64_t> known_drafts_;
};

}  // namespace dsv4::engine
