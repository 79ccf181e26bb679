// A model whose layers share entries, indexer keys and choices, on every backend against its NumPy twin
// (tools/golden/make_shared.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "io/checkpoint.h"
#include "tests/golden/model_runs.h"

namespace dsv4::testing {
namespace {

using model::Numerics;
using ::testing::HasSubstr;

std::unique_ptr<model::Model> Load(const std::string& backend, Numerics numerics,
                                   const std::function<void(model::ModelConfig&)>& edit = {}) {
  model::ModelConfig config = SharedConfig();
  if (edit) edit(config);
  auto checkpoint = io::Checkpoint::Open(SharedDirectory().string());
  EXPECT_TRUE(checkpoint.has_value());
  auto model = model::Model::FromCheckpoint(std::move(config), *checkpoint, MakeGoldenBackend(backend),
                                            {.numerics = numerics});
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  return model ? *std::move(model) : nullptr;
}

std::vector<int32_t> Tokens() {
  return ReadJson(SharedDirectory() / "tokens.json").get<std::vector<int32_t>>();
}

std::vector<float> Wanted(Numerics numerics) {
  const char* const file = numerics == Numerics::kPlain ? "logits.plain.npy" : "logits.release.npy";
  return ReadNpy(SharedDirectory() / file).values;
}

// Nine layers amplify rounding. The twin itself, with products in float32, comes to a median of 0.99988 and a
// 5th percentile of 0.9994 of its release logits. Without any rounding it comes to 0.9996 and 0.9986.
CosineBound Bound(Numerics numerics) {
  return numerics == Numerics::kPlain ? PlainBound() : CosineBound{.min = -1, .median = 0.9998, .p5 = 0.9992};
}

Comparison Compare(model::Model& model, std::vector<int64_t> pieces, Numerics numerics) {
  const std::vector<float> got = RunPieces(model, Tokens(), std::move(pieces));
  return CheckCosines(RowCosines(got, Wanted(numerics), model.config().vocab_size), Bound(numerics));
}

class SharedRows : public ::testing::TestWithParam<std::string> {};

TEST_P(SharedRows, LogitsAreTheTwinsInEveryCut) {
  for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
    const auto model = Load(GetParam(), numerics);
    ASSERT_NE(model, nullptr);
    const Comparison comparison = Compare(*model, {1000}, numerics);
    EXPECT_TRUE(comparison.passed) << comparison.message;
    const std::vector<float> whole = RunPieces(*model, Tokens(), {1000});
    for (const int64_t piece : {128, 37, 7, 1})
      EXPECT_EQ(RunPieces(*model, Tokens(), {piece}), whole) << "pieces of " << piece;
  }
}

// Rows that layers share are taken back and copied once.
TEST_P(SharedRows, StatesAreRewoundAndForked) {
  const auto model = Load(GetParam(), Numerics::kPlain);
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> tokens = Tokens();
  const auto step = [&](kv::SequenceState& state, size_t begin, size_t end) {
    const model::SequenceChunk chunk{.state = &state,
                                     .tokens = std::span(tokens).subspan(begin, end - begin),
                                     .logits = model::LogitsRows::kLast};
    const auto output = model->Step({&chunk, 1});
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
    return std::vector<float>(output->logits.begin(), output->logits.end());
  };
  auto state = model->NewSequence().value();
  step(state, 0, 100);
  const std::vector<float> straight = step(state, 100, 120);
  ASSERT_TRUE(state.Rewind(20).ok());
  EXPECT_EQ(step(state, 100, 120), straight);
  ASSERT_TRUE(state.Rewind(20).ok());
  auto fork = state.Fork().value();
  step(state, 120, 140);
  EXPECT_EQ(step(fork, 100, 120), straight);
}

// The cache keeps a row once, with its owner.
TEST_P(SharedRows, ReadersKeepNone) {
  const auto model = Load(GetParam(), Numerics::kRelease);
  ASSERT_NE(model, nullptr);
  const kv::CacheLayout& layout = model->cache_layout();
  for (int layer = 0; layer < 9; ++layer) {
    const bool owner = layer == 1 || layer == 5 || layer == 7;
    EXPECT_EQ(layout.HasPages(layer, kv::PageKind::kEntries), owner) << layer;
    EXPECT_EQ(layout.HasPages(layer, kv::PageKind::kIndexerKeys), owner && layer != 7) << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedRows, ::testing::ValuesIn(GoldenBackends()));

// Each mistake of a plan is far outside of the bound: what the twin proves is whose rows a layer reads.
TEST(SharedRowsMistakes, EveryOwnerMatters) {
  struct Mistake {
    const char* name;
    std::function<void(std::vector<model::LayerPlan>&)> edit;
  };
  const std::vector<Mistake> mistakes = {
      {"a reader sees the window alone", [](auto& p) { p[4].entries = p[4].selection = -1, p[4].ratio = 0; }},
      {"a reader sees all entries", [](auto& p) { p[2].selection = -1; }},
      {"the plain rotation beside entries", [](auto& p) { p[6].rope = model::RopeKind::kPlain; }},
      {"a reader of all entries sees none", [](auto& p) { p[8].entries = -1, p[8].ratio = 0; }}};
  for (const Mistake& mistake : mistakes) {
    const auto model =
        Load("reference", Numerics::kPlain, [&](model::ModelConfig& config) { mistake.edit(config.layers); });
    ASSERT_NE(model, nullptr);
    EXPECT_FALSE(Compare(*model, {1000}, Numerics::kPlain).passed) << mistake.name;
  }
}

// The loader asks the plans, so a checkpoint without an owner's tensors is refused by their names.
TEST(SharedRowsMistakes, OwnersWantTheirTensors) {
  model::ModelConfig config = SharedConfig();
  config.layers[2].entries = config.layers[2].keys = config.layers[2].selection = 2;
  auto model = model::Model::FromCheckpoint(std::move(config),
                                            io::Checkpoint::Open(SharedDirectory().string()).value(),
                                            MakeGoldenBackend("reference"), {});
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().message(), HasSubstr("layers.2.attn.compressor.wkv"));
}

}  // namespace
}  // namespace dsv4::testing
