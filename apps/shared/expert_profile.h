// ExpertProfile: how often each routed expert was chosen, kept in a file between runs. `dsv4 experts profile` writes it; --experts reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::apps {

struct ExpertProfile {
  std::string model;                         // Its name, for people.
  int64_t num_tokens = 0;                    // That chose,
  std::vector<std::vector<int64_t>> counts;  // by layer and expert.
};

// Where a model's own profile is kept: a file named after the model in the folder DSV4_EXPERT_PROFILES (empty: nowhere), else below
// XDG_STATE_HOME or ~/.local/state. Empty without a home.
std::string ExpertProfilePath(const ModelSource& source);

// Folders on the way are made.
Status WriteExpertProfile(const std::string& path, const ExpertProfile& profile);
// InvalidArgument for what is no profile, or one of layers that differ in their experts; NotFound.
Result<ExpertProfile> ReadExpertProfile(const std::string& path);

// By layer the experts that were chosen most often first, the lower id of equals (model::TiersOf).
std::vector<std::vector<int32_t>> OrderByCounts(const ExpertProfile& profile);

// What --expert-profile says, or the model's own profile, which is logged. Empty without one. InvalidArgument for one of another number of
// layers or experts; a file that --expert-profile names must be there.
Result<std::vector<std::vector<int32_t>>> ExpertOrderOf(const ModelFlags& flags, const ModelSource& source,
                                                        const model::ModelConfig& config);

}  // namespace dsv4::apps
