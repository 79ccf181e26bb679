// Counts of experts that a server's requests choose, merged into the profile's file.
#include "apps/serve/expert_learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace dsv4::apps {

Result<ExpertProfile> Joined(const ExpertProfile& older, const ExpertProfile& since) {
  if (older.counts.size() != since.counts.size() ||
      older.counts.front().size() != since.counts.front().size()) {
    return Error(InvalidArgument(fmt::format(
        "expert profile: the kept one has {} of {}, want {} of {}", Counted(older.counts.size(), "layer"),
        Counted(older.counts.empty() ? 0 : older.counts.front().size(), "expert"), since.counts.size(),
        since.counts.front().size())));
  }
  ExpertProfile joined = since;
  if (OfOtherWeights(older, since.weights)) return joined;
  const int64_t weighing = std::min(older.num_tokens, kMostOlderTokens);
  const double share =
      older.num_tokens == 0 ? 0 : static_cast<double>(weighing) / static_cast<double>(older.num_tokens);
  joined.num_tokens += weighing;
  for (size_t layer = 0; layer < joined.counts.size(); ++layer) {
    for (size_t expert = 0; expert < joined.counts[layer].size(); ++expert) {
      joined.counts[layer][expert] +=
          static_cast<int64_t>(share * static_cast<double>(older.counts[layer][expert]) + 0.5);
    }
  }
  return joined;
}

ExpertLearner::ExpertLearner(diag::HookedBackend& backend, LearnerOptions options)
    : backend_(backend),
      options_(std::move(options)),
      counter_(backend, static_cast<size_t>(options_.num_layers), static_cast<size_t>(options_.num_experts)) {
  Watch();
}

void ExpertLearner::Watch() { scope_.emplace(backend_, counter_.Hooks()); }

void ExpertLearner::OnStep() {
  scope_.reset();
  num_tokens_.store(num_kept_ + counter_.num_tokens(), std::memory_order_relaxed);
  if (++steps_ % options_.watched_every == 0) Watch();
  if (std::chrono::steady_clock::now() - kept_ < options_.kept_every) return;
  if (const Status status = Keep(); !status.ok()) LogWarning("experts: " + status.message());
}

Result<ExpertProfile> ExpertLearner::JoinedWith(const ExpertProfile* older) const {
  ExpertProfile since = {.model = options_.model,
                         .weights = options_.weights,
                         .num_tokens = counter_.num_tokens(),
                         .counts = counter_.counts()};
  if (older == nullptr) return since;
  Result<ExpertProfile> joined = Joined(*older, since);
  if (!joined.has_value()) return Error(joined.error().WithContext(options_.path));
  return joined;
}

Status ExpertLearner::CheckFile() const {
  DSV4_RETURN_IF_ERROR(CheckExpertProfilePath(options_.path));
  const Result<ExpertProfile> older = ReadExpertProfile(options_.path);
  if (!older.has_value()) return older.error().code() == StatusCode::kNotFound ? Status() : older.error();
  const Result<ExpertProfile> joined = JoinedWith(&*older);
  return joined.has_value() ? Status() : joined.error();
}

Status ExpertLearner::Keep() {
  kept_ = std::chrono::steady_clock::now();
  if (counter_.num_tokens() == 0) return {};
  DSV4_RETURN_IF_ERROR(
      ChangeExpertProfile(options_.path, [this](const ExpertProfile* older) { return JoinedWith(older); }));
  num_kept_ += counter_.num_tokens();
  counter_.Reset();
  return {};
}

}  // namespace dsv4::apps
