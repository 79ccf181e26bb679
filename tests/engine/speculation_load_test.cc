// Drafts under load: batches of 64, preemption, prompts found in the prefix cache, and requests without a
// seed of their own. With each drafter of models/tiny, whose drafts are often right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "engine/engine.h"

namespace dsv4::engine {
namespace {

enum class Kind : uint8_t { kSuffix, kMtp, kDspark };
constexpr Kind kKinds[] = {Kind::kSuffix, Kind::kMtp, Kind::kDspark};
const char* NameOf(Kind kind) {
  constexpr const char* kNames[] = {"suffix", "mtp", "dspark"};
  return kNames[static_cast<size_t>(kind)];
}

std::unique_ptr<model::Model> Load(const std::string& directory, Kind kind) {
  auto model = model::Model::Load(directory, *backend::MakeCpuBackend({.num_threads = 2}),
                                  {.mtp = kind == Kind::kMtp, .dspark = kind == Kind::kDspark});
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  return std::move(*model);
}

model::Model& Tiny(Kind kind) {
  static const std::array<std::unique_ptr<model::Model>, 3> models = {Load("models/tiny", Kind::kSuffix),
                                                                      Load("models/tiny", Kind::kMtp),
                                                                      Load("models/tiny", Kind::kDspark)};
  return *models[static_cast<size_t>(kind)];
}

SpeculationOptions Always(Kind kind, int64_t most = 4) {
  SpeculationOptions options;
  if (kind == Kind::kSuffix) options.make_drafter = speculation::MakeSuffixDrafter;
  options.mtp = kind == Kind::kMtp;
  options.dspark = kind == Kind::kDspark;
  options.always = true;
  options.most_tokens = most;
  return options;
}

int64_t Sum(const EngineStats::DraftCounts& counts) {
  int64_t sum = 0;
  for (const auto& of_source : counts) {
    for (const int64_t count : of_source) sum += count;
  }
  return sum;
}

std::vector<int32_t> RandomPrompt(size_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt = {2};
  while (prompt.size() < length) prompt.push_back(static_cast<int32_t>(300 + random() % 4000));
  return prompt;
}

Request Ask(std::vector<int32_t> prompt, int64_t max_tokens, float temperature, uint64_t seed) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  return request;
}

std::map<RequestId, std::vector<int32_t>> RunAll(Engine& engine) {
  std::map<RequestId, std::vector<int32_t>> answers;
  while (!engine.idle()) {
    for (Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kToken) answers[event.request].push_back(event.token.id);
      if (event.kind == Event::Kind::kFinished) {
        EXPECT_TRUE(event.status.ok()) << event.status.ToString();
      }
    }
  }
  return answers;
}

std::vector<std::vector<int32_t>> Answers(model::Model& model, const EngineOptions& options, int count,
                                          size_t prompt_tokens, int64_t max_tokens, EngineStats* stats) {
  Engine engine(model, options, {});
  for (int i = 0; i < count; ++i) {
    const auto seed = static_cast<uint32_t>(i);
    EXPECT_TRUE(engine
                    .Submit(Ask(RandomPrompt(prompt_tokens + seed % 23, seed / 2), max_tokens - i % 7,
                                i % 3 == 0 ? 0.0F : 0.4F * static_cast<float>(i % 3), seed))
                    .has_value());
  }
  std::vector<std::vector<int32_t>> answers;
  for (auto& [id, answer] : RunAll(engine)) answers.push_back(std::move(answer));
  *stats = engine.stats();
  return answers;
}

TEST(SpeculationLoad, SixtyFourAtATimeGetTheirSerialText) {
  EngineStats stats;
  const auto serial = Answers(Tiny(Kind::kSuffix), {.max_sequences = 1}, 64, 5, 16, &stats);
  ASSERT_EQ(serial.size(), 64U);
  for (const Kind kind : kKinds) {
    for (const bool always : {true, false}) {
      EngineOptions options = {.max_sequences = 64, .speculation = Always(kind)};
      options.speculation.always = always;
      EXPECT_EQ(Answers(Tiny(kind), options, 64, 5, 16, &stats), serial) << NameOf(kind) << ", " << always;
      if (always) {
        EXPECT_GT(Sum(stats.num_accepted_tokens), 30) << NameOf(kind);
        EXPECT_GT(Sum(stats.num_draft_tokens), Sum(stats.num_accepted_tokens)) << NameOf(kind);
      }
    }
  }
}

// All of them outgrow a page of entries.
TEST(SpeculationLoad, PreemptedSequencesGetTheirSerialText) {
  EngineStats stats;
  const auto serial = Answers(Tiny(Kind::kSuffix), {.max_sequences = 1}, 6, 215, 60, &stats);
  for (const Kind kind : kKinds) {
    for (const bool prefix_cache : {false, true}) {
      EngineOptions options = {.max_sequences = 6, .speculation = Always(kind)};
      options.max_state_bytes = 3 * kv::StateBytes(Tiny(kind).cache_layout(), 240);
      options.prefix_cache_bytes = prefix_cache ? int64_t{1} << 28 : 0;
      EXPECT_EQ(Answers(Tiny(kind), options, 6, 215, 60, &stats), serial) << NameOf(kind);
      EXPECT_GT(stats.num_preemptions, 0) << NameOf(kind);
      EXPECT_GT(Sum(stats.num_accepted_tokens), 20) << NameOf(kind);
    }
  }
}

// A state that is found in the prefix cache has the drafter's rows. As many drafts are right behind it as
// behind a prompt that was read, token by token and position by position.
TEST(SpeculationLoad, AcceptanceDoesNotDipBehindAPrefixHit) {
  for (const Kind kind : {Kind::kMtp, Kind::kDspark}) {
    for (const float temperature : {0.0F, 0.6F}) {
      std::vector<int32_t> conversation = RandomPrompt(150, 9);
      Engine warm(Tiny(kind), {.prefix_cache_bytes = int64_t{1} << 28, .speculation = Always(kind)}, {});
      static_cast<void>(*warm.Submit(Ask(conversation, 60, temperature, 1)));
      const std::map<RequestId, std::vector<int32_t>> first = RunAll(warm);
      for (const int32_t token : first.begin()->second) conversation.push_back(token);
      for (const int32_t token : {7, 301, 302}) conversation.push_back(token);
      const EngineStats before = warm.stats();
      static_cast<void>(*warm.Submit(Ask(conversation, 60, temperature, 2)));
      const std::map<RequestId, std::vector<int32_t>> of_warm = RunAll(warm);
      const EngineStats after = warm.stats();
      EXPECT_GT(after.num_cached_tokens - before.num_cached_tokens, 200) << NameOf(kind);

      Engine cold(Tiny(kind), {.speculation = Always(kind)}, {});
      static_cast<void>(*cold.Submit(Ask(conversation, 60, temperature, 2)));
      const std::map<RequestId, std::vector<int32_t>> of_cold = RunAll(cold);
      EXPECT_EQ(of_cold.begin()->second, of_warm.begin()->second) << NameOf(kind);
      // Some, or the comparison says nothing: 6 or more with every tier of the CPU's, whose last bits and so
      // whose answers differ.
      EXPECT_GT(Sum(cold.stats().num_accepted_tokens), 0) << NameOf(kind);
      for (size_t source = 0; source < speculation::kNumSources; ++source) {
        for (size_t place = 0; place < kDraftDepths; ++place) {
          EXPECT_EQ(after.num_draft_tokens[source][place] - before.num_draft_tokens[source][place],
                    cold.stats().num_draft_tokens[source][place])
              << NameOf(kind) << ", place " << place;
          EXPECT_EQ(after.num_accepted_tokens[source][place] - before.num_accepted_tokens[source][place],
                    cold.stats().num_accepted_tokens[source][place])
              << NameOf(kind) << ", place " << place;
        }
      }
    }
  }
}

// Drafts the same two tokens whatever the text.
class Stubborn final : public speculation::Drafter {
 public:
  explicit Stubborn(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  void Read(std::span<const int32_t> /*text*/) override {}
  speculation::Draft Propose(int64_t most) override {
    return {.tokens = {tokens_.begin(), tokens_.begin() + std::min<int64_t>(most, std::ssize(tokens_))}};
  }

 private:
  std::vector<int32_t> tokens_;
};

using Text = std::array<int32_t, 3>;

// Result of serial decoding: the probability of each answer of three tokens.
void Expect(model::Model& model, const sampling::SamplingParams& params, const std::vector<int32_t>& prompt,
            Text text, size_t length, double probability, std::map<Text, double>& all) {
  if (length == text.size()) {
    all[text] = probability;
    return;
  }
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
  auto state = model.NewSequence().value();
  const model::SequenceChunk chunk = {.state = &state, .tokens = tokens};
  const auto output = model.Step({&chunk, 1});
  ASSERT_TRUE(output.has_value());
  std::vector<float> logits(output->Row(0, 0).begin(), output->Row(0, 0).end());
  sampling::PenaltyWindow seen(params.penalty_window);
  for (const int32_t token : tokens) seen.Add(token);
  sampling::ApplyLogitBias(params, logits);
  sampling::ApplyPenalties(params, seen, logits);
  for (const sampling::Candidate& candidate : sampling::FilterCandidates(params, logits)) {
    text[length] = candidate.id;
    Expect(model, params, prompt, text, length + 1, probability * static_cast<double>(candidate.probability),
           all);
  }
}

// Pearson's chi-squared of answers with seeds of the engine's own, whose second and third token are drafted.
// The distribution is the sampler's, with every filter and penalty, whether the draft is likely or not.
TEST(SpeculationLoad, WithoutASeedAnswersHaveTheSamplersDistribution) {
  const auto model = Load("tests/golden/models/nvfp4_experts", Kind::kSuffix);
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  std::vector<sampling::SamplingParams> all_params(5);
  all_params[0].top_k = 3;
  all_params[1].top_k = 4;
  all_params[1].temperature = 0.6F;
  all_params[1].repetition_penalty = 1.5F;
  all_params[2].top_p = 0.12F;
  all_params[2].frequency_penalty = 0.8F;
  all_params[3].min_p = 0.5F;
  all_params[3].presence_penalty = 0.5F;
  all_params[4].top_k = 3;
  all_params[4].logit_bias = {{7, 2.0F}, {11, 2.0F}};
  constexpr int kAnswers = 2000;
  std::mt19937_64 random(20261126);
  for (size_t i = 0; i < all_params.size(); ++i) {
    std::map<Text, double> expected;
    Expect(*model, all_params[i], prompt, {}, 0, 1.0, expected);
    ASSERT_GE(expected.size(), 8U) << i;
    const auto likeliest =
        std::ranges::max_element(expected, {}, [](const auto& entry) { return entry.second; });
    // All prompts in one step: drafts are verified where nothing is read.
    EngineOptions options = {.max_prefill_beside_decode = 512, .max_sequences = 50};
    options.speculation.always = true;
    options.speculation.most_tokens = 2;
    options.speculation.make_drafter = [&] {
      return std::make_unique<Stubborn>(std::vector<int32_t>{likeliest->first[1], likeliest->first[2]});
    };
    Engine engine(*model, options, {});
    for (int n = 0; n < kAnswers; ++n) {
      Request request = Ask(prompt, 4, 1.0F, 0);
      request.sampling = all_params[i];
      request.sampling.seed = random();
      static_cast<void>(*engine.Submit(std::move(request)));
    }
    std::map<Text, int> counts;
    for (const auto& [id, answer] : RunAll(engine)) ++counts[{answer[0], answer[1], answer[2]}];
    EXPECT_GT(Sum(engine.stats().num_accepted_tokens), kAnswers / 60) << i;
    EXPECT_LT(Sum(engine.stats().num_accepted_tokens), Sum(engine.stats().num_draft_tokens)) << i;
    double chi_squared = 0.0;
    int degrees = -1;
    double rest = kAnswers;
    double rest_count = kAnswers;
    for (const auto& [text, probability] : expected) {
      const double want = probability * kAnswers;
      if (want < 5.0) continue;
      chi_squared += (counts[text] - want) * (counts[text] - want) / want;
      ++degrees;
      rest -= want;
      rest_count -= counts[text];
    }
    if (rest >= 5.0) {
      chi_squared += (rest_count - rest) * (rest_count - rest) / rest;
      ++degrees;
    }
    for (const auto& [text, count] : counts)
      EXPECT_TRUE(expected.contains(text))
          << i << ": " << count << " answers that serial decoding never gives";
    // Four standard deviations.
    EXPECT_LT(chi_squared, degrees + 4.0 * std::sqrt(2.0 * degrees)) << i;
    std::cout << "  chi-squared " << chi_squared << " at " << degrees << " degrees of freedom, "
              << Sum(engine.stats().num_accepted_tokens) << " of " << Sum(engine.stats().num_draft_tokens)
              << " drafts right\n";
  }
}

}  // namespace
}  // namespace dsv4::engine
