// Tests of the correction of a plan that is slower than promised. A made-up machine has other rates than the
// measured ones.
#include "model/placement/verify_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/placement/expert_costs_testing.h"

namespace dsv4::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As it was measured: the host and the link share what does not fit.
ExpertCosts Measured() {
  ExpertCosts costs = FlashCosts();
  costs.host_prompt = 1e15;  // Prompts cost nothing there.
  costs.rest = 5e-3;
  return costs;
}

constexpr ExpertSplit kAllResident{.resident = 256};
constexpr ExpertSplit kResidents{.resident = 85, .host = 171};

// Work that a stage does for so many, with the rates of a machine.
SeenStage StageOf(const ExpertCosts& truth, const AskedExperts& asked) {
  const bool beside = asked.host > 0 && asked.missed > 0;
  return {.host_seconds = asked.host * truth.expert_bytes / (beside ? truth.host_beside : truth.host),
          .asked = asked};
}

// Steps of a model whose stages are on machines of those rates.
SeenTrial StepsOf(const StageSplits& splits, const std::vector<ExpertCosts>& truth,
                  const std::vector<AskedExperts>& asked) {
  SeenTrial trial;
  trial.steps.seconds = StepSeconds(splits, truth, asked);
  for (size_t i = 0; i < splits.size(); ++i) {
    trial.steps.stages.push_back(StageOf(truth[i], asked[i]));
    trial.still.stages.push_back(StageOf(truth[i], {.host = asked[i].host}));
    trial.still.seconds += truth[i].rest + trial.still.stages.back().host_seconds;
  }
  return trial;
}

SeenTrial StepsOf(const ExpertSplit& split, const ExpertCosts& truth, const AskedExperts& asked) {
  return StepsOf(StageSplits{split}, std::vector{truth}, std::vector{asked});
}

TrialVerdict Judge(const ExpertSplit& split, const ExpertCosts& costs, const SeenTrial& trial) {
  return JudgeTrial(std::span(&split, 1), std::span(&costs, 1), trial);
}

// A machine a stage.
class Machines {
 public:
  explicit Machines(std::vector<ExpertCosts> truth) : truth_(std::move(truth)) {}

  Result<VerifiedSplit> Verify(const std::vector<ExpertCosts>& measured) {
    SplitPlan plan;
    for (const ExpertCosts& costs : measured) {
      const bool all = costs.room == costs.num_layers * costs.num_experts;
      plan.push_back({.costs = costs, .without_cache = all ? kAllResident : kResidents});
    }
    return VerifySplit(
        plan, {.load = [this](const StageSplits& splits) -> Status {
                 loaded.push_back(splits);
                 return on_load ? on_load(splits) : Status();
               },
               .time_steps = [this]() -> Result<SeenTrial> {
                 const StageSplits& splits = loaded.back();
                 if (on_time) DSV4_TRY(on_time(splits));
                 std::vector<AskedExperts> asked;
                 for (size_t i = 0; i < splits.size(); ++i)
                   asked.push_back(PlannedAsks(splits[i], truth_[i]));
                 SeenTrial trial = StepsOf(splits, truth_, asked);
                 if (loaded.size() > 1) trial.steps.seconds *= others_take;
                 return trial;
               },
               .say = [this](bool warning,
                             const std::string& line) { (warning ? warnings : lines).push_back(line); }});
  }

  std::function<Status(const StageSplits&)> on_load;
  std::function<Status(const StageSplits&)> on_time;
  double others_take = 1;  // Times as long as the rates say, with other splits than the first.
  std::vector<StageSplits> loaded;
  std::vector<std::string> lines;
  std::vector<std::string> warnings;

 private:
  const std::vector<ExpertCosts> truth_;
};

// One stage.
class Machine : public Machines {
 public:
  explicit Machine(const ExpertCosts& truth) : Machines({truth}) {}
  Result<VerifiedSplit> Verify(const ExpertCosts& measured) {
    return Machines::Verify(std::vector{measured});
  }
};

ExpertCosts HostEightTimesSlower() {
  ExpertCosts truth = Measured();
  truth.host /= 8;
  truth.host_beside /= 8;
  return truth;
}

StageSplits FirstOf(const ExpertCosts& costs) { return {ChooseExperts(costs).split}; }

TEST(VerifySplit, APlanThatStepsKeepToIsLoadedOnce) {
  Machine machine(Measured());
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  EXPECT_GT(verified->splits[0].host, 0);
  EXPECT_GT(verified->splits[0].cached, 0);
  EXPECT_THAT(machine.loaded, ElementsAre(FirstOf(Measured())));
  EXPECT_EQ(verified->splits, machine.loaded[0]);
  EXPECT_EQ(verified->num_loads, 1);
  EXPECT_TRUE(verified->verdict.as_planned);
  EXPECT_THAT(machine.lines, ElementsAre(HasSubstr("experts: verified: ")));
  EXPECT_TRUE(machine.warnings.empty());
}

TEST(VerifySplit, AHostEightTimesSlowerThanMeasuredHasNoExpertsInTheEnd) {
  Machine machine(HostEightTimesSlower());
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  const StageSplits best = FirstOf(HostEightTimesSlower());
  EXPECT_THAT(machine.loaded, ElementsAre(FirstOf(Measured()), verified->splits));
  EXPECT_EQ(verified->num_loads, 2);
  EXPECT_EQ(verified->splits, best);
  EXPECT_TRUE(verified->verdict.as_planned);
  EXPECT_THAT(machine.warnings, ElementsAre(::testing::AllOf(
                                    HasSubstr("the host's kernels read 6.2 GB/s where 50.0 were measured"),
                                    HasSubstr("loads again with " + ToString(best)))));
  EXPECT_THAT(machine.lines, ElementsAre(HasSubstr("verified: ")));
}

TEST(VerifySplit, ALinkThatIsSlowLeavesMoreToTheHost) {
  ExpertCosts truth = Measured();
  truth.link /= 20;
  truth.link_beside /= 20;
  Machine machine(truth);
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->num_loads, 2);
  EXPECT_EQ(verified->splits, StageSplits{kResidents});
  EXPECT_THAT(machine.warnings, ElementsAre(HasSubstr("the link brings 2.0 GB/s where 40.0 were measured")));
}

TEST(VerifySplit, AnotherSplitThatTurnsOutSlowerGivesWayToTheFirst) {
  Machine machine(HostEightTimesSlower());
  machine.others_take = 20;
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  const StageSplits first = FirstOf(Measured());
  EXPECT_EQ(verified->splits, first);
  EXPECT_EQ(verified->num_loads, kMostLoads);
  ASSERT_EQ(machine.loaded.size(), 3U);
  EXPECT_EQ(machine.loaded[2], first);
  EXPECT_NE(machine.loaded[1], first);
  EXPECT_FALSE(verified->verdict.as_planned);
  ASSERT_EQ(machine.warnings.size(), 2U);
  EXPECT_THAT(machine.warnings[1], HasSubstr("so " + ToString(first) + " it is"));
}

TEST(VerifySplit, AnotherSplitThatCannotBeLoadedOrRunGivesWayToTheFirst) {
  const StageSplits first = FirstOf(Measured());
  const auto refuses = [&](const StageSplits& splits) {
    return splits == first ? Status() : ResourceExhausted("no more can be pinned");
  };
  for (const bool loads : {false, true}) {
    Machine machine(HostEightTimesSlower());
    (loads ? machine.on_time : machine.on_load) = refuses;
    const auto verified = machine.Verify(Measured());
    ASSERT_TRUE(verified.has_value());
    EXPECT_EQ(verified->splits, first);
    EXPECT_EQ(verified->num_loads, kMostLoads);
    EXPECT_EQ(machine.loaded.back(), first);
    ASSERT_EQ(machine.warnings.size(), 2U);
    EXPECT_THAT(machine.warnings[1], HasSubstr("no more can be pinned"));
  }
}

TEST(VerifySplit, AFirstLoadOrTrialThatFailsIsANamedError) {
  for (const bool loads : {false, true}) {
    Machine machine(Measured());
    (loads ? machine.on_time : machine.on_load) = [](const StageSplits&) -> Status {
      return Status(StatusCode::kUnavailable, "the host is late");
    };
    const auto verified = machine.Verify(Measured());
    ASSERT_FALSE(verified.has_value());
    EXPECT_EQ(verified.error().code(), StatusCode::kUnavailable);
    EXPECT_THAT(verified.error().message(), HasSubstr("the host is late"));
    EXPECT_EQ(verified.error().message().find("--experts auto: steps with ") == 0, loads);
    EXPECT_EQ(machine.loaded.size(), 1U);
  }
}

TEST(VerifySplit, WhereNoOtherSplitPromisesMoreTheFirstStaysAndAWarningSaysWhatIsSlow) {
  ExpertCosts truth = Measured();
  truth.rest = 0.2;
  Machine machine(truth);
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->num_loads, 1);
  EXPECT_EQ(verified->splits, FirstOf(Measured()));
  EXPECT_TRUE(machine.lines.empty());
  EXPECT_THAT(machine.warnings,
              ElementsAre(::testing::AllOf(
                  HasSubstr("the GPU takes 200.0 ms beside them where 5.0 were planned"),
                  HasSubstr("no other split promises a tenth less"), HasSubstr("bounds it"))));
}

TEST(VerifySplit, EveryStageHasTheSplitOfItsOwnGpu) {
  ExpertCosts small = Measured();
  ExpertCosts large = Measured();
  small.num_layers = large.num_layers = 20;
  small.room = 20 * 256 / 4;
  large.room = 20 * 256;
  Machines machines({small, large});
  const auto verified = machines.Verify({small, large});
  ASSERT_TRUE(verified.has_value());
  EXPECT_TRUE(verified->verdict.as_planned);
  EXPECT_THAT(machines.loaded, ElementsAre(StageSplits{ChooseExperts(small).split, kAllResident}));
  EXPECT_EQ(verified->splits, machines.loaded[0]);
  EXPECT_THAT(machines.lines, ElementsAre(HasSubstr("verified: ")));
}

TEST(VerifySplit, AStageWhoseHostIsSlowIsNamedAndItsSplitAloneChanges) {
  ExpertCosts stage = Measured();
  stage.num_layers = 20;
  stage.room = 20 * 256 / 3;
  ExpertCosts slow = stage;
  slow.host /= 16;
  slow.host_beside /= 16;
  Machines machines({stage, slow});
  const auto verified = machines.Verify({stage, stage});
  ASSERT_TRUE(verified.has_value());
  EXPECT_EQ(verified->num_loads, 2);
  ASSERT_EQ(machines.loaded.size(), 2U);
  EXPECT_EQ(machines.loaded[0], (StageSplits{ChooseExperts(stage).split, ChooseExperts(stage).split}));
  EXPECT_EQ(machines.loaded[1], (StageSplits{ChooseExperts(stage).split, ChooseExperts(slow).split}));
  EXPECT_EQ(verified->splits, machines.loaded[1]);
  ASSERT_EQ(machines.warnings.size(), 1U);
  EXPECT_THAT(
      machines.warnings[0],
      ::testing::AllOf(HasSubstr("stage 1: the host's kernels read 3.1 GB/s where 50.0 were measured"),
                       HasSubstr("loads again with stage 0 " + ToString(machines.loaded[1][0]) +
                                 "; stage 1 " + ToString(machines.loaded[1][1]))));
}

// However wrong rates are.
TEST(VerifySplit, NeverLoadsMoreThanThreeTimes) {
  for (const double host : {0.02, 1.0, 4.0}) {
    for (const double link : {0.02, 1.0}) {
      for (const double others : {0.1, 10.0}) {
        ExpertCosts truth = Measured();
        truth.host *= host;
        truth.host_beside *= host;
        truth.link *= link;
        truth.link_beside *= link;
        Machine machine(truth);
        machine.others_take = others;
        const auto verified = machine.Verify(Measured());
        ASSERT_TRUE(verified.has_value());
        EXPECT_LE(machine.loaded.size(), static_cast<size_t>(kMostLoads));
        EXPECT_EQ(machine.loaded.back(), verified->splits);
        EXPECT_EQ(static_cast<int>(machine.loaded.size()), verified->num_loads);
      }
    }
  }
}

TEST(JudgeTrial, ACacheThatBeginsEmptyIsNoWrongRate) {
  const ExpertCosts costs = Measured();
  const ExpertSplit split{.cached = 256, .slots = costs.room};
  const AskedExperts planned = PlannedAsks(split, costs);
  EXPECT_NEAR(planned.missed, 43 * 6 * 2.0 / 3, 0.1);
  const TrialVerdict verdict = Judge(split, costs, StepsOf(split, costs, {.missed = 43 * 6}));
  EXPECT_TRUE(verdict.as_planned);
  EXPECT_NEAR(verdict.seen, costs.rest + 43 * 6 * costs.expert_bytes / costs.link, 1e-9);
  EXPECT_NEAR(verdict.full, StepSeconds(split, costs, planned), 1e-6);
  // Steps that bring less than chance would are faster than the plan, and stay so.
  const TrialVerdict favours = Judge(split, costs, StepsOf(split, costs, {.missed = 20}));
  EXPECT_TRUE(favours.as_planned);
  EXPECT_EQ(favours.full, favours.seen);
}

TEST(JudgeTrial, WhatWasSeenIsWhatTheCorrectedCostsGive) {
  const ExpertCosts costs = Measured();
  ExpertCosts truth = costs;
  truth.host_beside = 20e9;
  truth.link_beside = 10e9;
  truth.rest = 9e-3;
  const ExpertSplit split{.host = 96, .cached = 160, .slots = costs.room};
  const AskedExperts asked{.host = 80, .missed = 120};
  SeenTrial trial = StepsOf(split, truth, asked);
  const TrialVerdict verdict = Judge(split, costs, trial);
  EXPECT_FALSE(verdict.as_planned);
  EXPECT_NEAR(verdict.corrected[0].host_beside, 20e9, 1e6);
  EXPECT_NEAR(verdict.corrected[0].link_beside, 10e9, 1e8);
  EXPECT_NEAR(verdict.corrected[0].rest, 9e-3, 1e-6);
  EXPECT_NEAR(StepSeconds(split, verdict.corrected[0], asked), verdict.seen, 1e-4);
  EXPECT_EQ(verdict.slowest, StepPart::kLink);
  // Still steps that bring experts all the same do not tell what the rest takes.
  trial.still.stages[0].asked.missed = 100;
  EXPECT_EQ(Judge(split, costs, trial).corrected[0].rest, costs.rest);
}

// The first steps of a model whose file was not in memory.
TEST(JudgeTrial, StepsThatReadFromDiskAreNotHeldAgainstTheHost) {
  const ExpertCosts costs = Measured();
  SeenTrial trial = StepsOf(kResidents, costs, PlannedAsks(kResidents, costs));
  trial.steps.seconds *= 30;
  trial.steps.stages[0].host_seconds *= 30;
  trial.steps.stages[0].disk_bytes = 0.5 * trial.steps.stages[0].asked.host * costs.expert_bytes;
  const TrialVerdict verdict = Judge(kResidents, costs, trial);
  EXPECT_TRUE(verdict.from_disk);
  EXPECT_TRUE(verdict.as_planned);
  EXPECT_NEAR(verdict.corrected[0].host, costs.host, 1e6);
  EXPECT_THAT(VerdictText(verdict), HasSubstr("still read experts from disk"));
  trial.steps.stages[0].disk_bytes = 4096;  // A log line.
  EXPECT_FALSE(Judge(kResidents, costs, trial).as_planned);
}

}  // namespace
}  // namespace dsv4::model
