// Ranks that have sequences of their own: batches whose sequences are on all ranks, on some, on one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

constexpr const char* kGolden = "fp8_mxfp4";

// Steps of five sequences, together, alone, and some; prompts of more than a pass. `places`: where each
// sequence is.
std::vector<std::vector<float>> Serve(model::Model& model, std::vector<int>* places) {
  std::vector<kv::SequenceState> states;
  for (int i = 0; i < 5; ++i) states.push_back(model.NewSequence().value());
  places->clear();
  for (const kv::SequenceState& state : states) places->push_back(state.home().place);
  std::vector<std::vector<float>> seen;
  const auto step = [&](const std::vector<std::pair<size_t, size_t>>& batch) {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<model::SequenceChunk> chunks;
    for (const auto& [sequence, count] : batch) {
      tokens.emplace_back();
      for (size_t i = 0; i < count; ++i)
        tokens.back().push_back(static_cast<int32_t>((seen.size() * 31 + sequence * 7 + i * 3) % 64));
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      chunks.push_back({.state = &states[batch[i].first],
                        .tokens = tokens[i],
                        .logits = i % 2 == 0 ? model::LogitsRows::kAll : model::LogitsRows::kLast});
    }
    const auto output = model.Step(chunks);
    ASSERT_TRUE(output.has_value()) << output.error().ToString();
    seen.emplace_back(output->logits.begin(), output->logits.end());
  };
  step({{0, 3}, {1, 4}, {2, 1}, {3, 21}, {4, 2}});
  step({{4, 1}, {2, 1}, {0, 1}, {3, 1}, {1, 1}});
  step({{1, 1}});
  step({{3, 1}, {1, 17}});
  step({{0, 1}});
  states[3].Reset();
  step({{3, 2}, {4, 1}});
  return seen;
}

TEST(DividedSequences, BatchesAreTheSameWhereverTheirSequencesAre) {
  RanksRun run{.directory = ModelDirectory(kGolden).string(), .options = {.max_chunk_tokens = 8}};
  std::vector<int> places;
  std::vector<std::vector<float>> alone;
  RunModel(run, [&](model::Model& model) { alone = Serve(model, &places); });
  EXPECT_EQ(places, std::vector<int>(5, 0));
  for (const auto& [num_ranks, placement, want] :
       {std::tuple(2, "expert,sequences", std::vector{0, 1, 0, 1, 0}),
        std::tuple(3, "expert,sequences", std::vector{0, 1, 2, 0, 1}),
        std::tuple(4, "pipeline=2,expert,sequences", std::vector{0, 1, 0, 1, 0})}) {
    run.num_ranks = num_ranks;
    run.placement = placement;
    RunModel(run, [&](model::Model& model) { EXPECT_EQ(Serve(model, &places), alone) << placement; });
    EXPECT_EQ(places, want);
  }
}

}  // namespace
}  // namespace dsv4::testing
