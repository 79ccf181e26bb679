// A model whose experts stay in their files (ModelOptions::experts_from_disk). It checks the copies to memory
// and the requests before a step. No logit changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "model/arch/architecture.h"
#include "model/checkpoint/place_weights.h"
#include "model/runtime/model.h"
#include "model/synthetic/synthetic.h"
#include "tests/graph/runs.h"

namespace dsv4::test {
namespace {

std::shared_ptr<const io::Checkpoint> Checkpoint(model::ModelConfig& config) {
  const model::SyntheticOptions options{.shape = "tiny", .format = model::SyntheticFormat::kNvFp4Experts};
  config = *model::ParseModelConfig(*model::SyntheticConfig(options), "config");
  return *model::MakeSyntheticCheckpoint("synthetic:tiny", options, 1);
}

bool InFile(const io::Checkpoint& checkpoint, const TensorView& tensor) {
  return std::ranges::any_of(checkpoint.files(), [&](const io::MappedFile& file) {
    const auto* const data = tensor.as<const std::byte>();
    return data >= file.bytes().data() && data < file.bytes().data() + file.bytes().size();
  });
}

TEST(ExpertsFromDisk, AllButThemAndTheEmbeddingIsCopied) {
  model::ModelConfig config;
  const auto checkpoint = Checkpoint(config);
  model::LoadOptions load{.loaded =
                              [](model::ModelWeights& weights) {
                                return model::PlaceLoaded(ToyBackend(), {.copy_all_but_experts = true},
                                                          weights);
                              },
                          .experts_from_disk = true};
  const Result<model::ModelWeights> weights = model::LoadWeights(checkpoint, config, load);
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  EXPECT_TRUE(InFile(*checkpoint, weights->embed.data));
  EXPECT_FALSE(InFile(*checkpoint, weights->head.data));
  for (const model::LayerWeights& layer : weights->layers) {
    EXPECT_FALSE(InFile(*checkpoint, layer.wq_a.data));
    EXPECT_FALSE(InFile(*checkpoint, layer.wq_a.scale));
    EXPECT_FALSE(InFile(*checkpoint, layer.attn_norm));
    EXPECT_FALSE(InFile(*checkpoint, layer.shared_expert.w2.data));
    for (const model::ExpertWeights& expert : layer.experts) EXPECT_TRUE(InFile(*checkpoint, expert.w3.data));
  }
}

TEST(ExpertsFromDisk, LayersThatChooseByTokenAreAskedForBeforeAStep) {
  model::ModelConfig config;
  const auto checkpoint = Checkpoint(config);
  const auto run = [&](const std::shared_ptr<io::ChosenReads>& reads, int64_t num_tokens) {
    model::ModelOptions options;
    options.experts_from_disk = reads;
    const auto model = model::Model::FromCheckpoint(config, checkpoint, ToyBackend(), options);
    EXPECT_TRUE(model.has_value());
    kv::SequenceState state = NewSequence(**model);
    const std::vector<int32_t> tokens = RandomTokens(num_tokens, 5);
    const model::SequenceChunk chunk{.state = &state, .tokens = tokens, .logits = model::LogitsRows::kAll};
    const Result<model::StepOutput> output = (*model)->Step({&chunk, 1});
    EXPECT_TRUE(output.has_value());
    return std::vector<float>(output->logits.begin(), output->logits.end());
  };
  const auto reads = std::make_shared<io::ChosenReads>();
  EXPECT_EQ(run(reads, 3), run(nullptr, 3));
  EXPECT_TRUE(reads->started());
  // Two of eight experts a token, of the one such layer. The reference backend names none of them by itself.
  EXPECT_EQ(reads->num_bytes(), 0);
  const int64_t asked = reads->num_bytes_ahead();
  const int64_t expert = 3 * config.hidden_size * config.moe_intermediate_size * 9 / 16;
  EXPECT_EQ(asked % expert, 0);
  EXPECT_GE(asked / expert, 2);
  EXPECT_LE(asked / expert, 6);
  // One of many tokens wants most of a layer.
  EXPECT_EQ(run(reads, 40), run(nullptr, 40));
  EXPECT_EQ(reads->num_bytes_ahead(), 0);
}

}  // namespace
}  // namespace dsv4::test
