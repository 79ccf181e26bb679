// Loads with a planned split, timed steps, and another split where the plan was wrong.
#include "model/placement/verify_split.h"

#include <fmt/format.h>

#include <span>
#include <utility>

namespace dsv4::model {
namespace {

std::vector<ExpertCosts> CostsOf(const SplitPlan& plan) {
  std::vector<ExpertCosts> costs;
  for (const StagePlan& stage : plan) costs.push_back(stage.costs);
  return costs;
}

StageSplits ChooseEach(const SplitPlan& plan, std::span<const ExpertCosts> costs) {
  StageSplits splits;
  for (size_t i = 0; i < plan.size(); ++i) splits.push_back(plan[i].Choose(costs[i]));
  return splits;
}

// Sum over all stages one after the other.
ExpertTimes SumOfTimes(const StageSplits& splits, std::span<const ExpertCosts> costs) {
  ExpertTimes sum;
  for (size_t i = 0; i < splits.size(); ++i) {
    const ExpertTimes times = TimesOf(splits[i], costs[i]);
    sum.host += times.host;
    sum.link += times.link;
    sum.both += times.both;
    sum.prompt += times.prompt;
  }
  return sum;
}

// A split is judged by a token of an answer and some of prompts, which no trial has.
double WithPrompts(double step, const StageSplits& splits, std::span<const ExpertCosts> costs) {
  return step + ExpertTimes::kPromptTokens * SumOfTimes(splits, costs).prompt;
}

std::string Milliseconds(double seconds) { return fmt::format("{:.1f} ms", seconds * 1e3); }

class Verification {
 public:
  Verification(const SplitPlan& plan, const SplitActions& actions) : plan_(plan), actions_(actions) {}

  Result<VerifiedSplit> Run() {
    const std::vector<ExpertCosts> costs = CostsOf(plan_);
    const StageSplits first = ChooseEach(plan_, costs);
    DSV4_ASSIGN_OR_RETURN(const TrialVerdict verdict, LoadAndTime(first, costs));
    if (verdict.as_planned) return Keep(first, verdict, "verified: " + VerdictText(verdict));
    const std::string slower = VerdictText(verdict) + ": " + SlowestText(verdict, costs);
    const StageSplits other = ChooseEach(plan_, verdict.corrected);
    const double promised = RestOf(verdict.corrected) + SumOfTimes(other, verdict.corrected).both;
    if (other == first || WithPrompts(promised, other, verdict.corrected) * kClearlyFaster >
                              WithPrompts(verdict.full, first, verdict.corrected)) {
      return Keep(
          first, verdict,
          fmt::format("{}; no other split promises a tenth less; {}", slower,
                      Advice({.split = first.front(), .times = SumOfTimes(first, verdict.corrected)})));
    }
    Say(true, fmt::format("{}; loads again with {}, which promises {}", slower, ToString(other),
                          Milliseconds(promised)));
    Result<TrialVerdict> second = LoadAndTime(other, verdict.corrected);
    if (!second.has_value()) {
      return Return(first, verdict,
                    fmt::format("{} cannot be had ({}), so {} it is, which takes {}", ToString(other),
                                second.error().message(), ToString(first), Milliseconds(verdict.seen)));
    }
    const std::vector<ExpertCosts>& known = second->corrected;
    if (WithPrompts(second->full, other, known) < WithPrompts(verdict.full, first, known)) {
      return Keep(other, *second,
                  fmt::format("{}: {}; {} takes {}", second->as_planned ? "verified" : "kept",
                              VerdictText(*second), ToString(first), Milliseconds(verdict.full)));
    }
    return Return(first, verdict,
                  fmt::format("{} takes {} a step, so {} it is, which takes {}", ToString(other),
                              Milliseconds(second->full), ToString(first), Milliseconds(verdict.full)));
  }

 private:
  void Say(bool warning, const std::string& line) const { actions_.say(warning, "experts: " + line); }

  Status Load(const StageSplits& splits) {
    ++num_loads_;
    return actions_.load(splits);
  }
  Result<TrialVerdict> LoadAndTime(const StageSplits& splits, std::span<const ExpertCosts> costs) {
    DSV4_TRY(Load(splits));
    const Result<SeenTrial> trial = actions_.time_steps();
    if (!trial.has_value()) {
      return Error(trial.error().WithContext(fmt::format("--experts auto: steps with {}", ToString(splits))));
    }
    return JudgeTrial(splits, costs, *trial);
  }
  VerifiedSplit Keep(const StageSplits& splits, const TrialVerdict& verdict, std::string text) {
    Say(!verdict.as_planned, text);
    return {.splits = splits, .verdict = verdict, .num_loads = num_loads_, .text = std::move(text)};
  }
  Result<VerifiedSplit> Return(const StageSplits& first, const TrialVerdict& verdict, std::string text) {
    Say(true, text + "; loads again");
    DSV4_TRY(Load(first));
    return VerifiedSplit{
        .splits = first, .verdict = verdict, .num_loads = num_loads_, .text = std::move(text)};
  }

  const SplitPlan& plan_;
  const SplitActions& actions_;
  int num_loads_ = 0;
};

}  // namespace

ExpertSplit StagePlan::Choose(const ExpertCosts& of) const {
  const ExpertSplit split = ChooseExperts(of).split;
  return split.cached > 0 ? split : without_cache;
}

Result<VerifiedSplit> VerifySplit(const SplitPlan& plan, const SplitActions& actions) {
  return Verification(plan, actions).Run();
}

}  // namespace dsv4::model
