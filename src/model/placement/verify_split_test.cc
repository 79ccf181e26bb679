// What is done about a plan that steps do not keep to: a machine is made up whose rates are not those that were measured.
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

constexpr ExpertSplit kResidents{.resident = 85, .host = 171};

// Steps of a model on a machine of those rates.
SeenTrial StepsOf(const ExpertSplit& split, const ExpertCosts& truth, const AskedExperts& asked) {
  const bool beside = asked.host > 0 && asked.missed > 0;
  SeenTrial trial;
  trial.steps = {.seconds = StepSeconds(split, truth, asked),
                 .host_seconds = asked.host * truth.expert_bytes / (beside ? truth.host_beside : truth.host),
                 .asked = asked};
  const AskedExperts still{.host = asked.host};
  trial.still = {.seconds = truth.rest + asked.host * truth.expert_bytes / truth.host,
                 .host_seconds = asked.host * truth.expert_bytes / truth.host,
                 .asked = still};
  return trial;
}

class Machine {
 public:
  explicit Machine(const ExpertCosts& truth) : truth_(truth) {}

  Result<VerifiedSplit> Verify(const ExpertCosts& measured) {
    return VerifySplit(
        {.costs = measured, .without_cache = kResidents},
        {.load = [this](const ExpertSplit& split) -> Status {
           loaded.push_back(split);
           return on_load ? on_load(split) : Status();
         },
         .time_steps = [this]() -> Result<SeenTrial> {
           const ExpertSplit& split = loaded.back();
           if (on_time) DSV4_TRY(on_time(split));
           SeenTrial trial = StepsOf(split, truth_, PlannedAsks(split, truth_));
           if (loaded.size() > 1) trial.steps.seconds *= others_take;
           return trial;
         },
         .say = [this](bool warning,
                       const std::string& line) { (warning ? warnings : lines).push_back(line); }});
  }

  std::function<Status(const ExpertSplit&)> on_load;
  std::function<Status(const ExpertSplit&)> on_time;
  double others_take = 1;  // Times as long as the rates say, with another split than the first.
  std::vector<ExpertSplit> loaded;
  std::vector<std::string> lines;
  std::vector<std::string> warnings;

 private:
  const ExpertCosts truth_;
};

ExpertCosts HostEightTimesSlower() {
  ExpertCosts truth = Measured();
  truth.host /= 8;
  truth.host_beside /= 8;
  return truth;
}

ExpertSplit FirstOf(const ExpertCosts& costs) { return ChooseExperts(costs).split; }

TEST(VerifySplit, APlanThatStepsKeepToIsLoadedOnce) {
  Machine machine(Measured());
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  EXPECT_GT(verified->split.host, 0);
  EXPECT_GT(verified->split.cached, 0);
  EXPECT_THAT(machine.loaded, ElementsAre(FirstOf(Measured())));
  EXPECT_EQ(verified->split, machine.loaded[0]);
  EXPECT_EQ(verified->num_loads, 1);
  EXPECT_TRUE(verified->verdict.as_planned);
  EXPECT_THAT(machine.lines, ElementsAre(HasSubstr("experts: verified: ")));
  EXPECT_TRUE(machine.warnings.empty());
}

TEST(VerifySplit, AHostEightTimesSlowerThanMeasuredHasNoExpertsInTheEnd) {
  Machine machine(HostEightTimesSlower());
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  const ExpertSplit best = FirstOf(HostEightTimesSlower());
  EXPECT_THAT(machine.loaded, ElementsAre(FirstOf(Measured()), verified->split));
  EXPECT_EQ(verified->num_loads, 2);
  EXPECT_EQ(verified->split, best);
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
  EXPECT_EQ(verified->split, kResidents);
  EXPECT_THAT(machine.warnings, ElementsAre(HasSubstr("the link brings 2.0 GB/s where 40.0 were measured")));
}

TEST(VerifySplit, AnotherSplitThatTurnsOutSlowerGivesWayToTheFirst) {
  Machine machine(HostEightTimesSlower());
  machine.others_take = 20;
  const auto verified = machine.Verify(Measured());
  ASSERT_TRUE(verified.has_value());
  const ExpertSplit first = FirstOf(Measured());
  EXPECT_EQ(verified->split, first);
  EXPECT_EQ(verified->num_loads, kMostLoads);
  ASSERT_EQ(machine.loaded.size(), 3U);
  EXPECT_EQ(machine.loaded[2], first);
  EXPECT_NE(machine.loaded[1], first);
  EXPECT_FALSE(verified->verdict.as_planned);
  ASSERT_EQ(machine.warnings.size(), 2U);
  EXPECT_THAT(machine.warnings[1], HasSubstr("so " + ToString(first) + " it is"));
}

TEST(VerifySplit, AnotherSplitThatCannotBeLoadedOrRunGivesWayToTheFirst) {
  const ExpertSplit first = FirstOf(Measured());
  const auto refuses = [&](const ExpertSplit& split) {
    return split == first ? Status() : ResourceExhausted("no more can be pinned");
  };
  for (const bool loads : {false, true}) {
    Machine machine(HostEightTimesSlower());
    (loads ? machine.on_time : machine.on_load) = refuses;
    const auto verified = machine.Verify(Measured());
    ASSERT_TRUE(verified.has_value());
    EXPECT_EQ(verified->split, first);
    EXPECT_EQ(verified->num_loads, kMostLoads);
    EXPECT_EQ(machine.loaded.back(), first);
    ASSERT_EQ(machine.warnings.size(), 2U);
    EXPECT_THAT(machine.warnings[1], HasSubstr("no more can be pinned"));
  }
}

TEST(VerifySplit, AFirstLoadOrTrialThatFailsIsANamedError) {
  for (const bool loads : {false, true}) {
    Machine machine(Measured());
    (loads ? machine.on_time : machine.on_load) = [](const ExpertSplit&) -> Status {
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
  EXPECT_EQ(verified->split, FirstOf(Measured()));
  EXPECT_TRUE(machine.lines.empty());
  EXPECT_THAT(machine.warnings,
              ElementsAre(::testing::AllOf(
                  HasSubstr("the GPU takes 200.0 ms beside them where 5.0 were planned"),
                  HasSubstr("no other split promises a tenth less"), HasSubstr("bounds it"))));
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
        EXPECT_EQ(machine.loaded.back(), verified->split);
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
  const TrialVerdict verdict = JudgeTrial(split, costs, StepsOf(split, costs, {.missed = 43 * 6}));
  EXPECT_TRUE(verdict.as_planned);
  EXPECT_NEAR(verdict.seen, costs.rest + 43 * 6 * costs.expert_bytes / costs.link, 1e-9);
  EXPECT_NEAR(verdict.full, StepSeconds(split, costs, planned), 1e-6);
  // Steps that bring less than chance would are faster than the plan, and stay so.
  const TrialVerdict favours = JudgeTrial(split, costs, StepsOf(split, costs, {.missed = 20}));
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
  const TrialVerdict verdict = JudgeTrial(split, costs, trial);
  EXPECT_FALSE(verdict.as_planned);
  EXPECT_NEAR(verdict.corrected.host_beside, 20e9, 1e6);
  EXPECT_NEAR(verdict.corrected.link_beside, 10e9, 1e8);
  EXPECT_NEAR(verdict.corrected.rest, 9e-3, 1e-6);
  EXPECT_NEAR(StepSeconds(split, verdict.corrected, asked), verdict.seen, 1e-4);
  EXPECT_EQ(verdict.slowest, StepPart::kLink);
  // Still steps that bring experts all the same do not tell what the rest takes.
  trial.still.asked.missed = 100;
  EXPECT_EQ(JudgeTrial(split, costs, trial).corrected.rest, costs.rest);
}

// The first steps of a model whose file was not in memory.
TEST(JudgeTrial, StepsThatReadFromDiskAreNotHeldAgainstTheHost) {
  const ExpertCosts costs = Measured();
  SeenTrial trial = StepsOf(kResidents, costs, PlannedAsks(kResidents, costs));
  trial.steps.seconds *= 30;
  trial.steps.host_seconds *= 30;
  trial.steps.disk_bytes = 0.5 * trial.steps.asked.host * costs.expert_bytes;
  const TrialVerdict verdict = JudgeTrial(kResidents, costs, trial);
  EXPECT_TRUE(verdict.from_disk);
  EXPECT_TRUE(verdict.as_planned);
  EXPECT_NEAR(verdict.corrected.host, costs.host, 1e6);
  EXPECT_THAT(VerdictText(verdict), HasSubstr("still read experts from disk"));
  trial.steps.disk_bytes = 4096;  // A log line.
  EXPECT_FALSE(JudgeTrial(kResidents, costs, trial).as_planned);
}

}  // namespace
}  // namespace dsv4::model
