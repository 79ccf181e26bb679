// Ranks that verify the splits of their stages together: what each loads and counts, and that the group is
// whole behind it. The model is on the host, which knows no split; its tiers are made up.
#include "apps/tiers/stage_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "comm/collectives.h"
#include "comm/ranks_testing.h"
#include "model/placement/expert_costs_testing.h"

namespace dsv4::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 2;
const std::vector<int32_t> kTokens = {288, 4495, 1938, 3333};

// A machine as it was measured, with experts so small that they take no time. Of `rest` seconds a step of the
// small model has few or many.
constexpr double kExpertBytes = 1416;
model::StagePlan StageOf(int64_t room, double rest) {
  model::ExpertCosts costs = model::FlashCosts();
  costs.expert_bytes = kExpertBytes;
  costs.num_layers = 20;
  costs.room = room;
  costs.rest = rest;
  return {.costs = costs, .without_cache = {.resident = 85, .host = 171}};
}

// A rank with its part of models/tiny.
class Rank {
 public:
  explicit Rank(comm::Communicator& group) : group_(group) {}

  StageActions Actions() {
    return {.load = [this](const model::ExpertSplit& split) { return Load(split); },
            .model = [this]() -> model::Model& { return *model_; },
            .counts = [this] { return Count(); }};
  }
  model::Model& model() { return *model_; }

  std::vector<model::ExpertSplit> loaded;
  double host_rate = 0;  // Bytes a second of its host's experts; 0: asks for none.
  size_t refuses = 0;    // The load of this number has no memory; 0: none.
  int num_counts = 0;

 private:
  Status Load(const model::ExpertSplit& split) {
    model_.reset();
    loaded.push_back(split);
    Status fits;
    if (loaded.size() == refuses) fits = ResourceExhausted("no more can be pinned");
    DSV4_RETURN_IF_ERROR(comm::Agree(group_, fits));
    model::ModelOptions options;
    options.group = std::shared_ptr<comm::Communicator>(&group_, [](comm::Communicator*) {});
    DSV4_ASSIGN_OR_RETURN_STATUS(options.placement, model::ParsePlacement("pipeline", kRanks));
    DSV4_ASSIGN_OR_RETURN_STATUS(
        model_, model::Model::Load("models/tiny", *backend::MakeCpuBackend({.num_threads = 1}), options));
    return {};
  }
  // As many experts a look that some steps lie between two.
  TierCounts Count() {
    constexpr int64_t kExperts = 30'000;
    ++num_counts;
    if (host_rate == 0) return {};
    const double bytes = kExperts * kExpertBytes;
    return {.host_experts = num_counts * kExperts, .host_seconds = num_counts * bytes / host_rate};
  }

  comm::Communicator& group_;
  std::unique_ptr<model::Model> model_;
};

std::vector<float> LogitsOf(model::Model& model) {
  auto state = model.NewSequence();
  EXPECT_TRUE(state.has_value());
  const model::SequenceChunk chunk{.state = &*state, .tokens = kTokens, .logits = model::LogitsRows::kAll};
  const auto output = model.Step({&chunk, 1});
  EXPECT_TRUE(output.has_value()) << output.error().ToString();
  return {output->logits.begin(), output->logits.end()};
}

std::vector<float> LogitsOfOne() {
  const auto model = model::Model::Load("models/tiny", *backend::MakeCpuBackend({.num_threads = 1}), {});
  EXPECT_TRUE(model.has_value());
  return LogitsOf(**model);
}

struct Outcome {
  std::vector<std::vector<model::ExpertSplit>> loaded{kRanks};  // By rank.
  std::vector<int> num_counts = std::vector<int>(kRanks);
  std::vector<std::string> warnings;
  Result<model::VerifiedSplit> verified = Error(Internal("rank 0 did not say"));
};

// `prepare` changes a rank before it begins.
Outcome Verify(const std::vector<model::StagePlan>& stages,
               const std::function<void(int rank, Rank&)>& prepare) {
  Outcome run;
  const std::vector<float> want = LogitsOfOne();
  comm::testing::RunRanks(kRanks, [&](comm::Communicator& group) {
    const auto number = static_cast<size_t>(group.rank());
    Rank rank(group);
    prepare(group.rank(), rank);
    const Result<model::SplitPlan> plan = GatherPlans(group, stages[number]);
    ASSERT_TRUE(plan.has_value()) << plan.error().ToString();
    EXPECT_EQ((*plan)[1].costs.room, stages[1].costs.room);
    if (number == 0) {
      run.verified =
          LeadVerification(group, *plan, rank.Actions(), [&](bool warning, const std::string& line) {
            if (warning) run.warnings.push_back(line);
          });
      if (run.verified.has_value()) {
        // The group is as one that nothing was tried with.
        EXPECT_EQ(LogitsOf(rank.model()), want);
      } else {
        group.Fail(run.verified.error());
      }
    } else {
      const Status followed = FollowVerification(group, rank.Actions());
      EXPECT_EQ(followed.ok(), group.Check().ok()) << followed.ToString();
      if (followed.ok()) {
        EXPECT_TRUE(rank.model().Follow().ok());
      }
    }
    run.loaded[number] = rank.loaded;
    run.num_counts[number] = rank.num_counts;
  });
  return run;
}

TEST(StageTrial, EveryRankLoadsItsOwnSplitOnceWhereStepsKeepToThePlan) {
  const std::vector<model::StagePlan> stages = {StageOf(20 * 60, 100), StageOf(20 * 120, 100)};
  const Outcome run = Verify(stages, [](int, Rank&) {});
  ASSERT_TRUE(run.verified.has_value()) << run.verified.error().ToString();
  EXPECT_EQ(run.verified->num_loads, 1);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(run.loaded[rank], ElementsAre(stages[rank].Choose(stages[rank].costs)));
    EXPECT_EQ(run.num_counts[rank], 8) << "around each of four runs";
  }
  EXPECT_NE(run.loaded[0][0], run.loaded[1][0]);
  EXPECT_TRUE(run.warnings.empty());
}

// Rank 1's host is a thousand times slower than measured.
Outcome WithASlowHost(size_t refuses) {
  return Verify({StageOf(20 * 85, 1e-9), StageOf(20 * 85, 1e-9)}, [&](int rank, Rank& of) {
    of.host_rate = rank == 1 ? 60e6 : 60e9;
    if (rank == 1) of.refuses = refuses;
  });
}

TEST(StageTrial, TheRankWhoseHostIsSlowLoadsAnotherSplit) {
  const Outcome run = WithASlowHost(0);
  ASSERT_TRUE(run.verified.has_value()) << run.verified.error().ToString();
  ASSERT_GE(run.loaded[1].size(), 2U);
  EXPECT_EQ(run.loaded[0].size(), run.loaded[1].size());
  EXPECT_EQ(run.loaded[0][0], run.loaded[0][1]);
  EXPECT_GT(run.loaded[1][0].host, 0);
  EXPECT_EQ(run.loaded[1][1].host, 0);
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_THAT(run.warnings[0], HasSubstr("stage 1: the host's kernels read"));
}

TEST(StageTrial, ASplitThatOneRankCannotLoadGivesWayToTheFirstOnAll) {
  const Outcome run = WithASlowHost(2);
  ASSERT_TRUE(run.verified.has_value()) << run.verified.error().ToString();
  EXPECT_EQ(run.verified->num_loads, model::kMostLoads);
  for (const auto& loaded : run.loaded) {
    ASSERT_EQ(loaded.size(), 3U);
    EXPECT_EQ(loaded[2], loaded[0]);
  }
  ASSERT_EQ(run.warnings.size(), 2U);
  EXPECT_THAT(run.warnings[1], HasSubstr("rank 1: no more can be pinned"));
}

TEST(StageTrial, AFirstLoadThatFailsOnOneRankEndsAll) {
  const Outcome run = WithASlowHost(1);
  ASSERT_FALSE(run.verified.has_value());
  EXPECT_THAT(run.verified.error().message(), HasSubstr("rank 1: no more can be pinned"));
  EXPECT_EQ(run.loaded[0].size(), 1U);
}

}  // namespace
}  // namespace dsv4::apps
