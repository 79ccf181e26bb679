// ExpertLearner: counts which routed experts a server's requests choose, and keeps the counts as the model's
// profile (docs/expert-tiers.md).
//
// Some steps are watched, the first one among them: their choices come to the host as the router makes them.
// A watched step is not replayed and waits for the device in every layer, which is why the others are not.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/shared/expert_profile.h"
#include "apps/tiers/choice_counter.h"
#include "base/status.h"
#include "diag/hooked_backend.h"

namespace dsv4::apps {

// `older` and what was counted since; of the older one at most kMostOlderTokens weigh, so that a profile
// follows what a model is used for. Counts of other weights do not weigh.
// InvalidArgument for one of other sizes.
inline constexpr int64_t kMostOlderTokens = 1'000'000;
Result<ExpertProfile> Joined(const ExpertProfile& older, const ExpertProfile& since);

struct LearnerOptions {
  std::string path;     // Path of the profile.
  std::string model;    // For people.
  std::string weights;  // ExpertProfile::weights
  int64_t num_layers = 0;
  int64_t num_experts = 0;               // Experts in a layer.
  int64_t watched_every = 64;            // Steps.
  std::chrono::seconds kept_every{600};  // Besides Keep.
};

// All on the engine's thread, or while it does not run, but for num_tokens.
class ExpertLearner {
 public:
  // The model runs on `backend`, which outlives this.
  ExpertLearner(diag::HookedBackend& backend, LearnerOptions options);

  // Behind each step.
  void OnStep();
  // Joins what was counted with the file, where there is one; other servers may do so with the same file.
  // Nothing where nothing was counted since. What an error has left out is in the next one.
  Status Keep();
  // Whether the file can be written and, where there is one, is a profile that counts can be joined with.
  Status CheckFile() const;
  // Tokens whose choices were counted, from any thread.
  int64_t num_tokens() const { return num_tokens_.load(std::memory_order_relaxed); }

 private:
  void Watch();
  // Counts so far, with the file's; null where there is none.
  Result<ExpertProfile> JoinedWith(const ExpertProfile* older) const;

  diag::HookedBackend& backend_;
  const LearnerOptions options_;
  std::optional<diag::HookedBackend::Scope> scope_;  // While a step is watched.
  int64_t steps_ = 0;
  ChoiceCounter counter_;  // Since the last Keep,
  int64_t num_kept_ = 0;   // and the tokens before.
  std::chrono::steady_clock::time_point kept_ = std::chrono::steady_clock::now();
  std::atomic<int64_t> num_tokens_ = 0;
};

}  // namespace dsv4::apps
