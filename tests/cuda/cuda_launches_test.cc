// The host's part of a step where there is no device (null_runtime.cc): which of its lists of launches come
// again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/groups/cuda_group.h"
#include "backend/cuda/groups/peer_group.h"
#include "comm/ranks_testing.h"
#include "tests/cuda/flash_sizes.h"

namespace dsv4::testing {
namespace {

// A generation of 600 tokens from nothing. Its lists are those of a step that completes no entry, one of
// ratio 4 or one of each ratio. There are others once keys are more than a cluster's blocks take in one tile
// each. A list is replayed from the third time on. The second sequence, elsewhere in memory, replays the
// lists of the first. The model has five layers, which leave no list so short that it would not be replayed.
TEST(CudaLaunches, AGenerationReplaysNearlyAllOfItsLists) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = MakeFlash(backend, {}, 5);
  constexpr int kTokens = 600;
  std::vector<kv::SequenceState> sequences;
  for (const int64_t allowed : {24, 0}) {
    sequences.push_back(Take(model->NewSequence()));
    const backend::CudaCounters before = backend::CountersOf(backend);
    for (int32_t token = 0; token < kTokens; ++token) {
      const model::SequenceChunk chunk = {.state = &sequences.back(), .tokens = {&token, 1}};
      ASSERT_TRUE(model->Step({&chunk, 1}).has_value());
    }
    const backend::CudaCounters after = backend::CountersOf(backend);
    const int64_t lists = after.lists - before.lists;
    const int64_t replayed = after.replayed_lists - before.replayed_lists;
    EXPECT_GE(lists, 2 * kTokens);
    EXPECT_LE(lists - replayed, allowed) << "of " << lists << " lists";
  }
}

// Steps that choose their tokens, each queued before the one in front was waited for. Halves of staging
// memory and of the host's take turns, so that there are twice as many lists. A second sequence begins with
// the other half and has some lists again. A step is one list.
TEST(CudaLaunches, AGenerationThatRunsAheadReplaysNearlyAllOfItsLists) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = MakeFlash(backend);
  constexpr int kTokens = 600;
  std::vector<kv::SequenceState> sequences;
  for (const int64_t allowed : {24, 13}) {
    sequences.push_back(Take(model->NewSequence()));
    const backend::CudaCounters before = backend::CountersOf(backend);
    model::DecodeChunk chunk{.state = &sequences.back(), .token = 1, .choice = {.top_p = 0.9F}};
    std::unique_ptr<model::QueuedStep> now = Take(model->QueueDecode({&chunk, 1}, {}));
    chunk.follows = 0;
    for (int i = 1; i < kTokens; ++i) {
      std::unique_ptr<model::QueuedStep> next = Take(model->QueueDecode({&chunk, 1}, {}));
      ASSERT_TRUE(now->Wait().has_value());
      now = std::move(next);
    }
    ASSERT_TRUE(now->Wait().has_value());
    const backend::CudaCounters after = backend::CountersOf(backend);
    const int64_t lists = after.lists - before.lists;
    const int64_t replayed = after.replayed_lists - before.replayed_lists;
    EXPECT_GE(lists, kTokens);
    EXPECT_LE(lists, kTokens + 30) << "what sequences and pages are made of comes between";
    EXPECT_LE(lists - replayed, allowed) << "of " << lists << " lists";
  }
}

// The launches of steps of one token, one after the other behind so many.
std::vector<int64_t> LaunchesOfSteps(const ops::Backend& backend, model::Model& model, size_t depth) {
  kv::SequenceState sequence = Take(model.NewSequence());
  if (depth > 0) {
    const std::vector<int32_t> tokens(depth, 1);
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = tokens};
    EXPECT_TRUE(model.Step({&chunk, 1}).has_value());
  }
  std::vector<int64_t> launches;
  for (int i = 0; i < 12; ++i) {
    const backend::CudaCounters before = backend::CountersOf(backend);
    const int32_t token = 1;
    const model::SequenceChunk chunk = {.state = &sequence, .tokens = {&token, 1}};
    EXPECT_TRUE(model.Step({&chunk, 1}).has_value());
    launches.push_back(backend::CountersOf(backend).launches - before.launches);
  }
  return launches;
}

// A model of V4.1 with so many layers. Its tables of n-grams have numbers, since rows are read before they are
// copied.
std::unique_ptr<model::Model> MakeV41(const ops::Backend& backend, int num_layers) {
  model::SyntheticOptions options = Take(model::ParseSyntheticName("synthetic:mini41"));
  options.num_layers = num_layers;
  auto config = Take(model::ParseModelConfig(Take(model::SyntheticConfig(options)), "mini41"));
  model::ModelOptions model_options;
  model_options.token_classes.resize(static_cast<size_t>(config.vocab_size));
  std::iota(model_options.token_classes.begin(), model_options.token_classes.end(), 0);
  return Take(model::Model::FromCheckpoint(
      std::move(config), Take(model::MakeSyntheticCheckpoint("mini41", options, 1)), backend, model_options));
}

// The sixth and the ninth layer attend to entries that another one chose. Nothing sorts them again, and what
// ends the layer in front is fused with what begins this one, although weights of streams travel between them.
TEST(CudaLaunches, ALayerThatSharesAChoiceIsElevenLaunches) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto launches = [&](int num_layers) {
    return LaunchesOfSteps(backend, *MakeV41(backend, num_layers), 8194)[1];  // The first one brings pages.
  };
  EXPECT_EQ(launches(6) - launches(5), 11);
  EXPECT_EQ(launches(9) - launches(8), 11);
}

// An entry of four tokens is pooled where its row is normed, rotated and stored, beside all other rows of the
// layer. One of 128 tokens is pooled by a launch in front, for many blocks.
TEST(CudaLaunches, EntriesOfFewTokensNeedNoLaunch) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  constexpr size_t kDepth = 116;
  const std::vector<int64_t> launches = LaunchesOfSteps(backend, *MakeFlash(backend), kDepth);
  for (size_t i = 0; i < launches.size(); ++i) {
    const bool completes_128 = (kDepth + i + 1) % 128 == 0;
    EXPECT_EQ(launches[i], launches[0] + (completes_128 ? 1 : 0)) << "position " << kDepth + i;
  }
}

// The launches of a step of so many rows of one sequence, for each of `num_rows`.
std::vector<int64_t> LaunchesOfRows(const ops::Backend& backend, model::Model& model,
                                    const std::vector<size_t>& num_rows) {
  constexpr size_t kDepth = 23 * 128;  // No step completes an entry of 128 tokens.
  kv::SequenceState sequence = Take(model.NewSequence());
  const std::vector<int32_t> tokens(kDepth, 1);
  const auto launches = [&](size_t count) {
    const model::SequenceChunk chunk = {
        .state = &sequence, .tokens = std::span(tokens).first(count), .logits = model::LogitsRows::kAll};
    const int64_t before = backend::CountersOf(backend).launches;
    EXPECT_TRUE(model.Step({&chunk, 1}).has_value());
    return backend::CountersOf(backend).launches - before;
  };
  launches(kDepth);
  launches(1);  // Launches of the first step alone.
  std::vector<int64_t> of_rows;
  for (const size_t count : num_rows) {
    launches(count);
    of_rows.push_back(launches(count));
  }
  return of_rows;
}
const std::vector<size_t> kNumRows = {1, 2, 3, 4, 5, 6, 7, 8};

// Ops that are fused for one token are fused for the rows of a sequence that are verified together. Their
// logits are copied by a launch of their own.
TEST(CudaLaunches, RowsOfOneSequenceTakeTheLaunchesOfOneToken) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const std::vector<int64_t> launches = LaunchesOfRows(backend, *MakeFlash(backend), kNumRows);
  for (size_t i = 1; i < launches.size(); ++i)
    EXPECT_LE(launches[i], launches[0] + 1) << kNumRows[i] << " rows";
}

// Drafts behind a step that was waited for. The device has nothing to do, so the first of their launches go
// to it before the host has walked through the rest.
TEST(CudaLaunches, DraftsBeginBeforeTheyAreWhole) {
  for (const bool mtp : {true, false}) {
    const ops::Backend backend = Take(backend::MakeCudaBackend({}));
    const auto model = MakeFlash(backend, {.mtp = mtp, .dspark = !mtp});
    kv::SequenceState sequence = Take(model->NewSequence());
    Lengthen(sequence, 23 * 128);
    const std::vector<sampling::ChoiceParams> greedy(3, {.temperature = 0});
    const std::vector<int32_t> draft(greedy.size(), 5);
    for (int i = 0; i < 4; ++i) {
      const model::DecodeChunk chunk{
          .state = &sequence, .token = 1, .choice = greedy[0], .draft = draft, .draft_choices = greedy};
      const std::unique_ptr<model::QueuedStep> step = Take(model->QueueDecode({&chunk, 1}, {}));
      ASSERT_TRUE(step->Wait().has_value());
      const backend::CudaCounters before = backend::CountersOf(backend);
      const model::DraftChunk drafts{.state = &sequence, .token = 1, .choices = greedy};
      ASSERT_TRUE(model->Draft({&drafts, 1}, {}).has_value());
      const backend::CudaCounters after = backend::CountersOf(backend);
      EXPECT_GE(after.launches - before.launches, 60);
      EXPECT_GE(after.lists - before.lists, 4) << "of 8, 16, 32 and the rest";
    }
  }
}

// Rows that a model keeps for its DSpark drafter. They are the streams of each of the three tapped layers,
// one mean of all, and its slot in the ring. None of it splits a launch.
TEST(CudaLaunches, TapsOfFewRowsTakeFewLaunches) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto launches = [&](bool dspark, size_t num_rows) {
    const auto model = MakeFlash(backend, {.dspark = dspark});
    kv::SequenceState sequence = Take(model->NewSequence());
    Lengthen(sequence, 23 * 128 + 2);  // No step completes the slots of a block.
    const std::vector<sampling::ChoiceParams> greedy(num_rows, {.temperature = 0});
    const std::vector<int32_t> draft(num_rows - 1, 5);
    int64_t count = 0;
    for (int i = 0; i < 2; ++i) {
      const model::DecodeChunk chunk{.state = &sequence,
                                     .token = 1,
                                     .choice = greedy[0],
                                     .draft = draft,
                                     .draft_choices = std::span(greedy).subspan(1)};
      const int64_t before = backend::CountersOf(backend).launches;
      const std::unique_ptr<model::QueuedStep> step = Take(model->QueueDecode({&chunk, 1}, {}));
      EXPECT_TRUE(step->Wait().has_value());
      count = backend::CountersOf(backend).launches - before;
    }
    return count;
  };
  constexpr size_t kRows = 6;
  const int64_t without = launches(false, kRows);
  EXPECT_LE(launches(true, kRows), without + 3 + 2 + 1 + 1) << "lists end elsewhere";
}

// Cost of one more draft of the MTP block. Its embedding's norm and that of the streams are one launch, and
// the mixing weights of all drafts of a step are uploaded once.
TEST(CudaLaunches, ADraftOfTheBlockTakesFewLaunches) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = MakeFlash(backend, {.mtp = true});
  kv::SequenceState sequence = Take(model->NewSequence());
  Lengthen(sequence, 23 * 128);
  const auto launches = [&](size_t num_drafts) {
    const model::DraftChunk drafts{
        .state = &sequence, .token = 1, .choices = {num_drafts, sampling::ChoiceParams{.temperature = 0}}};
    const int64_t before = backend::CountersOf(backend).launches;
    EXPECT_TRUE(model->Draft({&drafts, 1}, {}).has_value());
    return backend::CountersOf(backend).launches - before;
  };
  launches(2);  // Launches of the first one alone, and the slots in front.
  const int64_t two = launches(2);
  EXPECT_LE(launches(4), two + 2 * 22 + 1)
      << "where a list ends, two ops that would be one launch may be two";
}

// Ranks whose devices map each other need no NCCL, which here is nowhere; those that send to each other do.
TEST(CudaLaunches, AGroupOfPeersIsMadeWithoutNccl) {
  ASSERT_EQ(::setenv("DSV4_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1), 0);
  comm::testing::RunRanks(2, [&](comm::Communicator& hosts) {
    const ops::Backend backend = Take(backend::MakeCudaBackend({.device = hosts.rank()}));
    const auto peers = backend::MakeCudaGroup(backend, hosts, {});
    ASSERT_TRUE(peers.has_value()) << peers.error().ToString();
    std::vector<std::byte> data(8);
    EXPECT_EQ((*peers)->Send(data, 1 - hosts.rank()).code(), StatusCode::kUnimplemented);
    EXPECT_EQ((*peers)->Recv(data, 1 - hosts.rank()).code(), StatusCode::kUnimplemented);
    for (const backend::CudaGroupOptions& options :
         {backend::CudaGroupOptions{.sends = true}, backend::CudaGroupOptions{.peers = false}}) {
      const auto group = backend::MakeCudaGroup(backend, hosts, options);
      ASSERT_FALSE(group.has_value());
      EXPECT_EQ(group.error().code(), StatusCode::kFailedPrecondition);
    }
    EXPECT_TRUE(hosts.Check().ok());
  });
  ASSERT_EQ(::unsetenv("DSV4_NCCL_LIBRARY"), 0);
}

// Error that all ranks get for a group of peers that cannot be.
std::string WhyNoPeers(int num_ranks, int num_devices) {
  std::string why;
  comm::testing::RunRanks(num_ranks, [&](comm::Communicator& hosts) {
    const ops::Backend backend = Take(backend::MakeCudaBackend({.device = hosts.rank() % num_devices}));
    const auto group = backend::cuda::JoinPeers(
        hosts, std::static_pointer_cast<backend::cuda::CudaContext>(backend.context), {});
    if (group.has_value()) return;
    EXPECT_EQ(group.error().code(), StatusCode::kFailedPrecondition);
    if (hosts.rank() == 0) why = group.error().message();
    EXPECT_TRUE(hosts.Check().ok());
  });
  return why;
}

TEST(CudaLaunches, PeersAreUpToEightOnDevicesOfTheirOwn) {
  EXPECT_THAT(WhyNoPeers(9, 8), ::testing::HasSubstr("9 ranks, want at most 8"));
  EXPECT_THAT(WhyNoPeers(3, 2), ::testing::HasSubstr("has the same device, none:0"));
  ASSERT_EQ(::setenv("DSV4_CUDA_SHARE_DEVICES", "1", 1), 0);
  EXPECT_EQ(WhyNoPeers(3, 2), "");
  ASSERT_EQ(::unsetenv("DSV4_CUDA_SHARE_DEVICES"), 0);
}

// Each of four ranks that divide everything launches the kernels of one rank for a token, and one more for
// the logits. Sums, attention over ranks and their choice of entries are part of the kernels around them. One
// rank has one more where it lists the entries that a token sees, all of them.
void ExpectTheLaunchesOfOneRank(size_t depth) {
  std::vector<int64_t> alone;
  {
    const ops::Backend backend = Take(backend::MakeCudaBackend({}));
    alone = LaunchesOfSteps(backend, *MakeFlash(backend), depth);
  }
  RunFlashOnRanks("tensor", {}, [&](const ops::Backend& backend, model::Model& model) {
    const std::vector<int64_t> launches = LaunchesOfSteps(backend, model, depth);
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_LE(launches[i], alone[i] + 1) << "step " << i;
  });
}

TEST(CudaLaunches, ExchangesOfOneTokenArePartOfTheKernelsAroundThem) { ExpectTheLaunchesOfOneRank(0); }

TEST(CudaLaunches, SoIsTheChoiceOfEntriesFromSomeThousandTokensOn) { ExpectTheLaunchesOfOneRank(3000); }

// So are exchanges of several rows: sums, the choice of entries and attention.
TEST(CudaLaunches, ExchangesOfSeveralRowsArePartOfTheKernelsAroundThem) {
  RunFlashOnRanks("tensor", {}, [&](const ops::Backend& backend, model::Model& model) {
    const std::vector<int64_t> launches = LaunchesOfRows(backend, model, kNumRows);
    for (size_t i = 1; i < launches.size(); ++i)
      EXPECT_LE(launches[i], launches[0] + 1) << kNumRows[i] << " rows";
  });
}

// The launches of a step of one token of each of so many sequences.
int64_t LaunchesOfSequences(size_t num_sequences, int num_layers) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = MakeFlash(backend, {}, num_layers);
  std::vector<kv::SequenceState> sequences;
  for (size_t i = 0; i < num_sequences; ++i) sequences.push_back(Take(model->NewSequence()));
  const int32_t token = 1;
  std::vector<model::SequenceChunk> chunks;
  for (kv::SequenceState& sequence : sequences) chunks.push_back({.state = &sequence, .tokens = {&token, 1}});
  EXPECT_TRUE(model->Step(chunks).has_value());  // Launches of the first step alone.
  const int64_t before = backend::CountersOf(backend).launches;
  EXPECT_TRUE(model->Step(chunks).has_value());
  return backend::CountersOf(backend).launches - before;
}

// For 9 to 256 tokens two launches stand between two sub-layers. The first is moe_combine, hc_post and
// hc_pre's products. The second is its mix, the norm, and post and comb unless the linear behind takes them
// over. Attention is one.
TEST(CudaLaunches, SomeTensOfSequencesTakeTwoLaunchesBetweenSubLayers) {
  for (const size_t num_sequences : {9, 32, 64}) {
    const int64_t of_a_layer = LaunchesOfSequences(num_sequences, 2) - LaunchesOfSequences(num_sequences, 1);
    EXPECT_LE(of_a_layer, 21) << num_sequences << " sequences";
  }
}

// The products' memory stays where it is.
TEST(CudaLaunches, StepsOfManySequencesAndOfOneInTurnsAreReplayed) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = MakeFlash(backend, {}, 2);
  std::vector<kv::SequenceState> sequences;
  for (size_t i = 0; i < 16; ++i) sequences.push_back(Take(model->NewSequence()));
  const int32_t token = 1;
  std::vector<model::SequenceChunk> chunks;
  for (kv::SequenceState& sequence : sequences) chunks.push_back({.state = &sequence, .tokens = {&token, 1}});
  int64_t lists = 0;
  int64_t replayed = 0;
  for (int i = 0; i < 12; ++i) {
    const backend::CudaCounters before = backend::CountersOf(backend);
    ASSERT_TRUE(model->Step(chunks).has_value());
    ASSERT_TRUE(model->Step(std::span(chunks).first(1)).has_value());
    const backend::CudaCounters after = backend::CountersOf(backend);
    lists = after.lists - before.lists;
    replayed = after.replayed_lists - before.replayed_lists;
  }
  EXPECT_GT(replayed, 0);
  EXPECT_LE(lists - replayed, 1) << "of " << lists << " lists";
}

// Lists of launches that rank 0 hands to the device for a step of `num_sequences` tokens: one more wherever
// the host waits.
int64_t ListsOfAStep(const char* placement, const model::ModelOptions& options, size_t num_sequences) {
  int64_t lists = 0;
  RunFlashOnRanks(placement, options, [&](const ops::Backend& backend, model::Model& model) {
    std::vector<kv::SequenceState> sequences;
    for (size_t i = 0; i < num_sequences; ++i) sequences.push_back(Take(model.NewSequence()));
    const int32_t token = 1;
    std::vector<model::SequenceChunk> chunks;
    for (kv::SequenceState& sequence : sequences)
      chunks.push_back({.state = &sequence, .tokens = {&token, 1}});
    EXPECT_TRUE(model.Step(chunks).has_value());  // Launches of the first step alone.
    const int64_t before = backend::CountersOf(backend).lists;
    EXPECT_TRUE(model.Step(chunks).has_value());
    lists = backend::CountersOf(backend).lists - before;
  });
  return lists;
}

// Experts by id. Where terms are gathered, lists grow as they do without a wait, to 8 launches, 16, 32 and so
// on. Where the host lists terms, or copies on the device, there are more for every layer.
TEST(CudaLaunches, GatheredTermsNeedNoWaitInALayer) {
  constexpr int64_t kLayers = 4;
  constexpr size_t kSequences = 3;
  const int64_t gathered = ListsOfAStep("expert", {}, kSequences);
  EXPECT_LE(gathered, 5);
  EXPECT_GE(ListsOfAStep("expert", {.max_gathered_terms = 0}, kSequences), gathered + kLayers);
}

// How many launches have been handed to the device where a pass begins.
class LaunchesAtPasses final : public model::Observer {
 public:
  explicit LaunchesAtPasses(const ops::Backend& backend) : backend_(backend) {}
  void OnTensor(int, std::string_view name, const TensorView&) override {
    if (name == "pass.token_ids") launches_.push_back(backend::CountersOf(backend_).launches);
  }
  const std::vector<int64_t>& launches() const { return launches_; }

 private:
  const ops::Backend& backend_;
  std::vector<int64_t> launches_;
};

// A rank that agrees to the next pass before it has handed over the last one keeps the others waiting for
// good.
TEST(CudaLaunches, APassWithoutLogitsIsHandedOverBeforeTheNext) {
  constexpr size_t kPass = 16;
  RunFlashOnRanks("tensor", {.max_chunk_tokens = kPass},
                  [](const ops::Backend& backend, model::Model& model) {
                    const std::vector<int32_t> tokens(2 * kPass, 1);
                    const auto step = [&](size_t count, model::LogitsRows logits, model::Observer* observer) {
                      kv::SequenceState sequence = Take(model.NewSequence());
                      const model::SequenceChunk chunk = {
                          .state = &sequence, .tokens = std::span(tokens).first(count), .logits = logits};
                      const int64_t before = backend::CountersOf(backend).launches;
                      EXPECT_TRUE(model.Step({&chunk, 1}, observer).has_value());
                      return backend::CountersOf(backend).launches - before;
                    };
                    // The first step waits for its own launches, and lists end elsewhere.
                    step(kPass, model::LogitsRows::kNone, nullptr);
                    const int64_t of_a_pass = step(kPass, model::LogitsRows::kNone, nullptr);
                    LaunchesAtPasses passes(backend);
                    step(2 * kPass, model::LogitsRows::kLast, &passes);
                    ASSERT_EQ(passes.launches().size(), 2U);
                    EXPECT_EQ(passes.launches()[1] - passes.launches()[0], of_a_pass);
                  });
}

}  // namespace
}  // namespace dsv4::testing
