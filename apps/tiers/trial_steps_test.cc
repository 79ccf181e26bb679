// Timed steps of a model on the host: what is counted, and that nothing of them stays.
#include "apps/tiers/trial_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace dsv4::apps {
namespace {

std::unique_ptr<model::Model> LoadTiny() {
  auto loaded = model::Model::Load("models/tiny", *backend::MakeCpuBackend({.num_threads = 1}), {});
  DSV4_CHECK(loaded.has_value()) << loaded.error().ToString();
  return std::move(*loaded);
}

std::vector<float> LogitsOf(model::Model& model) {
  auto state = model.NewSequence();
  DSV4_CHECK(state.has_value());
  const std::vector<int32_t> tokens = {288, 4495, 1938, 3333};
  const model::SequenceChunk chunk{.state = &*state, .tokens = tokens, .logits = model::LogitsRows::kAll};
  const auto output = model.Step({&chunk, 1});
  DSV4_CHECK(output.has_value()) << output.error().ToString();
  return {output->logits.begin(), output->logits.end()};
}

TEST(TrialSteps, OneByOneAndAheadLeaveTheModelAsItWas) {
  const auto model = LoadTiny();
  const std::vector<float> before = LogitsOf(*model);
  for (const bool ahead : {false, true}) {
    int looks = 0;
    const auto seen = TimeSteps(*model, {.counts =
                                             [&] {
                                               ++looks;
                                               // The second stage has four times as much to do.
                                               std::vector<TierCounts> counts;
                                               for (const int times : {looks, 4 * looks}) {
                                                 counts.push_back({.host_experts = times * 320'000,
                                                                   .host_seconds = 0.5 * times,
                                                                   .missed = times * 96'000,
                                                                   .disk_bytes = times * 1'000'000});
                                               }
                                               return counts;
                                             },
                                         .prompt_tokens = 20,
                                         .ahead = ahead});
    ASSERT_TRUE(seen.has_value()) << seen.error().ToString();
    EXPECT_EQ(looks, 8) << "around each of four runs";
    for (const model::SeenSteps& steps : {seen->steps, seen->still}) {
      EXPECT_GT(steps.seconds, 0);
      // Counts between two looks are shared out among the steps between them.
      ASSERT_EQ(steps.stages.size(), 2U);
      EXPECT_GE(steps.stages[0].asked.host, 10'000);
      EXPECT_LE(steps.stages[0].asked.host, 320'000 / 3);
      EXPECT_NEAR(steps.stages[1].asked.host, 4 * steps.stages[0].asked.host, 1e-6);
      for (const model::SeenStage& stage : steps.stages) {
        EXPECT_NEAR(stage.asked.missed, 0.3 * stage.asked.host, 1e-6);
        EXPECT_NEAR(stage.host_seconds, 0.5 / 320'000 * stage.asked.host, 1e-9);
        EXPECT_NEAR(stage.disk_bytes, 1e6 / 320'000 * stage.asked.host, 1e-3);
      }
    }
    EXPECT_EQ(LogitsOf(*model), before);
  }
}

TEST(TrialSteps, APromptFillsTheSlotsAndIsNotStreamed) {
  const model::ExpertCosts flash{.num_layers = 43,
                                 .num_experts = 256,
                                 .top_k = 6,
                                 .expert_bytes = 14.16e6,
                                 .link = 55e9,
                                 .streamed_choices = 4};
  const auto tokens = [&](const model::ExpertSplit& split) { return FillingTokens(split, flash); };
  EXPECT_EQ(tokens({.resident = 64, .host = 192}), 8);
  // 18 of a layer's 256 experts: three tokens choose as many.
  EXPECT_EQ(tokens({.cached = 256, .slots = 763}), 8);
  // 57 of 256: 11 tokens.
  EXPECT_EQ(tokens({.cached = 256, .slots = 2458}), 11);
  // The link brings 90 of a layer's in a second.
  EXPECT_EQ(tokens({.cached = 256, .slots = 43 * 255}), 19);
  // Small ones all come in time, and still the prompt is none that asks for all.
  model::ExpertCosts small = flash;
  small.expert_bytes = 1e5;
  EXPECT_LT(FillingTokens({.cached = 256, .slots = 43 * 256}, small), 4 * 256 / 6);
  EXPECT_GT(FillingTokens({.cached = 256, .slots = 43 * 256}, small), 100);
}

}  // namespace
}  // namespace dsv4::apps
