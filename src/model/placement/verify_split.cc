#include "model/placement/verify_split.h"

#include <fmt/format.h>

#include <utility>

namespace dsv4::model {
namespace {

// A split is judged by a token of an answer and some of prompts, which no trial has.
double WithPrompts(double step, const ExpertSplit& split, const ExpertCosts& costs) {
  return step + ExpertTimes::kPromptTokens * TimesOf(split, costs).prompt;
}

std::string Milliseconds(double seconds) { return fmt::format("{:.1f} ms", seconds * 1e3); }

class Verification {
 public:
  Verification(const SplitPlan& plan, const SplitActions& actions) : plan_(plan), actions_(actions) {}

  Result<VerifiedSplit> Run() {
    const ExpertSplit first = plan_.Choose(plan_.costs);
    DSV4_ASSIGN_OR_RETURN(const TrialVerdict verdict, LoadAndTime(first, plan_.costs));
    if (verdict.as_planned) return Keep(first, verdict, "verified: " + VerdictText(verdict));
    const std::string slower = VerdictText(verdict) + ": " + SlowestText(verdict, plan_.costs);
    const ExpertSplit other = plan_.Choose(verdict.corrected);
    const ExpertTimes times = TimesOf(other, verdict.corrected);
    const double promised = verdict.corrected.rest + times.both;
    if (other == first || WithPrompts(promised, other, verdict.corrected) * kClearlyFaster >
                              WithPrompts(verdict.full, first, verdict.corrected)) {
      return Keep(first, verdict,
                  fmt::format("{}; no other split promises a tenth less; {}", slower,
                              Advice({.split = first, .times = TimesOf(first, verdict.corrected)})));
    }
    Say(true, fmt::format("{}; loads again with {}, which promises {}", slower, ToString(other),
                          Milliseconds(promised)));
    Result<TrialVerdict> second = LoadAndTime(other, verdict.corrected);
    if (!second.has_value()) {
      return Return(first, verdict,
                    fmt::format("{} cannot be had ({}), so {} it is, which takes {}", ToString(other),
                                second.error().message(), ToString(first), Milliseconds(verdict.seen)));
    }
    const ExpertCosts& known = second->corrected;
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

  Status Load(const ExpertSplit& split) {
    ++num_loads_;
    return actions_.load(split);
  }
  Result<TrialVerdict> LoadAndTime(const ExpertSplit& split, const ExpertCosts& costs) {
    DSV4_TRY(Load(split));
    const Result<SeenTrial> trial = actions_.time_steps();
    if (!trial.has_value()) {
      return Error(trial.error().WithContext(fmt::format("--experts auto: steps with {}", ToString(split))));
    }
    return JudgeTrial(split, costs, *trial);
  }
  VerifiedSplit Keep(const ExpertSplit& split, const TrialVerdict& verdict, std::string text) {
    Say(!verdict.as_planned, text);
    return {.split = split, .verdict = verdict, .num_loads = num_loads_, .text = std::move(text)};
  }
  Result<VerifiedSplit> Return(const ExpertSplit& first, const TrialVerdict& verdict, std::string text) {
    Say(true, text + "; loads again");
    DSV4_TRY(Load(first));
    return VerifiedSplit{
        .split = first, .verdict = verdict, .num_loads = num_loads_, .text = std::move(text)};
  }

  const SplitPlan& plan_;
  const SplitActions& actions_;
  int num_loads_ = 0;
};

}  // namespace

ExpertSplit SplitPlan::Choose(const ExpertCosts& of) const {
  const ExpertSplit split = ChooseExperts(of).split;
  return split.cached > 0 ? split : without_cache;
}

Result<VerifiedSplit> VerifySplit(const SplitPlan& plan, const SplitActions& actions) {
  return Verification(plan, actions).Run();
}

}  // namespace dsv4::model
