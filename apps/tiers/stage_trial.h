// --experts auto: the split of a model is verified (model::VerifySplit). Where its stages are on several
// ranks, rank 0 verifies the splits of all of them, and the others do as it says. All ranks call it together,
// each with its own part.
#pragma once

#include <functional>
#include <string>

#include "apps/tiers/trial_steps.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "model/placement/verify_split.h"
#include "model/runtime/model.h"

namespace dsv4::apps {

// Plan of every rank from its own rates, by rank.
Result<model::SplitPlan> GatherPlans(comm::Communicator& group, const model::StagePlan& mine);

// Actions of this rank.
struct StageActions {
  // Loads its part instead of the part loaded before. All ranks are in it together; an error of one is that
  // of all, or ends the group.
  std::function<Status(const model::ExpertSplit&)> load;
  // Model that is loaded.
  std::function<model::Model&()> model;
  std::function<TierCounts()> counts;
};

using SayLine = std::function<void(bool warning, const std::string& line)>;

// Without several ranks: the same of one stage.
Result<model::VerifiedSplit> VerifyAlone(const model::SplitPlan& plan, const StageActions& actions,
                                         const SayLine& say);

// Rank 0. The others follow its model when it returns. The errors of model::VerifySplit, and of the group.
Result<model::VerifiedSplit> LeadVerification(comm::Communicator& group, const model::SplitPlan& plan,
                                              const StageActions& actions, const SayLine& say);
// The others. Returns with the split loaded that rank 0 keeps; then their model is to follow.
Status FollowVerification(comm::Communicator& group, const StageActions& actions);

}  // namespace dsv4::apps
