// Timed decode steps of a model with expert tiers, until times settle.
#include "apps/tiers/trial_steps.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/stopwatch.h"
#include "diag/statistics.h"
#include "io/disk_rate.h"
#include "ops/sample.h"

namespace dsv4::apps {
namespace {

// As many steps as fit into the time, within bounds.
struct Steps {
  bool still = false;  // Each reads the token of the one before, at its position.
  int least = 0;
  int most = 0;
  double seconds = 0;
};
// A device remembers steps: it takes the first ones another way.
constexpr Steps kWarmUp{.least = 2, .most = 8, .seconds = 0.2};
constexpr Steps kTimed{.least = 3, .most = 32, .seconds = 0.4};
constexpr Steps kStillWarmUp{.still = true, .least = 2, .most = 8, .seconds = 0.1};
constexpr Steps kStill{.still = true, .least = 3, .most = 16, .seconds = 0.2};
constexpr int64_t kMostSteps = kWarmUp.most + kTimed.most + kStillWarmUp.most + kStill.most;

class Trial {
 public:
  Trial(model::Model& model, const TrialOptions& options, kv::SequenceState state)
      : model_(model), options_(options), state_(std::move(state)) {}

  Status Prompt() {
    const int64_t room = model_.config().max_position_embeddings - kMostSteps - 1;
    std::vector<int32_t> tokens(
        static_cast<size_t>(std::max<int64_t>(1, std::min(options_.prompt_tokens, room))));
    for (int32_t& token : tokens) token = RandomToken();
    token_ = RandomToken();
    const model::SequenceChunk chunk{.state = &state_, .tokens = tokens, .logits = model::LogitsRows::kNone};
    const auto output = model_.Step(std::span(&chunk, 1));
    return output.has_value() ? Status() : output.error();
  }

  // Steps one after the other, counted from their first to their last.
  Result<model::SeenSteps> Run(const Steps& steps) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<TierCounts> before, options_.counts());
    std::vector<double> seconds;
    DSV4_TRY(options_.ahead ? Ahead(steps, seconds) : OneByOne(steps, seconds));
    DSV4_ASSIGN_OR_RETURN(const std::vector<TierCounts> now, options_.counts());
    model::SeenSteps seen{.seconds = diag::Median(seconds), .stages = {}};
    const auto count = static_cast<double>(seconds.size());
    for (size_t i = 0; i < now.size(); ++i) {
      const auto of_step = [&](auto TierCounts::*what) {
        return static_cast<double>(now[i].*what - before[i].*what) / count;
      };
      seen.stages.push_back(
          {.host_seconds = of_step(&TierCounts::host_seconds),
           .asked = {.host = of_step(&TierCounts::host_experts), .missed = of_step(&TierCounts::missed)},
           .disk_bytes = of_step(&TierCounts::disk_bytes)});
    }
    return seen;
  }

 private:
  int32_t RandomToken() {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(model_.config().vocab_size));
  }
  static bool Enough(const Steps& steps, size_t count, const Stopwatch& all) {
    const auto so_far = static_cast<int>(count);
    return so_far >= steps.most || (so_far >= steps.least && all.seconds() >= steps.seconds);
  }

  // As an engine does whose backend does not choose.
  Status OneByOne(const Steps& steps, std::vector<double>& seconds) {
    const Stopwatch all;
    while (!Enough(steps, seconds.size(), all)) {
      if (!steps.still) token_ = RandomToken();
      const Stopwatch step;
      const model::SequenceChunk chunk{.state = &state_, .tokens = std::span(&token_, 1)};
      const auto output = model_.Step(std::span(&chunk, 1));
      if (!output.has_value()) return output.error();
      if (steps.still) DSV4_RETURN_IF_ERROR(state_.Rewind(1));
      seconds.push_back(step.seconds());
    }
    return {};
  }

  // As an engine does that schedules ahead. The model's own choices go on like text, and so do the experts
  // that they choose.
  Status Ahead(const Steps& steps, std::vector<double>& seconds) {
    const Stopwatch all;
    DSV4_ASSIGN_OR_RETURN_STATUS(std::unique_ptr<model::QueuedStep> now, Queue(steps.still, true));
    Stopwatch step = all;
    const auto wait = [&]() -> Status {
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<model::ChosenToken> chosen, now->Wait());
      if (chosen.front().fault != ops::kNoFault)
        return Internal("a step chooses no token: its logits are no numbers");
      if (!steps.still) token_ = chosen.front().id;
      seconds.push_back(step.seconds());
      step = Stopwatch();
      return {};
    };
    while (!Enough(steps, seconds.size() + 1, all)) {
      DSV4_ASSIGN_OR_RETURN_STATUS(std::unique_ptr<model::QueuedStep> next, Queue(steps.still, false));
      DSV4_RETURN_IF_ERROR(wait());
      now = std::move(next);
    }
    return wait();
  }
  Result<std::unique_ptr<model::QueuedStep>> Queue(bool still, bool first) {
    const model::DecodeChunk chunk{.state = &state_,
                                   .token = token_,
                                   .follows = still || first ? -1 : 0,
                                   .choice = {.uniform = std::uniform_real_distribution<>()(random_)}};
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<model::QueuedStep> step,
                          model_.QueueDecode(std::span(&chunk, 1), {}));
    // In the device's order the next one writes its rows behind.
    if (still) DSV4_TRY(state_.Rewind(1));
    return step;
  }

  model::Model& model_;
  const TrialOptions& options_;
  kv::SequenceState state_;
  std::mt19937_64 random_;  // Its own, and the same in every start.
  int32_t token_ = 0;       // Token that comes next.
};

}  // namespace

Result<model::SeenTrial> TimeSteps(model::Model& model, const TrialOptions& options) {
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, model.NewSequence());
  Trial trial(model, options, std::move(state));
  DSV4_TRY(trial.Prompt());
  model::SeenTrial seen;
  DSV4_ASSIGN_OR_RETURN(seen.steps, trial.Run(kWarmUp));
  DSV4_ASSIGN_OR_RETURN(seen.steps, trial.Run(kTimed));
  DSV4_ASSIGN_OR_RETURN(seen.still, trial.Run(kStillWarmUp));
  DSV4_ASSIGN_OR_RETURN(seen.still, trial.Run(kStill));
  return seen;
}

TierCounts CountsOf(const ops::Backend& device) {
  const auto host = backend::HostExpertCountersOf(device);
  return {.host_experts = host.experts,
          .host_seconds = host.seconds,
          .missed = backend::ExpertCacheCountersOf(device).misses,
          .disk_bytes = io::BytesReadFromDisk().value_or(0)};
}

int64_t FillingTokens(const model::ExpertSplit& split, const model::ExpertCosts& costs) {
  constexpr int64_t kLeast = 8;
  if (split.cached == 0) return kLeast;
  constexpr double kSeconds = 1;
  constexpr double kMostOfAll = 0.95;  // The last ones come with very many tokens only.
  const auto num_layers = static_cast<double>(costs.num_layers);
  const double in_time = costs.link * kSeconds / costs.expert_bytes / num_layers;
  const double wanted = std::min(static_cast<double>(split.slots) / num_layers, in_time);
  const double share = std::min(wanted / static_cast<double>(split.cached), kMostOfAll);
  // n tokens leave out (1 - top_k / num_experts)^n of the experts.
  const double left_out =
      std::log1p(-static_cast<double>(costs.top_k) / static_cast<double>(costs.num_experts));
  const auto tokens = static_cast<int64_t>(std::ceil(std::log1p(-share) / left_out));
  const int64_t streamed = costs.streamed_choices * costs.num_experts / costs.top_k;
  return std::clamp(tokens, kLeast, std::max(kLeast, streamed - 1));
}

}  // namespace dsv4::apps
