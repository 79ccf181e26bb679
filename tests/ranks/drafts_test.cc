// Drafts of a model on several ranks. They are those of one rank where no sum is cut. With every placement
// the text is that of steps without drafts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>

#include "engine/engine.h"
#include "tensor/host_memory_testing.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;

// A draft block, and blocks of DSpark.
constexpr const char* kGoldens[] = {"fp8_mxfp4", "dspark"};

RanksRun RunOf(const std::string& golden) {
  RanksRun run{.directory = ModelDirectory(golden).string(), .options = {}};
  run.options.mtp = golden != "dspark";
  run.options.dspark = golden == "dspark";
  return run;
}

std::vector<int32_t> RandomTokens(const model::Model& model, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(model.config().vocab_size));
  return tokens;
}

// Copies to it fail where somebody says so.
class FailingMemory final : public ForwardingHostMemory {
 public:
  Status CopyFromHost(void* destination, const void* source, size_t num_bytes, Stream stream) override {
    if (fails()) return Internal("broken on purpose");
    return ForwardingHostMemory::CopyFromHost(destination, source, num_bytes, stream);
  }
  std::function<bool()> fails;
};

struct Drafted {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<float> logits;
  std::vector<float> confidence;
  friend bool operator==(const Drafted& a, const Drafted& b) = default;
};

// Drafts of sequences of these lengths, some of which want fewer. A second round comes after a few more
// tokens, and after two were taken back.
std::vector<Drafted> DraftAll(model::Model& model, const std::vector<size_t>& lengths) {
  std::vector<kv::SequenceState> states;
  std::vector<Drafted> rounds;
  for (const size_t length : lengths) {
    states.push_back(model.NewSequence().value());
    const std::vector<int32_t> prompt = RandomTokens(model, length, static_cast<uint32_t>(length));
    const model::SequenceChunk chunk = {.state = &states.back(), .tokens = prompt};
    const auto output = model.Step({&chunk, 1});
    EXPECT_TRUE(output.has_value()) << output.error().ToString();
  }
  for (int round = 0; round < 3; ++round) {
    Drafted drafted;
    std::vector<model::DraftChunk> chunks;
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    const auto most = static_cast<size_t>(std::min<int64_t>(4, model.most_drafts()));
    drafted.logits.resize(lengths.size() * most * vocab);
    drafted.confidence.resize(lengths.size() * most);
    for (size_t i = 0; i < lengths.size(); ++i) {
      chunks.push_back({.state = &states[i],
                        .token = static_cast<int32_t>(i + 3),
                        .choices = std::vector<sampling::ChoiceParams>(most - i % most),
                        .logits = &drafted.logits[i * most * vocab]});
      for (size_t k = 0; k < chunks.back().choices.size(); ++k)
        chunks.back().choices[k] = {.temperature = i % 2 == 0 ? 0.0F : 1.0F, .uniform = 0.37};
      if (model.has_dspark()) chunks.back().confidence = &drafted.confidence[i * most];
    }
    auto tokens = model.Draft(chunks, {});
    EXPECT_TRUE(tokens.has_value()) << tokens.error().ToString();
    if (!tokens) return rounds;
    drafted.tokens = *tokens;
    rounds.push_back(std::move(drafted));
    for (size_t i = 0; i < lengths.size(); ++i) {
      const std::vector<int32_t> more = RandomTokens(model, 3 + i, static_cast<uint32_t>(round));
      const model::SequenceChunk chunk = {.state = &states[i], .tokens = more};
      EXPECT_TRUE(model.Step({&chunk, 1}).has_value());
      EXPECT_TRUE(states[i].Rewind(2).ok());
    }
  }
  return rounds;
}

// Expects that the ranks of `run` draft the same as one rank, bit for bit.
void ExpectDrafts(model::Model& model, const std::vector<size_t>& lengths, const std::vector<Drafted>& alone,
                  const RanksRun& run, const std::string& golden) {
  ASSERT_TRUE(model.can_draft()) << model.why_no_draft();
  const std::vector<Drafted> together = DraftAll(model, lengths);
  ASSERT_EQ(together.size(), alone.size());
  for (size_t round = 0; round < alone.size(); ++round)
    EXPECT_TRUE(together[round] == alone[round])
        << golden << ", " << run.placement << ", " << run.num_ranks << " ranks, round " << round;
}

TEST(Drafts, OfSeveralRanksAreThoseOfOne) {
  for (const std::string golden : kGoldens) {
    RanksRun run = RunOf(golden);
    const std::vector<size_t> lengths = {540, 40, 1, 512, 150};
    std::vector<Drafted> alone;
    RunModel(run, [&](model::Model& model) { alone = DraftAll(model, lengths); });
    ASSERT_EQ(alone.size(), 3U);
    for (const char* placement : {"expert", "expert,sequences"}) {
      for (run.num_ranks = 2; run.num_ranks <= 4; ++run.num_ranks) {
        run.placement = placement;
        RunModel(run, [&](model::Model& model) { ExpectDrafts(model, lengths, alone, run, golden); });
      }
    }
  }
}

// Expects nearly that where sums are cut. Prompts of 512 tokens and more divide the streams as well.
TEST(Drafts, OfRanksThatCutSumsAreNearlyThoseOfOne) {
  for (const std::string golden : kGoldens) {
    RanksRun run = RunOf(golden);
    run.options.numerics = model::Numerics::kPlain;
    const std::vector<size_t> lengths = {540, 512, 9};
    std::vector<Drafted> alone;
    RunModel(run, [&](model::Model& model) { alone = DraftAll(model, lengths); });
    for (const char* placement : {"tensor", "tensor,entries", "expert,entries", "pipeline=2,tensor,entries",
                                  "pipeline=2,expert,entries"}) {
      run.placement = placement;
      const int step = std::string(placement).starts_with("pipeline") ? 4 : 1;
      for (run.num_ranks = std::max(2, step); run.num_ranks <= std::max(3, step); run.num_ranks += step) {
        RunModel(run, [&](model::Model& model) {
          const std::vector<Drafted> together = DraftAll(model, lengths);
          ASSERT_EQ(together.size(), alone.size());
          for (size_t round = 0; round < alone.size(); ++round) {
            EXPECT_LT(RelativeError(together[round].logits, alone[round].logits), kCutSums)
                << golden << ", " << placement << ", " << run.num_ranks << " ranks, round " << round;
          }
        });
      }
    }
  }
}

// Answers of requests that come and go; with drafts or without.
std::vector<std::vector<int32_t>> Converse(model::Model& model, bool drafts, bool async_scheduling,
                                           int64_t* num_drafted) {
  std::mt19937 random(8);
  engine::EngineOptions options = {.prefix_cache_bytes = int64_t{1} << 28,
                                   .async_scheduling = async_scheduling};
  options.speculation.mtp = drafts;
  options.speculation.dspark = drafts;
  options.speculation.always = true;
  options.speculation.most_tokens = 3;
  engine::Engine engine(model, options, {});
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
    request.prompt = RandomTokens(model, 1 + random() % 30, static_cast<uint32_t>(i / 2));
    request.max_tokens = 3 + static_cast<int64_t>(random() % 20);
    request.sampling.seed = random();
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
    if (i == 3) request.sampling.repetition_penalty = 1.2F;  // A model whose tokens the host chooses.
    EXPECT_TRUE(engine.Submit(std::move(request)).has_value());
    for (size_t n = random() % 4; n > 0 && !engine.idle(); --n) collect(engine.Step());
  }
  while (!engine.idle()) collect(engine.Step());
  *num_drafted = 0;
  for (const auto& of_source : engine.stats().num_draft_tokens)
    for (const int64_t count : of_source) *num_drafted += count;
  std::vector<std::vector<int32_t>> all;
  for (auto& [id, answer] : answers) all.push_back(std::move(answer));
  return all;
}

TEST(Drafts, OfSeveralRanksGiveTheTextOfSerialDecoding) {
  for (const std::string golden : kGoldens) {
    for (const char* placement :
         {"expert", "expert,sequences", "tensor", "tensor,entries", "pipeline=2,tensor"}) {
      RanksRun run = RunOf(golden);
      run.placement = placement;
      const bool stages = std::string(placement) == "pipeline=2,tensor";
      const bool divides = std::string(placement) == "expert,sequences";
      for (const int num_ranks : stages ? std::vector{4} : divides ? std::vector{2, 3} : std::vector{2, 4}) {
        run.num_ranks = num_ranks;
        RunModel(run, [&](model::Model& model) {
          int64_t num_drafted = 0;
          const auto serial = Converse(model, false, false, &num_drafted);
          EXPECT_EQ(num_drafted, 0);
          for (const bool async_scheduling : {false, true}) {
            EXPECT_EQ(Converse(model, true, async_scheduling, &num_drafted), serial)
                << golden << ", " << placement << ", " << run.num_ranks;
            EXPECT_GT(num_drafted, 50);
          }
        });
      }
    }
  }
}

// The first stage drafts, of what the others send it: the streams of the last, and the taps of each. Prompts
// of 512 tokens and more divide the streams too, and 150 are more than the rings keep.
TEST(Drafts, OfStagesAreThoseOfOneRank) {
  struct Grid {
    const char* placement;
    int num_ranks;
  };
  for (const std::string golden : kGoldens) {
    RanksRun run = RunOf(golden);
    const std::vector<size_t> lengths = {540, 40, 1, 512, 150};
    std::vector<Drafted> alone;
    RunModel(run, [&](model::Model& model) { alone = DraftAll(model, lengths); });
    ASSERT_EQ(alone.size(), 3U);
    for (const Grid& grid : {Grid{"pipeline", 2}, Grid{"pipeline", 3}, Grid{"pipeline=2,expert", 4},
                             Grid{"pipeline=2,expert,sequences", 4}}) {
      run.placement = grid.placement;
      run.num_ranks = grid.num_ranks;
      RunModel(run, [&](model::Model& model) { ExpectDrafts(model, lengths, alone, run, golden); });
    }
  }
}

TEST(Drafts, OfStagesOverTcpGiveTheTextOfSerialDecoding) {
  for (const std::string golden : kGoldens) {
    RanksRun run = RunOf(golden);
    run.placement = "pipeline";
    run.network = comm::testing::Network::kTcp;
    for (run.num_ranks = 2; run.num_ranks <= 3; ++run.num_ranks) {
      RunModel(run, [&](model::Model& model) {
        int64_t num_drafted = 0;
        const auto serial = Converse(model, false, false, &num_drafted);
        EXPECT_EQ(Converse(model, true, false, &num_drafted), serial) << golden << ", " << run.num_ranks;
        EXPECT_GT(num_drafted, 50);
      });
    }
  }
}

// The group ends with the reason: no rank waits for one that cannot draft.
TEST(Drafts, AnOpThatFailsOnARankEndsTheGroup) {
  for (const std::string golden : kGoldens) {
    for (const int broken : {0, 1}) {
      std::atomic<bool> drafting = false;
      comm::testing::RunRanks(
          2,
          [&](comm::Communicator& group) {
            RanksRun run = RunOf(golden);
            model::ModelOptions options = run.options;
            options.group = std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {});
            options.placement = model::ParsePlacement("expert", 2).value();
            ops::Backend backend = MakeGoldenBackend("reference", 1);
            FailingMemory memory;
            memory.fails = [&, rank = group.rank()] { return rank == broken && drafting.load(); };
            backend.context = std::make_shared<MemoryContext>(backend.context, memory);
            const auto model = model::Model::Load(run.directory, backend, options);
            ASSERT_TRUE(model.has_value()) << model.error().ToString();
            if (group.rank() == 1) {
              EXPECT_THAT((*model)->Follow().message(), HasSubstr("broken on purpose"));
              return;
            }
            auto state = (*model)->NewSequence().value();
            const std::vector<int32_t> prompt = {1, 2, 3};
            const model::SequenceChunk chunk = {.state = &state, .tokens = prompt};
            ASSERT_TRUE((*model)->Step({&chunk, 1}).has_value());
            drafting = true;
            for (int attempt = 0; attempt < 2; ++attempt) {
              const model::DraftChunk draft = {
                  .state = &state, .token = 4, .choices = std::vector<sampling::ChoiceParams>(2)};
              const auto drafts = (*model)->Draft({&draft, 1}, {});
              ASSERT_FALSE(drafts.has_value());
              EXPECT_THAT(drafts.error().message(), HasSubstr("broken on purpose"));
              EXPECT_EQ(state.length(), 3);
            }
          },
          std::chrono::minutes(10));
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
