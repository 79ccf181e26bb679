// Layers that share rows, on several stages and shards against one rank.
#include <gtest/gtest.h>

#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

std::vector<float> RunText(model::Model& model) {
  const auto tokens = ReadJson(SharedDirectory() / "tokens.json").get<std::vector<int32_t>>();
  return RunPieces(model, std::span(tokens).first(150), {90, 1, 7, 40});
}

class SharedRowsRanks : public ::testing::TestWithParam<const char*> {};

TEST_P(SharedRowsRanks, LogitsAreThoseOfOneRank) {
  RanksRun run{.directory = SharedDirectory().string(),
               .options = {.numerics = model::Numerics::kPlain, .max_chunk_tokens = 64},
               .backend = GetParam(),
               .config = SharedConfig};
  std::vector<float> alone;
  RunModel(run, [&](model::Model& model) { alone = RunText(model); });
  ASSERT_FALSE(alone.empty());
  struct Placed {
    int num_ranks;
    const char* placement;
  };
  for (const Placed& placed :
       {Placed{2, "pipeline"}, Placed{3, "pipeline"}, Placed{2, "expert"}, Placed{2, "expert,entries"},
        Placed{2, "expert,sequences"}, Placed{2, "tensor"}, Placed{2, "tensor,entries"},
        Placed{4, "pipeline=2,expert,entries"}}) {
    run.num_ranks = placed.num_ranks;
    run.placement = placed.placement;
    RunModel(run, [&](model::Model& model) {
      EXPECT_LT(RelativeError(RunText(model), alone), kCutSums)
          << placed.placement << " of " << placed.num_ranks;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedRowsRanks, ::testing::Values("reference", "cpu_scalar"));

// Four places to cut: in front of layer 0 and of the three layers whose rows others read.
TEST(SharedRowsRanks, AStageBeginsOnlyInFrontOfAnOwner) {
  const model::ModelConfig config = SharedConfig();
  EXPECT_EQ(model::MostStages(config.layers), 4);
  RanksRun run{.directory = SharedDirectory().string(), .options = {}, .config = SharedConfig};
  comm::testing::RunRanks(
      5,
      [&](comm::Communicator& group) {
        model::ModelOptions options;
        options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        options.placement = model::ParsePlacement("pipeline", 5).value();
        const auto model = LoadRank(run, MakeGoldenBackend("reference", 1), options);
        ASSERT_FALSE(model.has_value());
        EXPECT_NE(model.error().message().find("got 5 stages, want at most 4 of 9 layers"), std::string::npos)
            << model.error().message();
      },
      std::chrono::minutes(2), comm::testing::Network::kSharedMemory);
}

}  // namespace
}  // namespace dsv4::testing
