// Placements where a row's last bits depend on how many rows of its sequence come with it: those that divide
// entries. Sequences give way to others and are read again, begin with kept states, or have their prompts cut
// small. All have the log-probabilities of a run alone, to the bit.
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/outcomes.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

struct Ranks {
  const char* placement;
  int num_ranks;
};

// Two of each prompt. Three are of one owner. While they run one of another and two of a third come, so that
// with room for few all give way in turn.
std::vector<engine::Outcome> Answers(model::Model& model, const engine::EngineOptions& options,
                                     engine::EngineStats* stats) {
  constexpr int kRequests = 6;
  engine::Engine engine(model, options, {});
  std::map<engine::RequestId, engine::Outcome> outcomes;
  for (int i = 0; i < kRequests; ++i) {
    std::mt19937 random(static_cast<uint32_t>(i / 2));
    engine::Request request;
    for (int n = 0; n < 100 + 3 * (i / 2); ++n)
      request.prompt.push_back(static_cast<int32_t>(300 + random() % 4000));
    request.max_tokens = 44 - i;
    request.num_logprobs = 3;
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.7F;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.owner = i < 3 ? 1 : i < 4 ? 2 : 3;
    constexpr int kStepsOfAWave = 18;  // More tokens than one piece has.
    for (int step = 0; (i == 3 || i == 4) && step < kStepsOfAWave && !engine.idle(); ++step)
      engine::Collect(engine.Step(), outcomes);
    EXPECT_TRUE(engine.Submit(std::move(request)).has_value());
  }
  while (!engine.idle()) engine::Collect(engine.Step(), outcomes);
  *stats = engine.stats();
  std::vector<engine::Outcome> all;
  for (auto& [id, outcome] : outcomes) all.push_back(std::move(outcome));
  for (engine::Outcome& outcome : all) outcome.num_cached_tokens = -1;  // Not the same in all runs.
  return all;
}

class ReadAgain : public ::testing::TestWithParam<Ranks> {};

TEST_P(ReadAgain, SequencesHaveTheNumbersOfARunAlone) {
  RanksRun run{.directory = "models/tiny", .options = {}, .backend = GoldenBackends().back()};
  run.num_ranks = GetParam().num_ranks;
  run.placement = GetParam().placement;
  RunModel(run, [](model::Model& model) {
    EXPECT_EQ(model.most_rows_like_steps(), ops::ParallelPolicy().few_queries);
    engine::EngineStats stats;
    constexpr double kNever = 1e9;  // Turns that no slow machine makes end.
    const auto alone = Answers(model, {.max_sequences = 1, .turn_seconds = kNever}, &stats);
    EXPECT_EQ(stats.num_preemptions, 0);
    const auto expect = [&](const char* what, engine::EngineOptions options, bool gives_way, bool finds) {
      SCOPED_TRACE(what);
      const auto got = Answers(model, options, &stats);
      engine::ExpectSame(got, alone, 0);
      EXPECT_EQ(stats.num_preemptions > 0, gives_way);
      EXPECT_EQ(stats.num_cached_tokens > 0, finds);
    };
    constexpr int64_t kCache = int64_t{1} << 28;
    expect("read again", {.max_sequences = 3, .turn_seconds = 0}, true, false);
    expect("read again beside steps, a little at a time",
           {.max_prefill_beside_decode = 5, .max_sequences = 3, .turn_seconds = 0}, true, false);
    expect("with kept states", {.max_sequences = 3, .turn_seconds = 0, .prefix_cache_bytes = kCache}, true,
           true);
    expect("one after the other, with kept states",
           {.max_sequences = 1, .turn_seconds = kNever, .prefix_cache_bytes = kCache}, false, true);
    expect("prompts cut small", {.max_step_tokens = 40, .max_sequences = 6, .turn_seconds = kNever}, false,
           false);
  });
}

INSTANTIATE_TEST_SUITE_P(Placements, ReadAgain,
                         ::testing::Values(Ranks{"tensor,entries", 2}, Ranks{"tensor,entries", 3},
                                           Ranks{"tensor,entries", 4}, Ranks{"expert,entries", 2}),
                         [](const auto& ranks) {
                           std::string name =
                               std::string(ranks.param.placement) + std::to_string(ranks.param.num_ranks);
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST(ReadAgainAnywhere, OtherPlacementsHaveNoSuchLimit) {
  for (const Ranks& ranks :
       {Ranks{"expert", 2}, Ranks{"pipeline", 2}, Ranks{"expert,sequences", 2}, Ranks{"tensor", 2}}) {
    RanksRun run{.directory = "models/tiny", .options = {}, .backend = GoldenBackends().back()};
    run.num_ranks = ranks.num_ranks;
    run.placement = ranks.placement;
    RunModel(run, [](model::Model& model) { EXPECT_EQ(model.most_rows_like_steps(), 0); });
  }
}

}  // namespace
}  // namespace dsv4::testing
