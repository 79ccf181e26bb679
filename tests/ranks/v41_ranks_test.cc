// V4.1 on several ranks against one: shared rows, n-gram tables, weights of streams that travel, and a drafter.
#include <gtest/gtest.h>

#include "model/arch/architecture.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

struct Placed {
  int num_ranks;
  const char* placement;
};

RanksRun RunOf(const std::string& golden, model::Numerics numerics) {
  const std::string directory = ModelDirectory("../v41/" + golden).string();
  RanksRun run{.directory = directory, .options = {.numerics = numerics, .max_chunk_tokens = 64}};
  const Json info = ReadJson(directory + "/golden.json");
  if (info.contains("classes")) run.options.token_classes = info.at("classes").get<std::vector<int32_t>>();
  return run;
}

// A prompt in uneven chunks; then a batch of a state and its fork, and one that was taken back.
std::vector<float> RunText(model::Model& model, const std::string& golden) {
  const std::vector<int32_t> tokens = GoldenTokens("../v41/" + golden);
  std::vector<float> logits = RunPieces(model, tokens, {23, 1, 1, 7, 12, 1});
  const std::span<const int32_t> all(tokens);
  auto first = *model.NewSequence();
  const auto step = [&](std::vector<model::SequenceChunk> chunks) {
    const auto output = model.Step(chunks);
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
    if (output) logits.insert(logits.end(), output->logits.begin(), output->logits.end());
  };
  step({{.state = &first, .tokens = all.first(31)}});
  auto second = *first.Fork();
  step({{.state = &first, .tokens = all.subspan(31, 3), .logits = model::LogitsRows::kAll},
        {.state = &second, .tokens = all.subspan(40, 1)}});
  EXPECT_TRUE(first.Rewind(2).ok());
  step({{.state = &second, .tokens = all.subspan(41, 9)}, {.state = &first, .tokens = all.subspan(32, 1)}});
  return logits;
}

std::vector<float> Logits(const RanksRun& run, const std::string& golden) {
  std::vector<float> logits;
  RunModel(run, [&](model::Model& model) { logits = RunText(model, golden); });
  EXPECT_FALSE(logits.empty());
  return logits;
}

class V41Ranks : public ::testing::TestWithParam<const char*> {};

// "deep" has three sources and tables in layers 1 and 5; "plain16" has no candidates, so that tensor divides its entries.
TEST_P(V41Ranks, SameBitsWithoutCutSums) {
  for (const model::Numerics numerics : {model::Numerics::kRelease, model::Numerics::kPlain}) {
    RanksRun run = RunOf(GetParam(), numerics);
    const std::vector<float> alone = Logits(run, GetParam());
    const auto config = model::LoadModelConfig(run.directory);
    for (const Placed& placed :
         {Placed{2, "pipeline"}, Placed{3, "pipeline"}, Placed{2, "expert"}, Placed{3, "expert"},
          Placed{2, "expert,sequences"}, Placed{4, "pipeline=2,expert"}}) {
      run.num_ranks = placed.num_ranks;
      run.placement = placed.placement;
      if (model::ParsePlacement(placed.placement, placed.num_ranks)->num_stages >
          model::MostStages(config->layers))
        continue;
      EXPECT_EQ(Logits(run, GetParam()), alone) << placed.num_ranks << " ranks, " << placed.placement;
    }
  }
}

TEST_P(V41Ranks, NearlySameWithCutSums) {
  RanksRun run = RunOf(GetParam(), model::Numerics::kPlain);
  const std::vector<float> alone = Logits(run, GetParam());
  for (const Placed& placed : {Placed{2, "tensor"}, Placed{3, "tensor"}, Placed{4, "pipeline=2,tensor"}}) {
    run.num_ranks = placed.num_ranks;
    run.placement = placed.placement;
    EXPECT_LT(RelativeError(Logits(run, GetParam()), alone), kCutSums)
        << placed.num_ranks << " ranks, " << placed.placement;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, V41Ranks, ::testing::Values("shared", "engram", "deep", "plain16"),
                         [](const auto& golden) { return std::string(golden.param); });

TEST(V41Ranks, CandidatesWantAllEntries) {
  RanksRun run = RunOf("shared", model::Numerics::kPlain);
  comm::testing::RunRanks(
      2,
      [&](comm::Communicator& group) {
        model::ModelOptions options = run.options;
        options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        options.placement = model::ParsePlacement("expert,entries", 2).value();
        const auto model = LoadRank(run, MakeGoldenBackend("reference", 1), options);
        ASSERT_FALSE(model.has_value());
        EXPECT_EQ(model.error().code(), StatusCode::kUnimplemented);
        EXPECT_NE(model.error().message().find("placement expert,entries: candidate blocks"),
                  std::string::npos)
            << model.error().message();
      },
      std::chrono::minutes(2), comm::testing::Network::kSharedMemory);
}

std::vector<int32_t> QueuedTokens(model::Model& model) {
  kv::SequenceState state = *model.NewSequence();
  model::DecodeChunk chunk{.state = &state, .token = 5, .choice = {.temperature = 0}};
  std::vector<int32_t> tokens;
  std::unique_ptr<model::QueuedStep> now;
  for (int i = 0; i < 12; ++i) {
    auto next = model.QueueDecode({&chunk, 1}, {});
    EXPECT_TRUE(next.has_value()) << next.error().ToString();
    if (!next) return {};
    if (now != nullptr) tokens.push_back((*now->Wait())[0].id);
    now = std::move(*next);
    chunk.follows = 0;
  }
  tokens.push_back((*now->Wait())[0].id);
  return tokens;
}

// All ranks find the rows of a token that rank 0 has waited for.
TEST(V41Ranks, QueuedStepsReadTheTokenThatWasChosen) {
  RanksRun run = RunOf("deep", model::Numerics::kRelease);
  std::vector<int32_t> alone;
  RunModel(run, [&](model::Model& model) { alone = QueuedTokens(model); });
  ASSERT_EQ(alone.size(), 12U);
  run.num_ranks = 2;
  for (const char* placement : {"expert", "expert,sequences"}) {
    run.placement = placement;
    RunModel(run, [&](model::Model& model) { EXPECT_EQ(QueuedTokens(model), alone) << placement; });
  }
}

// Drafts are rank 0's, from taps that stages send.
TEST(V41Ranks, DraftsAreThoseOfOneRank) {
  RanksRun run = RunOf("dspark", model::Numerics::kRelease);
  run.options.dspark = true;
  const std::vector<int32_t> tokens = GoldenTokens("../v41/dspark");
  std::vector<float> alone;
  RunModel(run, [&](model::Model& model) { alone = RunDrafts(model, tokens, 5); });
  ASSERT_FALSE(alone.empty());
  for (const Placed& placed : {Placed{2, "pipeline"}, Placed{2, "expert"}}) {
    run.num_ranks = placed.num_ranks;
    run.placement = placed.placement;
    std::vector<float> got;
    RunModel(run, [&](model::Model& model) { got = RunDrafts(model, tokens, 5); });
    EXPECT_EQ(got, alone) << placed.placement;
  }
}

}  // namespace
}  // namespace dsv4::testing
