// Prompt tokens of steps with answers, by the prices of steps.
#include "engine/schedule/prefill_policy.h"

#include <algorithm>

namespace dsv4::engine {
namespace {

// Tokens a second of an economical piece, of the most.
constexpr double kNearBest = 0.85;
// Prompts that have waited for so many gaps are a backlog, which is read as fast as the aim allows.
constexpr double kBacklog = 2.0;
// Pieces that are compared grow by this.
constexpr double kNextPiece = 1.19;
// A step may take so many times as long as its answers alone: where there is an aim, and where there is none.
constexpr double kStretchOfAim = 2.0;
constexpr double kStretch = 3.0;
// And so many times as long as with the first piece, whose price is mostly its fixed part where that is
// beyond the aim.
constexpr double kStretchOfPiece = 1.5;

}  // namespace

int64_t PrefillPolicy::MostPiece(int64_t answering) const {
  return std::max<int64_t>(limits_.max_step_tokens - answering, 1);
}

double PrefillPolicy::Rate(int64_t answering, int64_t piece) const {
  return static_cast<double>(piece) / prices_.Mixed(answering, piece);
}

double PrefillPolicy::Gap(int64_t answering) const {
  if (limits_.gap_is_bound) return limits_.max_gap;
  const double of_answers = prices_.Decode(answering);
  const double of_first = prices_.Mixed(answering, kFirstPiece);
  if (limits_.max_gap > 0.0)
    return std::max({limits_.max_gap, kStretchOfAim * of_answers, kStretchOfPiece * of_first});
  return prices_.knows_prefill() ? std::max(of_first, kStretch * of_answers) : 0.0;
}

std::optional<int64_t> PrefillPolicy::PieceWithin(int64_t answering, double seconds) const {
  if (!prices_.knows_prefill()) return std::nullopt;
  int64_t within = std::min(kLeastPiece, MostPiece(answering));
  int64_t beyond = MostPiece(answering) + 1;
  while (within + 1 < beyond) {
    const int64_t middle = within + (beyond - within) / 2;
    (prices_.Mixed(answering, middle) <= seconds ? within : beyond) = middle;
  }
  return within;
}

int64_t PrefillPolicy::EconomicalPiece(int64_t answering) const {
  const int64_t first = std::min(kFirstPiece, MostPiece(answering));
  const double gap = Gap(answering);
  const int64_t most =
      gap > 0.0 ? PieceWithin(answering, gap).value_or(first) : std::min(first, MostPiece(answering));
  return NearlyBest(answering, first, most);
}

int64_t PrefillPolicy::PieceBesideOthers() const {
  const int64_t most = MostPiece(0);
  return prices_.knows_prefill() ? NearlyBest(0, std::min(kFirstPiece, most), most) : most;
}

int64_t PrefillPolicy::NearlyBest(int64_t answering, int64_t first, int64_t most) const {
  if (most <= first) return most;
  double best = 0.0;
  for (auto piece = static_cast<double>(first); piece < static_cast<double>(most); piece *= kNextPiece)
    best = std::max(best, Rate(answering, static_cast<int64_t>(piece)));
  best = std::max(best, Rate(answering, most));
  for (auto piece = static_cast<double>(first); piece < static_cast<double>(most); piece *= kNextPiece) {
    if (Rate(answering, static_cast<int64_t>(piece)) >= kNearBest * best) return static_cast<int64_t>(piece);
  }
  return most;
}

int64_t PrefillPolicy::Piece(const PromptLoad& load) const {
  const int64_t most = MostPiece(load.answering);
  const double gap = Gap(load.answering);
  const int64_t within = gap > 0.0 ? PieceWithin(load.answering, gap).value_or(most) : most;
  if (limits_.max_beside_decode > 0) {
    const bool bounded = limits_.gap_is_bound && limits_.max_gap > 0.0 && prices_.knows_prefill();
    if (!bounded) return std::min(limits_.max_beside_decode, most);
    return load.overdue ? within : std::min(within, limits_.max_beside_decode);
  }
  if (!prices_.knows_prefill()) return std::min(kFirstPiece, most);
  if (limits_.max_gap <= 0.0) return EconomicalPiece(load.answering);
  // Steps larger than any that was seen are tried, as far as the aim allows.
  if (load.overdue || prices_.largest_mixed() < load.answering + within) return within;
  if (load.longest_wait > kBacklog * gap || load.num_prompts > load.answering) return within;
  const int64_t piece = EconomicalPiece(load.answering);
  // A rest would be a step of its own.
  return 2 * load.tokens <= 3 * piece ? within : piece;
}

bool PrefillPolicy::Holds(const PromptLoad& load) const {
  if (limits_.max_beside_decode > 0 || limits_.max_gap <= 0.0 || !prices_.knows_prefill()) return false;
  if (load.answering == 0 || load.num_prompts == 0 || load.overdue) return false;
  if (load.longest_wait >= Gap(load.answering)) return false;
  const int64_t piece = EconomicalPiece(load.answering);
  if (load.tokens >= piece) return false;
  // Beyond what these tokens cost as a part of a larger piece.
  const double of_answers = prices_.Decode(load.answering);
  const double as_part = (prices_.Mixed(load.answering, piece) - of_answers) *
                         static_cast<double>(load.tokens) / static_cast<double>(piece);
  const double fixed = prices_.Mixed(load.answering, load.tokens) - of_answers - as_part;
  return load.waited < fixed * static_cast<double>(load.answering);
}

}  // namespace dsv4::engine
