// Several ranks that run ahead: rank 0 chooses tokens on its backend and all ranks read them there, before a host has seen them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>

#include "engine/engine.h"
#include "tensor/host_memory_testing.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGolden = "fp8_mxfp4";

// Guesses that the text's last tokens come again, which is sometimes right.
class Echo final : public speculation::Drafter {
 public:
  void Read(std::span<const int32_t> text) override { text_.assign(text.begin(), text.end()); }
  speculation::Draft Propose(int64_t most) override {
    const size_t count = std::min(text_.size(), static_cast<size_t>(most));
    return {.tokens = {text_.end() - static_cast<std::ptrdiff_t>(count), text_.end()}, .evidence = 5};
  }

 private:
  std::vector<int32_t> text_;
};

engine::SpeculationOptions WithEcho() {
  engine::SpeculationOptions options;
  options.make_drafter = [] { return std::make_unique<Echo>(); };
  options.always = true;
  options.most_tokens = 3;
  return options;
}

// Answers of requests that come and go, some of them ended by a stop token that the step behind has already read.
std::vector<std::vector<int32_t>> Converse(model::Model& model, bool async_scheduling, int64_t* steps_ahead,
                                           const engine::SpeculationOptions& speculation = {}) {
  std::mt19937 random(3);
  engine::Engine engine(model,
                        {.prefix_cache_bytes = int64_t{1} << 28,
                         .async_scheduling = async_scheduling,
                         .speculation = speculation},
                        {});
  const auto vocab_size = static_cast<uint32_t>(model.config().vocab_size);
  std::map<engine::RequestId, std::vector<int32_t>> answers;
  const auto collect = [&](const std::vector<engine::Event>& events) {
    for (const engine::Event& event : events) {
      if (event.kind == engine::Event::Kind::kToken) answers[event.request].push_back(event.token.id);
      if (event.kind == engine::Event::Kind::kFinished) {
        EXPECT_TRUE(event.status.ok()) << event.status.ToString();
      }
    }
  };
  for (int i = 0; i < 6; ++i) {
    engine::Request request;
    for (size_t n = 1 + random() % 20; n > 0; --n)
      request.prompt.push_back(static_cast<int32_t>(random() % vocab_size));
    request.max_tokens = 3 + static_cast<int64_t>(random() % 20);
    request.sampling.seed = random();
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
    for (int n = 0; n < 20; ++n) request.stop_tokens.insert(static_cast<int32_t>(random() % vocab_size));
    // Rules that only rank 0 knows: the others get its tokens.
    if (i % 3 == 1) request.sampling.frequency_penalty = 0.5F;
    if (i % 3 == 2) request.num_logprobs = 2;
    EXPECT_TRUE(engine.Submit(std::move(request)).has_value());
    for (size_t n = random() % 4; n > 0 && !engine.idle(); --n) collect(engine.Step());
  }
  while (!engine.idle()) collect(engine.Step());
  const engine::EngineStats stats = engine.stats();
  *steps_ahead = speculation.any() ? stats.num_steps_verified_on_backend : stats.num_steps_ahead;
  std::vector<std::vector<int32_t>> all;
  for (auto& [id, answer] : answers) all.push_back(std::move(answer));
  return all;
}

TEST(QueuedSteps, OfSeveralRanksGiveTheTokensOfStepsThatAreWaitedFor) {
  RanksRun run{.directory = ModelDirectory(kGolden).string(), .options = {}};
  int64_t steps_ahead = 0;
  std::vector<std::vector<int32_t>> alone;
  RunModel(run, [&](model::Model& model) { alone = Converse(model, false, &steps_ahead); });
  for (const char* placement : {"expert", "expert,sequences", "expert,entries", "tensor", "tensor,entries"}) {
    for (run.num_ranks = 2; run.num_ranks <= 3; ++run.num_ranks) {
      run.placement = placement;
      std::vector<std::vector<int32_t>> waited;
      RunModel(run, [&](model::Model& model) { waited = Converse(model, false, &steps_ahead); });
      EXPECT_EQ(steps_ahead, 0);
      RunModel(run, [&](model::Model& model) {
        ASSERT_TRUE(model.can_queue());
        EXPECT_EQ(Converse(model, true, &steps_ahead), waited) << placement << ", " << run.num_ranks;
      });
      EXPECT_GT(steps_ahead, 5);
      if (run.placement == "expert" || run.placement == "expert,sequences") {
        EXPECT_EQ(waited, alone);
      }
    }
  }
}

// Each rank reads as many rows of each sequence as rank 0 verifies, and takes back as many.
TEST(QueuedSteps, OfSeveralRanksVerifyDrafts) {
  RanksRun run{.directory = ModelDirectory(kGolden).string(), .options = {}};
  for (const char* placement : {"expert,sequences", "tensor", "tensor,entries"}) {
    for (run.num_ranks = 2; run.num_ranks <= 3; ++run.num_ranks) {
      run.placement = placement;
      int64_t num_steps = 0;
      std::vector<std::vector<int32_t>> serial;
      RunModel(run, [&](model::Model& model) { serial = Converse(model, false, &num_steps); });
      RunModel(run, [&](model::Model& model) {
        EXPECT_EQ(Converse(model, true, &num_steps, WithEcho()), serial)
            << placement << ", " << run.num_ranks;
      });
      EXPECT_GT(num_steps, 5);
    }
  }
}

// The host's memory, which counts the copies that nobody waits for.
class CountingMemory final : public ForwardingHostMemory {
 public:
  Result<std::unique_ptr<PendingCopy>> StartCopyToHost(void* destination, const void* source,
                                                       size_t num_bytes, Stream stream) override {
    ++num_copies;
    return Memory::StartCopyToHost(destination, source, num_bytes, stream);
  }
  std::atomic<int> num_copies = 0;
};

// Launches collected for a device go to it when their results are wanted: a rank whose host wants nothing
// would let the others wait.
TEST(QueuedSteps, EveryRankWantsTheTokens) {
  CountingMemory memory;
  comm::testing::RunRanks(
      2,
      [&](comm::Communicator& group) {
        model::ModelOptions options;
        options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        options.placement = model::ParsePlacement("tensor", 2).value();
        ops::Backend backend = MakeGoldenBackend("reference", 1);
        if (group.rank() == 1) backend.context = std::make_shared<MemoryContext>(backend.context, memory);
        const auto model = model::Model::Load(ModelDirectory(kGolden).string(), backend, options);
        ASSERT_TRUE(model.has_value()) << model.error().ToString();
        if (group.rank() == 1) {
          EXPECT_TRUE((*model)->Follow().ok());
          return;
        }
        auto state = (*model)->NewSequence().value();
        model::DecodeChunk chunk{.state = &state, .token = 1};
        for (int step = 0; step < 3; ++step) {
          const auto queued = (*model)->QueueDecode({&chunk, 1}, {});
          ASSERT_TRUE(queued.has_value()) << queued.error().ToString();
          ASSERT_TRUE((*queued)->Wait().has_value());
          chunk.follows = 0;
        }
        EXPECT_EQ(state.length(), 3);
      },
      std::chrono::minutes(10));
  EXPECT_EQ(memory.num_copies, 3);
}

// The other ranks wait for tokens that nobody has chosen: the group ends with the reason.
TEST(QueuedSteps, AStepThatIsDroppedBeforeItsChoiceEndsTheGroup) {
  comm::testing::RunRanks(
      2,
      [&](comm::Communicator& group) {
        model::ModelOptions options;
        options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        options.placement = model::ParsePlacement("tensor", 2).value();
        const auto model =
            model::Model::Load(ModelDirectory(kGolden).string(), MakeGoldenBackend("reference", 1), options);
        ASSERT_TRUE(model.has_value()) << model.error().ToString();
        if (group.rank() == 1) {
          EXPECT_THAT((*model)->Follow().message(), HasSubstr("dropped before its tokens were chosen"));
          return;
        }
        auto state = (*model)->NewSequence().value();
        const model::DecodeChunk chunk{.state = &state, .token = 1};
        ASSERT_TRUE((*model)->QueueDecode({&chunk, 1}, {}, /*chooses_later=*/true).has_value());
        const auto next = (*model)->QueueDecode({&chunk, 1}, {});
        ASSERT_FALSE(next.has_value());
        EXPECT_THAT(next.error().message(), HasSubstr("dropped before its tokens were chosen"));
      },
      std::chrono::minutes(10));
}

TEST(QueuedSteps, StagesTakeTurns) {
  const RanksRun run{
      .directory = ModelDirectory(kGolden).string(), .options = {}, .num_ranks = 2, .placement = "pipeline"};
  RunModel(run, [](model::Model& model) {
    EXPECT_FALSE(model.can_queue());
    auto state = model.NewSequence().value();
    const model::DecodeChunk chunk{.state = &state, .token = 1};
    const auto step = model.QueueDecode({&chunk, 1}, {});
    ASSERT_FALSE(step.has_value());
    EXPECT_EQ(step.error().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(step.error().message(), HasSubstr("want one stage"));
  });
}

// The group ends with the reason, on every rank and for every later step.
TEST(QueuedSteps, AnOpThatFailsOnARankEndsTheGroup) {
  comm::testing::RunRanks(
      2,
      [&](comm::Communicator& group) {
        model::ModelOptions options;
        options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
        options.placement = model::ParsePlacement("tensor", 2).value();
        ops::Backend backend = MakeGoldenBackend("reference", 1);
        if (group.rank() == 1) {
          backend.table.hc_post = [](ops::OpContext&, const ops::HcPostArgs&) {
            return Internal("broken on purpose");
          };
        }
        const auto model = model::Model::Load(ModelDirectory(kGolden).string(), backend, options);
        ASSERT_TRUE(model.has_value()) << model.error().ToString();
        if (group.rank() == 1) {
          EXPECT_THAT((*model)->Follow().message(), HasSubstr("broken on purpose"));
          return;
        }
        auto state = (*model)->NewSequence().value();
        const model::DecodeChunk chunk{.state = &state, .token = 1};
        for (int attempt = 0; attempt < 2; ++attempt) {
          const auto step = (*model)->QueueDecode({&chunk, 1}, {});
          ASSERT_FALSE(step.has_value());
          EXPECT_THAT(step.error().message(), HasSubstr("rank 1: layer"));
          EXPECT_THAT(step.error().message(), HasSubstr("broken on purpose"));
          EXPECT_EQ(state.length(), 0);
        }
      },
      std::chrono::minutes(10));
}

}  // namespace
}  // namespace dsv4::testing
