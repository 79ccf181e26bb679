#include "model/placement/expert_trial.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/placement/expert_draws.h"

namespace dsv4::model {
namespace {

// Pages of a file that are not in memory, of all that the host's experts take: below, they are something else's.
constexpr double kFewFromDisk = 0.05;
// Still steps bring nothing, unless a cache has hardly room for one step.
constexpr double kFewMissed = 0.1;
constexpr double kSlowestLink = 1.0 / 1024;

double ChosenOf(int64_t num_experts, const ExpertCosts& costs) {
  return static_cast<double>(costs.num_layers * costs.top_k * num_experts) /
         static_cast<double>(costs.num_experts);
}

ExpertCosts WithHost(ExpertCosts costs, double factor) {
  costs.host *= factor;
  costs.host_beside *= factor;
  // A trial has no prompt. A host that is slower with a token is so with many; one that is faster need not be.
  costs.host_prompt *= std::min(1.0, factor);
  return costs;
}

ExpertCosts WithLink(ExpertCosts costs, double factor) {
  costs.link *= factor;
  costs.link_beside *= factor;
  return costs;
}

ExpertCosts WithRest(ExpertCosts costs, double rest) {
  costs.rest = rest;
  return costs;
}

// By what the host's rate was wrong.
double HostFactor(const ExpertCosts& costs, const SeenSteps& seen, bool beside) {
  if (seen.asked.host <= 0 || seen.host_seconds <= 0) return 1;
  const double rate = seen.asked.host * costs.expert_bytes / seen.host_seconds;
  return rate / (beside ? costs.host_beside : costs.host);
}

// By what the link's was, with all else corrected. It is at most as fast as was measured: that is the best of several copies.
double LinkFactor(const ExpertSplit& split, const ExpertCosts& costs, const AskedExperts& asked,
                  double seconds) {
  if (asked.missed <= 0 || StepSeconds(split, costs, asked) >= seconds) return 1;
  double slow = kSlowestLink;
  double fast = 1;
  constexpr int kHalvings = 40;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (slow + fast) / 2;
    (StepSeconds(split, WithLink(costs, middle), asked) > seconds ? slow : fast) = middle;
  }
  return fast;
}

}  // namespace

AskedExperts PlannedAsks(const ExpertSplit& split, const ExpertCosts& costs) {
  return {.host = ChosenOf(split.host, costs),
          .missed = MissedShare(split, costs) * ChosenOf(costs.num_experts, costs)};
}

double StepSeconds(const ExpertSplit& split, const ExpertCosts& costs, const AskedExperts& asked) {
  const bool beside = asked.host > 0 && asked.missed > 0;
  const double host_rate = beside ? costs.host_beside : costs.host;
  const double link_rate = beside ? costs.link_beside : costs.link;
  ExpertDraws draws{
      .num_experts = costs.num_experts, .top_k = costs.top_k, .host = split.host, .cached = split.cached};
  TierSeconds seconds;
  // More or fewer than fall on the host by chance weigh as much more or less.
  if (asked.host > 0 && split.host > 0)
    seconds.host = costs.expert_bytes / host_rate * (asked.host / ChosenOf(split.host, costs));
  if (asked.missed > 0 && split.cached > 0) {
    const double share = asked.missed / ChosenOf(split.cached, costs);
    draws.miss_share = std::min(1.0, share);
    seconds.link = costs.expert_bytes / link_rate * std::max(1.0, share);
  }
  return costs.rest + static_cast<double>(costs.num_layers) * MeanSlowestTier(draws, seconds);
}

TrialVerdict JudgeTrial(const ExpertSplit& split, const ExpertCosts& costs, const SeenTrial& trial) {
  const AskedExperts planned = PlannedAsks(split, costs);
  TrialVerdict verdict;
  verdict.from_disk =
      split.host > 0 && trial.steps.disk_bytes > kFewFromDisk * trial.steps.asked.host * costs.expert_bytes;
  const SeenSteps& seen = verdict.from_disk ? trial.still : trial.steps;
  const AskedExperts& asked = seen.asked;
  verdict.asked = asked;
  verdict.seen = seen.seconds;
  verdict.planned = StepSeconds(split, costs, asked);
  verdict.as_planned = verdict.seen <= kTolerance * verdict.planned;

  const double host = HostFactor(costs, seen, asked.host > 0 && asked.missed > 0);
  double rest = costs.rest;
  if (trial.still.asked.missed <= kFewMissed * trial.steps.asked.missed)
    rest = std::max(0.0, trial.still.seconds - trial.still.host_seconds);
  const ExpertCosts without_link = WithRest(WithHost(costs, host), rest);
  const double link = LinkFactor(split, without_link, asked, verdict.seen);
  verdict.corrected = WithLink(without_link, link);

  const double by_host = StepSeconds(split, WithHost(costs, host), asked) - verdict.planned;
  const double by_link = StepSeconds(split, WithLink(costs, link), asked) - verdict.planned;
  const double by_rest = rest - costs.rest;
  if (by_host > std::max(by_link, by_rest)) verdict.slowest = StepPart::kHost;
  if (by_link > std::max(by_host, by_rest)) verdict.slowest = StepPart::kLink;

  // A cache that is not full yet brings more, and a model that chooses some experts more often always less.
  const double missed = verdict.from_disk ? planned.missed : std::min(asked.missed, planned.missed);
  verdict.full = missed == asked.missed
                     ? verdict.seen
                     : StepSeconds(split, verdict.corrected, {.host = asked.host, .missed = missed});
  return verdict;
}

std::string VerdictText(const TrialVerdict& verdict) {
  std::string text =
      fmt::format("{:.1f} ms a step, the plan had {:.1f}", verdict.seen * 1e3, verdict.planned * 1e3);
  const AskedExperts& asked = verdict.asked;
  if (asked.host > 0) text += fmt::format(" for the {:.0f} experts of the host", asked.host);
  if (asked.missed > 0) {
    text += asked.host > 0 ? fmt::format(" and {:.0f} that were brought", asked.missed)
                           : fmt::format(" for the {:.0f} experts that were brought", asked.missed);
  }
  if (verdict.from_disk) text += ", in steps that choose the same again: others still read experts from disk";
  return text;
}

std::string SlowestText(const TrialVerdict& verdict, const ExpertCosts& costs) {
  const ExpertCosts& corrected = verdict.corrected;
  const bool beside = verdict.asked.host > 0 && verdict.asked.missed > 0;
  const auto rates = [](const char* what, double seen, double measured) {
    return fmt::format("{} {:.1f} GB/s where {:.1f} were measured", what, seen / 1e9, measured / 1e9);
  };
  switch (verdict.slowest) {
    case StepPart::kHost:
      return rates("the host's kernels read", beside ? corrected.host_beside : corrected.host,
                   beside ? costs.host_beside : costs.host);
    case StepPart::kLink:
      return rates("the link brings", beside ? corrected.link_beside : corrected.link,
                   beside ? costs.link_beside : costs.link);
    case StepPart::kRest:
      break;
  }
  return fmt::format("the GPU takes {:.1f} ms beside them where {:.1f} were planned", corrected.rest * 1e3,
                     costs.rest * 1e3);
}

}  // namespace dsv4::model
