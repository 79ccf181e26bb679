// ExpertProfile: how often each routed expert was chosen, kept in a file between runs. `dsv4 experts profile`
// writes it; --experts reads it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::apps {

struct ExpertProfile {
  std::string model;  // Its name, for people.
  std::string
      weights;  // ModelSource::WeightsStamp of the model that chose; empty: a file of an older version does not say.
  int64_t num_tokens = 0;                    // Tokens that chose,
  std::vector<std::vector<int64_t>> counts;  // by layer and expert.
};

// Path of a model's own profile: a file named after the model in the folder DSV4_EXPERT_PROFILES (empty:
// nowhere), else below XDG_STATE_HOME or ~/.local/state. Empty without a home.
std::string ExpertProfilePath(const ModelSource& source);

// Folders on the way are made. Several processes may write one file. Each does it alone, by a lock on a file
// beside it (PATH.lock), and waits this long at most for others. A busy disk takes seconds to keep a file.
// Unavailable names that file then.
inline constexpr std::chrono::milliseconds kProfilePatience{10'000};
Status WriteExpertProfile(const std::string& path, const ExpertProfile& profile);
// The same with what `change` makes of the profile that is there, null where none is. No other process writes
// in between, so what each of several adds is kept.
using ProfileChange = std::function<Result<ExpertProfile>(const ExpertProfile* kept)>;
Status ChangeExpertProfile(const std::string& path, const ProfileChange& change,
                           std::chrono::milliseconds patience = kProfilePatience);
// Whether a profile could be written there now; makes the folders on the way, and leaves the file as it is.
Status CheckExpertProfilePath(const std::string& path);
// InvalidArgument for what is no profile, or one of layers that differ in their experts; NotFound.
Result<ExpertProfile> ReadExpertProfile(const std::string& path);

// Whether the counts may be those of other weights than these.
bool OfOtherWeights(const ExpertProfile& profile, const std::string& weights);

// By layer the experts that were chosen most often first, the lower id of equals (model::TiersOf).
std::vector<std::vector<int32_t>> OrderByCounts(const ExpertProfile& profile);

// The profile of --expert-profile, or the model's own profile, which is logged. Empty without one. One of
// other weights is not used, with a warning, unless a flag names it. InvalidArgument for one of another
// number of layers or experts; a file that --expert-profile names must be there.
Result<std::vector<std::vector<int32_t>>> ExpertOrderOf(const ModelFlags& flags, const ModelSource& source,
                                                        const model::ModelConfig& config);

}  // namespace dsv4::apps
