// Policy that learns prices of rows and acceptance of drafts, and decides how many tokens a step verifies.
#include "speculation/draft_policy.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace dsv4::speculation {
namespace {

// Weight of what was seen long ago.
constexpr double kForget = 0.97;
// Before anything was seen: that the first token is right, by evidence.
constexpr std::array<double, kMostEvidence> kFirstGuess = {0.15, 0.25, 0.35, 0.45, 0.5, 0.6,  0.65,
                                                           0.7,  0.75, 0.8,  0.85, 0.9, 0.95, 0.7,
                                                           0.75, 0.25, 0.5,  0.75, 0.93};
constexpr double kPriorWeight = 4.0;

// A sequence's drafts are watched, which costs nothing, before the first is verified, but for repeats so long
// that they are no accident.
constexpr int kLeastSeen = 5;
constexpr int kCertainEvidence = 7;
constexpr double kForgetTrust = 0.95;
constexpr double kTrustWeight = 0.5;

// Steps of one token that drafts of a sequence may lose before anything was seen. Then the share of every
// token's time that they may lose in all, and the most that a first draft may cost.
constexpr double kFirstCredit = 0.2;
constexpr double kCreditOfToken = 0.015;
constexpr double kMostRisked = 0.75;
// For a drafter of whole blocks. One block may cost more than the credit above would ever allow, and its
// first tokens alone do not earn it. So it begins with more, and gets less with time. A sequence of a hundred
// tokens loses no more than with the others.
constexpr double kFirstCreditOfBlocks = 0.7;
constexpr double kBlockCreditOfToken = 0.01;

// A row more costs this part of a row alone until it was measured. Too little rather than too much: what is
// tried is measured.
constexpr double kUnknownRow = 0.15;
// A token of the draft block until it was measured: this part of a step of one row. And a whole block of
// DSpark.
constexpr double kUnknownDrafting = 0.1;
constexpr double kUnknownBlock = 0.25;
constexpr double kNewStep = 0.2;  // Weight of the newest step.
// A price that has not been seen for a while is doubted: a single slow step must not end drafts for ever.
constexpr double kDoubt = 0.001;
constexpr double kDoubtOfDrafting = 0.0005;
// The newest step weighs more, the longer ago the one before was.
constexpr double kWeightOfAge = 0.01;
constexpr double kCheapestRow = 0.02;

}  // namespace

void AcceptanceRecord::Saw(int evidence, int64_t verified, int64_t accepted) {
  auto& counts = counts_[static_cast<size_t>(evidence)];
  for (int64_t depth = 0; depth < verified && depth <= accepted; ++depth) {
    Count& count = counts[static_cast<size_t>(std::min<int64_t>(depth, kDepths - 1))];
    count.right = count.right * kForget + (depth < accepted ? 1.0 : 0.0);
    count.seen = count.seen * kForget + 1.0;
  }
}

double AcceptanceRecord::Probability(int evidence, int64_t depth, double prior, double weight) const {
  const Count& count =
      counts_[static_cast<size_t>(evidence)][static_cast<size_t>(std::min<int64_t>(depth, kDepths - 1))];
  return (count.right + prior * weight) / (count.seen + weight);
}

void DraftPolicy::RecordStep(int64_t rows, int64_t base_rows, double seconds) {
  if (rows < 1 || rows > kMostKnownRows || seconds <= 0.0) return;
  double& cost = cost_[static_cast<size_t>(rows)];
  if (cost == 0.0) {
    cost = seconds;
    return;
  }
  // A step that something else held up says little.
  const double before = cost;
  int64_t& age = age_[static_cast<size_t>(rows)];
  const double weight = std::min(1.0, kNewStep + kWeightOfAge * static_cast<double>(std::exchange(age, 0)));
  cost += weight * (std::clamp(seconds, cost / 2, cost * 2) - cost);
  if (rows != base_rows) return;
  // Whatever makes steps slower (a longer context) makes all of them slower.
  for (size_t i = 1; i < cost_.size(); ++i) {
    if (static_cast<int64_t>(i) == rows || cost_[i] == 0.0) continue;
    cost_[i] *= cost / before;
    ++age_[i];
    const auto more = static_cast<double>(static_cast<int64_t>(i) - rows);
    if (more > 0) cost_[i] = std::max(cost_[i] * (1.0 - kDoubt), cost * (1.0 + kCheapestRow * more));
  }
  for (Drafting& drafting : drafting_) {
    drafting.seconds *= cost / before * (1.0 - kDoubtOfDrafting);
    ++drafting.age;
  }
}

void DraftPolicy::RecordDraft(AcceptanceRecord& record, int evidence, int64_t verified, int64_t accepted) {
  if (evidence < kForcedEvidence) record.Expected(Prior(evidence, 0), accepted > 0);
  record.Saw(evidence, verified, accepted);
  record_.Saw(evidence, verified, accepted);
}

void AcceptanceRecord::Expected(double probability, bool right) {
  trusted_.right = trusted_.right * kForgetTrust + (right ? 1.0 : 0.0);
  trusted_.seen = trusted_.seen * kForgetTrust + probability;
  ++num_expected_;
}

double AcceptanceRecord::Trust() const {
  if (num_expected_ < kLeastSeen) return 0.0;
  return std::min(1.0, (trusted_.right + kTrustWeight) / (trusted_.seen + kTrustWeight));
}

void AcceptanceRecord::Paid(int64_t tokens, int64_t accepted, double cost) {
  num_tokens_ += tokens;
  saved_ += static_cast<double>(accepted) - cost;
}

double AcceptanceRecord::Credit(int evidence) const {
  const auto num_tokens = static_cast<double>(num_tokens_);
  if (evidence >= kDsparkEvidence) return saved_ + kFirstCreditOfBlocks + kBlockCreditOfToken * num_tokens;
  return saved_ + kFirstCredit + kCreditOfToken * num_tokens;
}

double DraftPolicy::Prior(int evidence, int64_t depth) const {
  double prior = kFirstGuess[static_cast<size_t>(evidence)];
  // Acceptance at one position is the first guess for the one behind it.
  for (int64_t i = 0; i <= std::min<int64_t>(depth, 3); ++i)
    prior = record_.Probability(evidence, i, prior, kPriorWeight);
  return prior;
}

double DraftPolicy::RelativeCost(int64_t rows) const {
  int64_t below = std::min(rows, kMostKnownRows);
  while (below > 0 && cost_[static_cast<size_t>(below)] == 0.0) --below;
  int64_t above = rows;
  while (above <= kMostKnownRows && cost_[static_cast<size_t>(above)] == 0.0) ++above;
  if (above > kMostKnownRows) above = 0;
  const double of_below = cost_[static_cast<size_t>(below)];
  const double of_above = cost_[static_cast<size_t>(above)];
  if (below == rows) return of_below;
  if (below > 0 && above > 0)
    return of_below +
           (of_above - of_below) * static_cast<double>(rows - below) / static_cast<double>(above - below);
  // From one side alone, or from nothing.
  const auto relative = [](int64_t count) { return 1.0 + kUnknownRow * static_cast<double>(count - 1); };
  if (below > 0) return of_below * relative(rows) / relative(below);
  if (above > 0) return of_above * relative(rows) / relative(above);
  return relative(rows);
}

void DraftPolicy::RecordDraftTime(int64_t tokens, int64_t sequences, double seconds) {
  patience_ = ShouldTryMtp() ? std::min(2 * patience_, kMostPatience) : kFirstPatience;
  steps_without_mtp_ = 0;
  if (drafts_blocks_) tokens = kMostMtp;
  if (tokens < 1 || tokens > kMostMtp || seconds <= 0.0) return;
  Drafting& drafting = drafting_[static_cast<size_t>(tokens)];
  if (drafting.sequences != sequences) {
    drafting = {.seconds = seconds, .sequences = sequences};
    return;
  }
  // Slow steps say little; what was quicker than all before says much.
  const double of_age = kWeightOfAge * static_cast<double>(std::exchange(drafting.age, 0));
  const double weight = std::min(1.0, (seconds < drafting.seconds ? 0.5 : kNewStep) + of_age);
  drafting.seconds += weight * (std::min(seconds, 2 * drafting.seconds) - drafting.seconds);
}

double DraftPolicy::DraftingCost(int64_t tokens, int64_t sequences) const {
  if (tokens == 0 || sequences == 0) return 0.0;
  if (drafts_blocks_) tokens = kMostMtp;
  // From the number of tokens that is nearest, in proportion.
  int64_t nearest = 0;
  for (int64_t count = 1; count <= kMostMtp; ++count) {
    const bool seen = drafting_[static_cast<size_t>(count)].sequences > 0;
    if (seen && (nearest == 0 || std::abs(count - tokens) < std::abs(nearest - tokens))) nearest = count;
  }
  const double share = static_cast<double>(tokens);
  if (nearest == 0)
    return (drafts_blocks_ ? kUnknownBlock : kUnknownDrafting * share) * RelativeCost(sequences);
  const Drafting& drafting = drafting_[static_cast<size_t>(nearest)];
  return drafting.seconds * share / static_cast<double>(nearest) * RelativeCost(sequences) /
         RelativeCost(drafting.sequences);
}

double DraftPolicy::Probability(const AcceptanceRecord& record, int evidence, int64_t depth) const {
  const double trust = depth == 0 && evidence < kCertainEvidence ? record.Trust() : 1.0;
  return trust * record.Probability(evidence, depth, Prior(evidence, depth), kPriorWeight);
}

double DraftPolicy::Price(int64_t tokens, int64_t drafted, int64_t base_rows, int64_t made,
                          int64_t sequences) const {
  const double of_base = RelativeCost(base_rows);
  double cost = made == 0 ? 0.0 : DraftingCost(made, sequences) / static_cast<double>(sequences);
  if (tokens > 0)
    cost += (RelativeCost(base_rows + drafted) - of_base) * static_cast<double>(tokens) /
            static_cast<double>(drafted);
  return std::max(0.0, cost) * static_cast<double>(base_rows) / of_base;
}

DraftPolicy::Worth DraftPolicy::WorthOf(const AcceptanceRecord& record, int evidence, int64_t most,
                                        int64_t base_rows, int64_t drafters) const {
  const auto base = static_cast<double>(base_rows);
  Worth worth = {.rate = base / RelativeCost(base_rows)};
  double reaches = 1.0;
  for (int64_t depth = 0; depth < most; ++depth) {
    reaches *= Probability(record, evidence, depth);
    worth.tokens += reaches;
    const double drafting =
        drafters == 0 ? 0.0 : DraftingCost(depth + 1, drafters) / static_cast<double>(drafters);
    worth.rate =
        std::max(worth.rate, (base + worth.tokens) / (RelativeCost(base_rows + depth + 1) + drafting));
  }
  return worth;
}

bool DraftPolicy::PrefersMtp(const Candidate& candidate, int64_t base_rows, int64_t drafters) const {
  if (candidate.most_mtp == 0) return false;
  const auto size = static_cast<int64_t>(candidate.draft->tokens.size());
  const Worth of_draft = WorthOf(*candidate.record, candidate.draft->evidence, size, base_rows, 0);
  const Worth of_mtp = WorthOf(*candidate.record, HeadEvidence(), candidate.most_mtp, base_rows, drafters);
  return of_mtp.rate == of_draft.rate ? of_mtp.tokens > of_draft.tokens : of_mtp.rate > of_draft.rate;
}

int64_t DraftPolicy::Affordable(const AcceptanceRecord& record, int evidence, int64_t most, int64_t base_rows,
                                int64_t drafters) const {
  const double credit = record.Credit(evidence);
  int64_t longest = 0;
  std::vector<double> reaches;
  for (int64_t tokens = 1; tokens <= most; ++tokens) {
    reaches.push_back((reaches.empty() ? 1.0 : reaches.back()) * Probability(record, evidence, tokens - 1));
    const double price = Price(tokens, tokens, base_rows, drafters > 0 ? tokens : 0, drafters);
    if (price > std::max(0.0, credit) + kMostRisked) break;
    double lost = price;  // Less what makes up for it.
    for (int64_t i = 0; i < tokens; ++i)
      lost -= reaches[static_cast<size_t>(i)] * std::clamp(price - static_cast<double>(i), 0.0, 1.0);
    if (lost <= credit) longest = tokens;
  }
  return longest;
}

std::vector<Length> DraftPolicy::Lengths(std::span<const Candidate> candidates, int64_t base_rows,
                                         int64_t most_rows) const {
  struct Next {
    size_t candidate;
    double reaches;  // The probability that all up to and with the next token are right.
    int evidence;
    int64_t most;
  };
  std::vector<Length> lengths(candidates.size());
  std::vector<Length> best = lengths;
  std::vector<Next> next;
  const int64_t drafters =
      std::ranges::count_if(candidates, [](const Candidate& candidate) { return candidate.most_mtp > 0; });
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const bool by_mtp = PrefersMtp(candidate, base_rows, drafters);
    lengths[i].by_mtp = by_mtp;
    const int evidence = by_mtp ? HeadEvidence() : candidate.draft->evidence;
    const int64_t most = Affordable(*candidate.record, evidence,
                                    by_mtp ? candidate.most_mtp : std::ssize(candidate.draft->tokens),
                                    base_rows, by_mtp ? drafters : 0);
    if (most > 0) next.push_back({i, Probability(*candidate.record, evidence, 0), evidence, most});
  }
  auto expected = static_cast<double>(base_rows);
  double best_rate = expected / RelativeCost(base_rows);
  int64_t drafted = 0;    // Tokens of the longest draft of the block,
  int64_t sequences = 0;  // and for how many it makes one.
  for (int64_t rows = base_rows + 1; rows <= most_rows && !next.empty(); ++rows) {
    const auto chosen = std::max_element(next.begin(), next.end(),
                                         [](const Next& a, const Next& b) { return a.reaches < b.reaches; });
    expected += chosen->reaches;
    Length& length = lengths[chosen->candidate];
    ++length.tokens;
    if (length.by_mtp) {
      drafted = std::max(drafted, length.tokens);
      if (length.tokens == 1) ++sequences;
    }
    const double rate = expected / (RelativeCost(rows) + DraftingCost(drafted, sequences));
    if (rate > best_rate) {
      best_rate = rate;
      best = lengths;
    }
    if (length.tokens == chosen->most) {
      next.erase(chosen);
    } else {
      chosen->reaches *= Probability(*candidates[chosen->candidate].record, chosen->evidence, length.tokens);
    }
  }
  return best;
}

}  // namespace dsv4::speculation
