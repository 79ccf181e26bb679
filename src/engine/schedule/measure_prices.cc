// Timed steps and drafts before the first request, as first prices of rows and drafts.
#include "engine/schedule/measure_prices.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace dsv4::engine {
namespace {

constexpr int64_t kPromptTokens = 8;
constexpr double kSecondsOfPasses = 1.5;
constexpr int kTries = 6;  // The first half warms up: a device takes a step that it knows another way.

double Since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// They choose as many different experts as independent tokens do.
std::vector<int32_t> RandomTokens(std::minstd_rand& random, int64_t vocab_size, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size)));
  return tokens;
}

class Measurement {
 public:
  Measurement(model::Model& model, const PriceOptions& options, kv::SequenceState& state)
      : model_(model), options_(options), state_(state) {}

  bool Prompt() {
    const std::vector<int32_t> prompt = Tokens(kPromptTokens);
    const model::SequenceChunk chunk = {
        .state = &state_, .tokens = prompt, .logits = model::LogitsRows::kNone};
    if (!model_.Step(std::span(&chunk, 1)) || !Step(1)) return false;
    begin_ = Clock::now();
    return true;
  }

  // Seconds; none without time, or after an error.
  std::optional<double> OfRows(int64_t rows) {
    if (rows == 1) return OfStepsAhead();
    return Least([&] { return Step(rows); });
  }

  std::optional<double> OfDrafts(int64_t tokens) {
    return Least([&] {
      const model::DraftChunk chunk{
          .state = &state_,
          .token = Tokens(1)[0],
          .choices = std::vector<sampling::ChoiceParams>(static_cast<size_t>(tokens), kGreedy)};
      return model_.Draft(std::span(&chunk, 1), {}).has_value();
    });
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr sampling::ChoiceParams kGreedy{.temperature = 0.0F};

  bool IsOver() const { return Since(begin_) > options_.most_seconds; }

  std::vector<int32_t> Tokens(int64_t count) {
    return RandomTokens(random_, model_.config().vocab_size, count);
  }

  template <typename Run>
  std::optional<double> Least(Run&& run) {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTries; ++i) {
      const Clock::time_point begin = Clock::now();
      if (IsOver() || !run()) return std::nullopt;
      if (i >= kTries / 2) least = std::min(least, Since(begin));
    }
    return least;
  }

  // As the engine runs one that verifies. False after an error.
  bool Step(int64_t rows) {
    const std::vector<int32_t> tokens = Tokens(rows);
    const std::vector<sampling::ChoiceParams> choices(tokens.size(), kGreedy);
    const model::DecodeChunk chunk{.state = &state_,
                                   .token = tokens[0],
                                   .choice = kGreedy,
                                   .draft = std::span(tokens).subspan(1),
                                   .draft_choices = std::span(choices).subspan(1)};
    const auto step = model_.QueueDecode(std::span(&chunk, 1), {});
    return step && (*step)->Wait() && state_.Rewind(rows).ok();
  }

  // From one to the next.
  std::optional<double> OfStepsAhead() {
    std::unique_ptr<model::QueuedStep> now;
    Clock::time_point begin = Clock::now();
    double least = std::numeric_limits<double>::infinity();
    int64_t queued = 0;
    for (int i = 0; i < 2 * kTries && !IsOver(); ++i) {
      const model::DecodeChunk chunk{
          .state = &state_, .token = 1, .follows = now == nullptr ? -1 : 0, .choice = kGreedy};
      auto next = model_.QueueDecode(std::span(&chunk, 1), {});
      if (!next) return std::nullopt;
      ++queued;
      if (now != nullptr && !now->Wait()) return std::nullopt;
      now = std::move(*next);
      const double seconds = Since(std::exchange(begin, Clock::now()));
      if (i >= kTries) least = std::min(least, seconds);
    }
    if (now != nullptr && !now->Wait()) return std::nullopt;
    if (!state_.Rewind(queued).ok() || least > options_.most_seconds) return std::nullopt;
    return least;
  }

  model::Model& model_;
  const PriceOptions& options_;
  kv::SequenceState& state_;
  Clock::time_point begin_;
  std::minstd_rand random_;
};

}  // namespace

void MeasurePrices(model::Model& model, const PriceOptions& options, speculation::DraftPolicy& policy) {
  const int64_t most_taken_back = model.cache_layout().max_rewind_tokens;
  if (most_taken_back < 2 * kTries) return;
  Result<kv::SequenceState> state = model.NewSequence();
  if (!state) return;
  Measurement measurement(model, options, *state);
  if (!measurement.Prompt()) return;
  const int64_t most_rows =
      1 + std::min({options.most_drafted, most_taken_back - 1, model.options().max_chunk_tokens - 1});
  for (int64_t rows = 1; rows <= most_rows; ++rows) {
    const std::optional<double> seconds = measurement.OfRows(rows);
    if (!seconds) return;
    policy.RecordStep(rows, 1, *seconds);
  }
  for (int64_t tokens = 1; tokens <= options.most_mtp_tokens; ++tokens) {
    const std::optional<double> seconds = measurement.OfDrafts(tokens);
    if (!seconds) return;
    policy.RecordDraftTime(tokens, 1, *seconds);
  }
}

void MeasurePasses(model::Model& model, int64_t most_tokens, PrefillPolicy& policy,
                   speculation::DraftPolicy* drafts) {
  using Clock = std::chrono::steady_clock;
  std::minstd_rand random;
  const Clock::time_point begin = Clock::now();
  most_tokens =
      std::min({most_tokens, model.options().max_chunk_tokens, model.config().max_position_embeddings - 1});
  double least = 0.0;
  for (int64_t rows = 1; rows <= most_tokens; rows *= rows < 8 ? 8 : 2) {
    if (Since(begin) + 4.0 * least > kSecondsOfPasses) return;  // As long as these will take at most.
    least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 2; ++i) {  // The first warms up.
      Result<kv::SequenceState> state = model.NewSequence();
      if (!state) return;
      const std::vector<int32_t> prompt = RandomTokens(random, model.config().vocab_size, rows);
      const model::SequenceChunk chunk = {.state = &*state, .tokens = prompt};
      const Clock::time_point began = Clock::now();
      if (!model.Step(std::span(&chunk, 1))) return;
      if (i > 0) least = std::min(least, Since(began));
    }
    policy.RecordStep(rows == 1 ? 1 : 0, rows == 1 ? 0 : rows, least);
    if (drafts != nullptr && rows > 1) drafts->RecordStep(rows, 0, least);
  }
}

}  // namespace dsv4::engine
