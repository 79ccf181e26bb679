// Judgement of timed steps against a plan of experts: the wrong rate, and the plan that follows.
#include "model/placement/expert_trial.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/placement/expert_draws.h"

namespace dsv4::model {
namespace {

// Pages of a file that are not in memory, of all that the host's experts take: below, they are something
// else's.
constexpr double kFewFromDisk = 0.05;
// Still steps bring nothing, unless a cache has hardly room for one step.
constexpr double kFewMissed = 0.1;
constexpr double kSlowestLink = 1.0 / 1024;

bool RunsBeside(const AskedExperts& asked) { return asked.host > 0 && asked.missed > 0; }

AskedExperts Sum(std::span<const AskedExperts> asked) {
  AskedExperts sum;
  for (const AskedExperts& of : asked) {
    sum.host += of.host;
    sum.missed += of.missed;
  }
  return sum;
}

double ChosenOf(int64_t num_experts, const ExpertCosts& costs) {
  return static_cast<double>(costs.num_layers * costs.top_k * num_experts) /
         static_cast<double>(costs.num_experts);
}

ExpertCosts WithHost(ExpertCosts costs, double factor) {
  costs.host *= factor;
  costs.host_beside *= factor;
  // A trial has no prompt. A host that is slower with a token is so with many; one that is faster need not
  // be.
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
double HostFactor(const ExpertCosts& costs, const SeenStage& seen) {
  if (seen.asked.host <= 0 || seen.host_seconds <= 0) return 1;
  const double rate = seen.asked.host * costs.expert_bytes / seen.host_seconds;
  return rate / (RunsBeside(seen.asked) ? costs.host_beside : costs.host);
}

// All stages' costs with something changed; `change(costs, stage)`.
template <typename Change>
std::vector<ExpertCosts> Changed(std::span<const ExpertCosts> costs, const Change& change) {
  std::vector<ExpertCosts> changed;
  for (size_t i = 0; i < costs.size(); ++i) changed.push_back(change(costs[i], i));
  return changed;
}

std::vector<ExpertCosts> WithLinks(std::span<const ExpertCosts> costs, double factor) {
  return Changed(costs, [&](const ExpertCosts& of, size_t) { return WithLink(of, factor); });
}

// By what the links' rates were, with all else corrected. They are at most as fast as was measured: that is
// the best of several copies.
double LinkFactor(std::span<const ExpertSplit> splits, std::span<const ExpertCosts> costs,
                  std::span<const AskedExperts> asked, double seconds) {
  if (StepSeconds(splits, costs, asked) >= seconds || Sum(asked).missed <= 0) return 1;
  double slow = kSlowestLink;
  double fast = 1;
  constexpr int kHalvings = 40;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (slow + fast) / 2;
    (StepSeconds(splits, WithLinks(costs, middle), asked) > seconds ? slow : fast) = middle;
  }
  return fast;
}

std::vector<AskedExperts> AsksOf(const SeenSteps& seen) {
  std::vector<AskedExperts> asked;
  for (const SeenStage& stage : seen.stages) asked.push_back(stage.asked);
  return asked;
}

double HostSeconds(const SeenSteps& seen) {
  double seconds = 0;
  for (const SeenStage& stage : seen.stages) seconds += stage.host_seconds;
  return seconds;
}

// Whether some of the host's experts were read from disk.
bool FromDisk(std::span<const ExpertSplit> splits, std::span<const ExpertCosts> costs,
              const SeenSteps& seen) {
  for (size_t i = 0; i < splits.size(); ++i) {
    const SeenStage& stage = seen.stages[i];
    if (splits[i].host > 0 && stage.disk_bytes > kFewFromDisk * stage.asked.host * costs[i].expert_bytes)
      return true;
  }
  return false;
}

}  // namespace

AskedExperts PlannedAsks(const ExpertSplit& split, const ExpertCosts& costs) {
  return {.host = ChosenOf(split.host, costs),
          .missed = MissedShare(split, costs) * ChosenOf(costs.num_experts, costs)};
}

double StepSeconds(const ExpertSplit& split, const ExpertCosts& costs, const AskedExperts& asked) {
  const bool beside = RunsBeside(asked);
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

double StepSeconds(std::span<const ExpertSplit> splits, std::span<const ExpertCosts> costs,
                   std::span<const AskedExperts> asked) {
  double seconds = 0;
  for (size_t i = 0; i < splits.size(); ++i) seconds += StepSeconds(splits[i], costs[i], asked[i]);
  return seconds;
}

double RestOf(std::span<const ExpertCosts> costs) {
  double rest = 0;
  for (const ExpertCosts& of : costs) rest += of.rest;
  return rest;
}

TrialVerdict JudgeTrial(std::span<const ExpertSplit> splits, std::span<const ExpertCosts> costs,
                        const SeenTrial& trial) {
  TrialVerdict verdict;
  verdict.from_disk = FromDisk(splits, costs, trial.steps);
  const SeenSteps& seen = verdict.from_disk ? trial.still : trial.steps;
  const std::vector<AskedExperts> asked = AsksOf(seen);
  verdict.asked = Sum(asked);
  verdict.seen = seen.seconds;
  verdict.planned = StepSeconds(splits, costs, asked);
  verdict.as_planned = verdict.seen <= kTolerance * verdict.planned;

  const double planned_rest = RestOf(costs);
  double rest = planned_rest;
  if (Sum(AsksOf(trial.still)).missed <= kFewMissed * Sum(AsksOf(trial.steps)).missed)
    rest = std::max(0.0, trial.still.seconds - HostSeconds(trial.still));
  const auto with_host = [&](const ExpertCosts& of, size_t i) {
    return WithHost(of, HostFactor(of, seen.stages[i]));
  };
  // The plan's are too short or too long in proportion.
  const auto with_rest = [&](const ExpertCosts& of, size_t) {
    const double share = planned_rest > 0 ? of.rest / planned_rest : 1.0 / static_cast<double>(costs.size());
    return WithRest(of, rest * share);
  };
  const std::vector<ExpertCosts> without_link = Changed(Changed(costs, with_host), with_rest);
  const double link = LinkFactor(splits, without_link, asked, verdict.seen);
  verdict.corrected = WithLinks(without_link, link);

  // Time that each rate adds to the plan, stage by stage, and where it adds most.
  const auto added = [&](const auto& change, size_t* most) {
    double sum = 0;
    double largest = 0;
    for (size_t i = 0; i < splits.size(); ++i) {
      const double more =
          StepSeconds(splits[i], change(costs[i], i), asked[i]) - StepSeconds(splits[i], costs[i], asked[i]);
      if (more > largest) *most = i;
      largest = std::max(largest, more);
      sum += more;
    }
    return sum;
  };
  size_t host_stage = 0;
  size_t link_stage = 0;
  const double by_host = added(with_host, &host_stage);
  const double by_link =
      added([&](const ExpertCosts& of, size_t) { return WithLink(of, link); }, &link_stage);
  const double by_rest = rest - planned_rest;
  if (by_host > std::max(by_link, by_rest)) {
    verdict.slowest = StepPart::kHost;
    verdict.slowest_stage = host_stage;
  }
  if (by_link > std::max(by_host, by_rest)) {
    verdict.slowest = StepPart::kLink;
    verdict.slowest_stage = link_stage;
  }
  verdict.beside = RunsBeside(asked[verdict.slowest_stage]);

  // A cache that is not full yet brings more, and a model that chooses some experts more often always less.
  std::vector<AskedExperts> full = asked;
  for (size_t i = 0; i < splits.size(); ++i) {
    const AskedExperts planned = PlannedAsks(splits[i], costs[i]);
    full[i].missed = verdict.from_disk ? planned.missed : std::min(asked[i].missed, planned.missed);
  }
  verdict.full =
      Sum(full).missed == verdict.asked.missed ? verdict.seen : StepSeconds(splits, verdict.corrected, full);
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

std::string SlowestText(const TrialVerdict& verdict, std::span<const ExpertCosts> costs) {
  if (verdict.slowest == StepPart::kRest) {
    return fmt::format("{} {:.1f} ms beside them where {:.1f} were planned",
                       costs.size() > 1 ? "the GPUs take" : "the GPU takes", RestOf(verdict.corrected) * 1e3,
                       RestOf(costs) * 1e3);
  }
  const ExpertCosts& corrected = verdict.corrected[verdict.slowest_stage];
  const ExpertCosts& planned = costs[verdict.slowest_stage];
  const bool beside = verdict.beside;
  const auto rates = [&](const char* what, double seen, double measured) {
    const std::string stage = costs.size() > 1 ? fmt::format("stage {}: ", verdict.slowest_stage) : "";
    return fmt::format("{}{} {:.1f} GB/s where {:.1f} were measured", stage, what, seen / 1e9,
                       measured / 1e9);
  };
  if (verdict.slowest == StepPart::kHost) {
    return rates("the host's kernels read", beside ? corrected.host_beside : corrected.host,
                 beside ? planned.host_beside : planned.host);
  }
  return rates("the link brings", beside ? corrected.link_beside : corrected.link,
               beside ? planned.link_beside : planned.link);
}

}  // namespace dsv4::model
