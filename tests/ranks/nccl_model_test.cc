// A model whose tensors travel by the group over NCCL has the bits of one whose tensors travel through shared
// memory.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/golden/model_runs.h"
#include "tests/ranks/model_ranks.h"
#include "tests/ranks/nccl_testing.h"

namespace dsv4::testing {
namespace {

// Prefill in two passes, then a few tokens, each with a draft behind it.
std::vector<float> Answer(model::Model& model) {
  auto state = model.NewSequence().value();
  std::vector<float> seen;
  for (const std::vector<int32_t>& tokens :
       {std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21},
        {5},
        {6}}) {
    const model::SequenceChunk chunk{.state = &state, .tokens = tokens, .logits = model::LogitsRows::kAll};
    auto output = model.Step({&chunk, 1});
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
    if (!output) return {};
    seen.insert(seen.end(), output->logits.begin(), output->logits.end());
    std::vector<float> drafted(static_cast<size_t>(2 * model.config().vocab_size));
    const model::DraftChunk draft{.state = &state,
                                  .token = 7,
                                  .choices = std::vector<sampling::ChoiceParams>(2, {.temperature = 0}),
                                  .logits = drafted.data()};
    const auto drafts = model.Draft({&draft, 1}, {});
    EXPECT_TRUE(drafts.has_value()) << drafts.error().ToString();
    seen.insert(seen.end(), drafted.begin(), drafted.end());
  }
  return seen;
}

struct GroupsMade {
  std::atomic<int> of_shards = 0;
  std::atomic<int> of_stages = 0;
};

std::vector<float> AnswerByNccl(RanksRun run, GroupsMade& made) {
  std::vector<float> seen;
  comm::testing::RunRanks(
      run.num_ranks,
      [&](comm::Communicator& hosts) {
        FakeDevice device(/*waits=*/true);
        model::ModelOptions options = run.options;
        options.group = {&hosts, [](comm::Communicator*) {}};
        options.placement = model::ParsePlacement(run.placement, run.num_ranks).value();
        options.make_device_group = [&](comm::Communicator& group, model::DeviceGroupOf of) {
          ++(of == model::DeviceGroupOf::kStages ? made.of_stages : made.of_shards);
          return comm::JoinNccl(group, device, OpenFakeNccl(), {});
        };
        auto model = model::Model::Load(run.directory, MakeGoldenBackend(run.backend, 1), options);
        ASSERT_TRUE(model.has_value()) << model.error().ToString();
        if (hosts.rank() == 0) {
          seen = Answer(**model);
        } else {
          const Status end = (*model)->Follow();
          EXPECT_TRUE(end.ok()) << end.ToString();
        }
      },
      std::chrono::minutes(10), run.network);
  return seen;
}

struct Case {
  const char* placement;
  int num_ranks;
  int of_shards;  // Groups of a rank on its device: its stage's,
  int of_stages;  // and that of all stages.
};

TEST(NcclModel, EveryPlacementHasTheBitsOfSharedMemory) {
  for (const Case& c : {Case{"pipeline", 2, 0, 1}, Case{"expert", 3, 1, 0}, Case{"tensor", 2, 1, 0},
                        Case{"tensor,entries", 3, 1, 0}, Case{"expert,entries", 2, 1, 0},
                        Case{"pipeline=2,expert", 4, 1, 1}, Case{"pipeline=2,tensor,entries", 4, 1, 1}}) {
    // The draft block, or behind stages, which send taps from all of them, the drafter of blocks.
    const bool blocks = std::string(c.placement) == "pipeline=2,expert";
    const RanksRun run{.directory = ModelDirectory(blocks ? "dspark" : "fp8_mxfp4").string(),
                       .options = {.max_chunk_tokens = 16, .mtp = !blocks, .dspark = blocks},
                       .num_ranks = c.num_ranks,
                       .placement = c.placement};
    std::vector<float> want;
    RunModel(run, [&](model::Model& model) { want = Answer(model); });
    ASSERT_FALSE(want.empty());
    for (const comm::testing::Network network : comm::testing::kNetworks) {  // Group of the hosts.
      RanksRun by_nccl = run;
      by_nccl.network = network;
      GroupsMade made;
      EXPECT_EQ(AnswerByNccl(by_nccl, made), want) << c.placement << " on " << c.num_ranks << ", " << network;
      EXPECT_EQ(made.of_shards, c.of_shards * c.num_ranks) << c.placement;
      EXPECT_EQ(made.of_stages, c.of_stages * c.num_ranks) << c.placement;
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
