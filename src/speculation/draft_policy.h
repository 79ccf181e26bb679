// DraftPolicy: how many tokens of each draft a step verifies. It learns the cost of one more row on this
// machine, and how often drafts of each evidence were right. It adds rows as long as they raise the expected
// tokens a second.
//
// Decisions here change when tokens come, never which.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "speculation/drafter.h"

namespace dsv4::speculation {

// How often a draft's tokens were right, as it has been lately: one count for each evidence and position in
// the draft.
class AcceptanceRecord {
 public:
  // The first `accepted` of `verified` tokens were right.
  void Saw(int evidence, int64_t verified, int64_t accepted);
  // Probability of token `depth` (from 0), where those before it were right; `prior` counts as much as
  // `weight` observations.
  double Probability(int evidence, int64_t depth, double prior, double weight) const;

  // A draft's first token was expected to be right with `probability`.
  void Expected(double probability, bool right);
  // How much oftener first tokens were right than expected, over all evidence: what other texts have taught
  // may not hold for this one. At most 1, and 0 until enough was seen.
  double Trust() const;

  // A step gave the sequence `tokens`, of which `accepted` were a draft's that took so long, in steps of one
  // token.
  void Paid(int64_t tokens, int64_t accepted, double cost);
  // Steps of one token that drafts of such evidence may lose from here on: all savings, and a small part of
  // all time. So a sequence whose drafts are wrong takes hardly longer than without any, however good the
  // drafts of others are.
  double Credit(int evidence) const;

 private:
  static constexpr int kDepths = 4;  // 0, 1, 2, and all further ones.
  struct Count {
    double right = 0.0;
    double seen = 0.0;
  };
  std::array<std::array<Count, kDepths>, kMostEvidence> counts_ = {};
  Count trusted_;  // Right, and expected to be right.
  int num_expected_ = 0;
  double saved_ = 0.0;
  int64_t num_tokens_ = 0;
};

// Tokens of a sequence that a step may verify. They are of a draft that is there, or of one that the model's
// draft block would make first.
struct Candidate {
  const Draft* draft = nullptr;
  const AcceptanceRecord* record = nullptr;  // Record of its sequence.
  int64_t most_mtp = 0;                      // Tokens that the draft block may make.
};
struct Length {
  int64_t tokens = 0;
  bool by_mtp = false;  // Order to the draft block, which is to make so many.

  friend bool operator==(const Length& a, const Length& b) = default;
};

class DraftPolicy {
 public:
  // `drafts_blocks`: the model's drafter makes a whole block in one pass (DSpark). The time of that pass does
  // not depend on how many of its tokens are wanted. Names with "mtp" below stand for either drafter.
  explicit DraftPolicy(bool drafts_blocks = false) : drafts_blocks_(drafts_blocks) {}

  // A step of `rows` rows, of which `base_rows` were no drafts, took so long. Only steps that decode and
  // nothing else.
  void RecordStep(int64_t rows, int64_t base_rows, double seconds);
  // The same of a draft that was not verified: 1, and whether the token that came was its first.
  void RecordDraft(AcceptanceRecord& record, int evidence, int64_t verified, int64_t accepted);

  // The draft block made `tokens` tokens at most for each of `sequences` in so long.
  void RecordDraftTime(int64_t tokens, int64_t sequences, double seconds);

  // How many tokens of each candidate's draft a step verifies that has `base_rows` rows without them and
  // `most_rows` at most.
  std::vector<Length> Lengths(std::span<const Candidate> candidates, int64_t base_rows,
                              int64_t most_rows) const;
  // Whether the draft block is to be tried although it does not seem to pay: the text or the machine may have
  // changed. True seldom, and ever more seldom.
  bool ShouldTryMtp() const { return steps_without_mtp_ >= patience_; }
  // A step for which it could have drafted, and has not.
  void RecordStepWithoutMtp() { ++steps_without_mtp_; }

  // Price of `tokens` of a draft, in steps of one token, that are among `drafted` of a step with `base_rows`
  // rows besides; `made` by the model's drafter, which made up to so many for each of `sequences`. 0: by
  // another.
  double Price(int64_t tokens, int64_t drafted, int64_t base_rows, int64_t made, int64_t sequences) const;

  // Expected seconds of a step of so many rows, relative to one of one row. Exposed for tests and metrics.
  double RelativeCost(int64_t rows) const;
  // The same of drafts that the block makes, on the same scale.
  double DraftingCost(int64_t tokens, int64_t sequences) const;

 private:
  static constexpr int64_t kMostKnownRows = 256;
  static constexpr int64_t kFirstPatience = 64;
  static constexpr int64_t kMostPatience = 4096;

  // Evidence of the drafts that the model's drafter would make.
  int HeadEvidence() const { return drafts_blocks_ ? kDsparkEvidence : kMtpEvidence; }
  // Chance that token `depth` of a draft is right, as all sequences have it.
  double Prior(int evidence, int64_t depth) const;
  double Probability(const AcceptanceRecord& record, int evidence, int64_t depth) const;
  // The most tokens per second of a step that has `base_rows` other rows and up to `most` tokens of a draft.
  // Also how many of these are expected to be right. `drafters`: sequences that the model's drafter makes one
  // for; 0: none.
  struct Worth {
    double rate = 0.0;
    double tokens = 0.0;
  };
  Worth WorthOf(const AcceptanceRecord& record, int evidence, int64_t most, int64_t base_rows,
                int64_t drafters) const;
  // The length of a draft that its sequence can afford: the expected cost, where it does not pay for itself,
  // is at most its credit.
  int64_t Affordable(const AcceptanceRecord& record, int evidence, int64_t most, int64_t base_rows,
                     int64_t drafters) const;
  // Whether to ask the model's drafter rather than to take the draft that is there. The one that makes the
  // step quicker wins, else the one with more tokens expected to be right.
  bool PrefersMtp(const Candidate& candidate, int64_t base_rows, int64_t drafters) const;

  AcceptanceRecord record_;                           // Record of all sequences.
  std::array<double, kMostKnownRows + 1> cost_ = {};  // Seconds by rows; 0: not seen.
  std::array<int64_t, kMostKnownRows + 1> age_ = {};  // Steps without drafts since.
  // By tokens: seconds of the block's drafts, and for how many sequences. 0: not seen.
  struct Drafting {
    double seconds = 0.0;
    int64_t sequences = 0;
    int64_t age = 0;  // Steps without drafts since.
  };
  std::array<Drafting, kMostMtp + 1> drafting_ = {};
  bool drafts_blocks_;
  int64_t steps_without_mtp_ = 0;
  int64_t patience_ = kFirstPatience;
};

}  // namespace dsv4::speculation
