// VerifySplit: loads a model with the split that a plan chose, and times a few steps. Where they are slower
// than planned, the measured times correct the plan. Another split that then promises to be clearly faster is
// loaded and timed too, and the faster one stays.
//
// Loading and timing are the caller's (apps/shared/model_flags.cc); this decides.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/placement/expert_choice.h"
#include "model/placement/expert_trial.h"

namespace dsv4::model {

// Plan of one stage of the model (placement.h); nothing but numbers, so that ranks can tell each other.
struct StagePlan {
  ExpertCosts costs;
  // Split that stands for ChooseExperts' split without cached experts: as many residents as fit to the byte.
  ExpertSplit without_cache;

  ExpertSplit Choose(const ExpertCosts& of) const;
};

// By stage; without several ranks there is one.
using SplitPlan = std::vector<StagePlan>;
using StageSplits = std::vector<ExpertSplit>;

struct SplitActions {
  // Loads the model with these splits, instead of the model loaded before, which is gone even if this fails.
  std::function<Status(const StageSplits&)> load;
  // Times steps of what is loaded, which then is as it was before.
  std::function<Result<SeenTrial>()> time_steps;
  // A line for people; `warning`: not all is as planned.
  std::function<void(bool warning, const std::string& line)> say;
};

struct VerifiedSplit {
  StageSplits splits;    // Splits that are loaded now,
  TrialVerdict verdict;  // and their steps.
  int num_loads = 0;     // At most kMostLoads.
  std::string text;      // All of it in a line.
};

inline constexpr int kMostLoads = 3;  // The first split, another one, and the first again.
// Another split has to promise to be so much faster: loading takes much longer than measuring did.
inline constexpr double kClearlyFaster = 1.1;

// Errors: of the first load and of its steps, and of loading it again. What goes wrong with another split is
// said, and the first one comes back.
Result<VerifiedSplit> VerifySplit(const SplitPlan& plan, const SplitActions& actions);

}  // namespace dsv4::model
