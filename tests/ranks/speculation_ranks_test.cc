// Answers of an engine whose model is divided among ranks and stages. With every drafter they are those of
// steps without drafts. They run many at a time, give way to each other, and begin with kept states.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "speculation/drafter.h"
#include "tests/ranks/model_ranks.h"

namespace dsv4::testing {
namespace {

enum class Kind : uint8_t { kNone, kSuffix, kMtp, kDspark };
constexpr Kind kDrafters[] = {Kind::kSuffix, Kind::kMtp, Kind::kDspark};

engine::SpeculationOptions Always(Kind kind) {
  engine::SpeculationOptions options;
  if (kind == Kind::kNone) return options;
  if (kind == Kind::kSuffix) options.make_drafter = speculation::MakeSuffixDrafter;
  options.mtp = kind == Kind::kMtp;
  options.dspark = kind == Kind::kDspark;
  options.always = true;
  options.most_tokens = 4;
  return options;
}

struct Load {
  int num_requests = 0;
  size_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  bool waves = false;  // Three of one owner, and while they run one of another, and two of a third.
};

int64_t Sum(const engine::EngineStats::DraftCounts& counts) {
  int64_t sum = 0;
  for (const auto& of_source : counts) {
    for (const int64_t count : of_source) sum += count;
  }
  return sum;
}

// Pairs of requests have the same prompt, of which the second finds what the first has left, where states are
// kept.
std::vector<std::vector<int32_t>> Answers(model::Model& model, const engine::EngineOptions& options,
                                          const Load& load, engine::EngineStats* stats) {
  constexpr int kStepsOfAWave = 8;
  engine::Engine engine(model, options, {});
  std::map<engine::RequestId, std::vector<int32_t>> answers;
  const auto collect = [&] {
    for (const engine::Event& event : engine.Step()) {
      if (event.kind == engine::Event::Kind::kToken) answers[event.request].push_back(event.token.id);
      if (event.kind == engine::Event::Kind::kFinished) {
        EXPECT_TRUE(event.status.ok()) << event.status.ToString();
      }
    }
  };
  for (int i = 0; i < load.num_requests; ++i) {
    std::mt19937 random(static_cast<uint32_t>(i / 2));
    engine::Request request;
    request.prompt = {2};
    while (request.prompt.size() < load.prompt_tokens + static_cast<size_t>(i / 2 % 11))
      request.prompt.push_back(static_cast<int32_t>(300 + random() % 4000));
    request.max_tokens = load.max_tokens - i % 5;
    request.sampling.temperature = i % 3 == 0 ? 0.0F : 0.4F * static_cast<float>(i % 3);
    request.sampling.seed = static_cast<uint64_t>(i);
    if (i % 7 == 5) request.sampling.repetition_penalty = 1.2F;  // A model whose tokens the host chooses.
    const bool wave = load.waves && (i == 3 || i == 4);
    request.owner = !load.waves || i < 3 ? 1 : i < 4 ? 2 : 3;
    for (int step = 0; wave && step < kStepsOfAWave && !engine.idle(); ++step) collect();
    EXPECT_TRUE(engine.Submit(std::move(request)).has_value());
  }
  while (!engine.idle()) collect();
  *stats = engine.stats();
  std::vector<std::vector<int32_t>> all;
  for (auto& [id, answer] : answers) all.push_back(std::move(answer));
  return all;
}

struct Case {
  const char* placement;
  int num_ranks;
  std::string Name(Kind kind) const {
    constexpr const char* kNames[] = {"none", "suffix", "mtp", "dspark"};
    return std::string(placement) + ", " + std::to_string(num_ranks) + " ranks, " +
           kNames[static_cast<size_t>(kind)];
  }
};
constexpr Case kStages[] = {{"pipeline", 2}, {"pipeline", 3}, {"pipeline=2,expert", 4}};
// If sums are cut (tensor), a row's bits depend on whether it comes among more than 16 (read_again_test).
constexpr Case kShards[] = {{"expert", 4}, {"expert,sequences", 2}, {"tensor", 2}};

// work(case, kind, model) of every case and drafter, with models/tiny.
void WithEveryDrafter(std::span<const Case> cases,
                      const std::function<void(const Case&, Kind, model::Model&)>& work) {
  for (const Case& of : cases) {
    for (const Kind kind : kDrafters) {
      RanksRun run{.directory = "models/tiny", .options = {}, .backend = GoldenBackends().back()};
      run.options.mtp = kind == Kind::kMtp;
      run.options.dspark = kind == Kind::kDspark;
      run.num_ranks = of.num_ranks;
      run.placement = of.placement;
      RunModel(run, [&](model::Model& model) {
        EXPECT_EQ(model.can_draft(), kind != Kind::kSuffix) << model.why_no_draft();
        work(of, kind, model);
      });
    }
  }
}

void ExpectSerialTextOfPreempted(std::span<const Case> cases) {
  const Load load = {.num_requests = 6, .prompt_tokens = 125, .max_tokens = 40, .waves = true};
  WithEveryDrafter(cases, [&](const Case& of, Kind kind, model::Model& model) {
    engine::EngineStats stats;
    // Turns that no slow machine makes end.
    const auto serial =
        Answers(model, {.max_sequences = 1, .turn_seconds = 1e9, .async_scheduling = false}, load, &stats);
    ASSERT_EQ(serial.size(), static_cast<size_t>(load.num_requests));
    EXPECT_EQ(stats.num_preemptions, 0);
    for (const bool prefix_cache : {false, true}) {
      engine::EngineOptions options = {.max_sequences = 3, .turn_seconds = 0, .speculation = Always(kind)};
      options.prefix_cache_bytes = prefix_cache ? int64_t{1} << 28 : 0;
      options.async_scheduling = prefix_cache;
      EXPECT_EQ(Answers(model, options, load, &stats), serial) << of.Name(kind);
      EXPECT_GE(stats.num_preemptions, 1) << of.Name(kind);
      EXPECT_GT(Sum(stats.num_accepted_tokens), 10) << of.Name(kind);
      EXPECT_EQ(stats.num_cached_tokens > 0, prefix_cache) << of.Name(kind);
    }
  });
}

TEST(SpeculationOnRanks, PreemptedSequencesGetTheirSerialTextBehindStages) {
  ExpectSerialTextOfPreempted(kStages);
}

TEST(SpeculationOnRanks, PreemptedSequencesGetTheirSerialTextOnShards) {
  ExpectSerialTextOfPreempted(kShards);
}

TEST(SpeculationOnRanks, SixtyFourAtATimeGetTheirSerialText) {
  const Load load = {.num_requests = 64, .prompt_tokens = 40, .max_tokens = 12};
  const Case cases[] = {kStages[0], kStages[2], kShards[0]};
  WithEveryDrafter(cases, [&](const Case& of, Kind kind, model::Model& model) {
    engine::EngineStats stats;
    const auto serial = Answers(model, {.max_sequences = 1, .async_scheduling = false}, load, &stats);
    ASSERT_EQ(serial.size(), static_cast<size_t>(load.num_requests));
    const engine::EngineOptions options = {.max_sequences = 64, .speculation = Always(kind)};
    EXPECT_EQ(Answers(model, options, load, &stats), serial) << of.Name(kind);
    EXPECT_GT(Sum(stats.num_accepted_tokens), kind == Kind::kSuffix ? 0 : 10) << of.Name(kind);
  });
}

}  // namespace
}  // namespace dsv4::testing
