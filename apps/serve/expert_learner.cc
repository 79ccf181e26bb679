#include "apps/serve/expert_learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace dsv4::apps {
namespace {

ExpertProfile Empty(const LearnerOptions& options) {
  return {.model = options.model,
          .num_tokens = 0,
          .counts = std::vector(static_cast<size_t>(options.num_layers),
                                std::vector<int64_t>(static_cast<size_t>(options.num_experts)))};
}

}  // namespace

Result<ExpertProfile> Joined(const ExpertProfile& older, const ExpertProfile& since) {
  if (older.counts.size() != since.counts.size() ||
      older.counts.front().size() != since.counts.front().size()) {
    return Error(InvalidArgument(
        fmt::format("expert profile: the kept one has {} layers of {} experts, want {} of {}",
                    older.counts.size(), older.counts.empty() ? 0 : older.counts.front().size(),
                    since.counts.size(), since.counts.front().size())));
  }
  ExpertProfile joined = since;
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
    : backend_(backend), options_(std::move(options)), since_(Empty(options_)) {
  Watch();
}

void ExpertLearner::Watch() {
  diag::OpHooks hooks;
  hooks.router = [this](const diag::InnerOp<ops::RouterArgs>& inner, const ops::RouterArgs& args) {
    DSV4_RETURN_IF_ERROR(inner(args));
    return Count(args);
  };
  scope_.emplace(backend_, std::move(hooks));
}

Status ExpertLearner::Count(const ops::RouterArgs& args) {
  const void* const layer = args.bias.is_null() ? args.hash_table.data : args.bias.data;
  auto found = std::ranges::find(layers_, layer);
  if (found == layers_.end()) found = layers_.insert(found, layer);
  const auto index = static_cast<size_t>(found - layers_.begin());
  if (index >= since_.counts.size()) return {};
  std::vector<int32_t> chosen(static_cast<size_t>(args.indices.num_elements()));
  DSV4_RETURN_IF_ERROR(backend_.inner().context->memory().CopyToHost(
      chosen.data(), args.indices.data, chosen.size() * sizeof(int32_t), backend_.inner().context->stream()));
  for (const int32_t expert : chosen) ++since_.counts[index].at(static_cast<size_t>(expert));
  if (index > 0) return {};
  since_.num_tokens += args.indices.shape[0];
  num_tokens_.fetch_add(args.indices.shape[0], std::memory_order_relaxed);
  return {};
}

void ExpertLearner::OnStep() {
  scope_.reset();
  if (++steps_ % options_.watched_every == 0) Watch();
  if (std::chrono::steady_clock::now() - kept_ < options_.kept_every) return;
  if (const Status status = Keep(); !status.ok()) LogWarning("experts: " + status.message());
}

Result<ExpertProfile> ExpertLearner::JoinedWithFile() const {
  const Result<ExpertProfile> older = ReadExpertProfile(options_.path);
  if (!older.has_value()) {
    if (older.error().code() == StatusCode::kNotFound) return since_;
    return Error(older.error());
  }
  Result<ExpertProfile> joined = Joined(*older, since_);
  if (!joined.has_value()) return Error(joined.error().WithContext(options_.path));
  return joined;
}

Status ExpertLearner::CheckFile() const {
  const Result<ExpertProfile> joined = JoinedWithFile();
  return joined.has_value() ? Status() : joined.error();
}

Status ExpertLearner::Keep() {
  kept_ = std::chrono::steady_clock::now();
  if (since_.num_tokens == 0) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertProfile joined, JoinedWithFile());
  DSV4_RETURN_IF_ERROR(WriteExpertProfile(options_.path, joined));
  since_ = Empty(options_);
  return {};
}

}  // namespace dsv4::apps
