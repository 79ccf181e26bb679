// Steps whose replay differs from their walk are seen: stale arrays, keys that leave something out.
#include "tests/cuda/step_replay_testing.h"

namespace dsv4::testing {
namespace {

// Index at which walked and replayed steps part if the replayer is wrong.
std::string CompareWith(Steps& steps, const std::shared_ptr<WrongReplayer>& wrong,
                        std::span<const Step> script) {
  steps.SetReplay(false);
  const Trace walked = steps.Run(script);
  steps.TakeBack(script);
  steps.context().SetReplayer(wrong);
  const Trace replayed = steps.Run(script);
  steps.TakeBack(script);
  return Difference(walked, replayed);
}

// Any array of the step that is not made again is seen, if it differs between the steps of the script.
TEST(CudaStepReplay, AStaleArrayIsSeen) {
  Alone alone;
  Steps& steps = alone.steps;
  const size_t a = steps.Add(100);
  const size_t b = steps.Add(301);
  constexpr size_t kFewSteps = 9;
  const std::vector<Step> script = Same({a, b}, kFewSteps);
  steps.Run(script);  // Launches of the first step alone.
  steps.TakeBack(script);
  // Uses records of its own, so that it replays none of another's.
  const auto compare = [&](int64_t stale_array, bool* was_stale) {
    const auto wrong = std::make_shared<WrongReplayer>(steps.context().MakeReplayer(), stale_array, false);
    for (int i = 0; i < 2; ++i) CompareWith(steps, wrong, script);  // Until it replays.
    const std::string difference = CompareWith(steps, wrong, script);
    *was_stale = wrong->was_stale();
    return std::pair(difference, wrong->num_arrays());
  };
  bool was_stale = false;
  const auto [difference, num_arrays] = compare(-1, &was_stale);
  EXPECT_EQ(difference, "");
  ASSERT_GT(num_arrays, 10U);
  size_t num_stale = 0;
  for (size_t array = 0; array < num_arrays; ++array) {
    const std::string seen = compare(static_cast<int64_t>(array), &was_stale).first;
    EXPECT_EQ(seen.empty(), !was_stale) << "array " << array << ": " << seen;
    if (was_stale) ++num_stale;
  }
  EXPECT_GE(num_stale, num_arrays / 2) << "of " << num_arrays;
}

// Steps whose sequences change places are of other keys.
TEST(CudaStepReplay, AKeyThatLeavesOutTheOrderIsSeen) {
  for (const bool one_key : {false, true}) {
    Alone alone;
    Steps& steps = alone.steps;
    const size_t a = steps.Add(1);
    const size_t b = steps.Add(2);
    std::vector<Step> script;
    for (size_t i = 0; i < kBlock; ++i)
      script.push_back(i % 6 < 3 ? Step{a, b} : Step{b, a});  // An order that follows none of their phases.
    const auto wrong = std::make_shared<WrongReplayer>(steps.context().MakeReplayer(), -1, one_key);
    std::string difference;
    for (int i = 0; i < 4; ++i) difference = CompareWith(steps, wrong, script);
    EXPECT_EQ(difference.empty(), !one_key) << difference;
  }
}

// A walk is compared with the replay that it stands for, and a wrong one is an error.
TEST(CudaStepReplay, EveryReplayCanBeComparedWithItsWalk) {
  const auto make = [] { return Take(backend::MakeCudaBackend({.check_replays = true})); };
  size_t num_arrays = 0;
  {
    Alone alone{.backend = make()};
    Steps& steps = alone.steps;
    const size_t sequence = steps.Add(100);
    const auto right = std::make_shared<WrongReplayer>(steps.context().MakeReplayer(), -1, false);
    steps.context().SetReplayer(right);
    const Status status = steps.RunUntilRefused(sequence, 200);
    EXPECT_TRUE(status.ok()) << status.ToString();
    const ops::ReplayCounters counters = backend::ReplayCountersOf(steps.backend());
    EXPECT_GT(counters.compared, 100);
    EXPECT_EQ(counters.replayed, 0);
    num_arrays = right->num_arrays();
  }
  size_t num_stale = 0;
  for (size_t array = 0; array < num_arrays; array += 4) {
    Alone alone{.backend = make()};
    Steps& steps = alone.steps;
    const size_t sequence = steps.Add(100);
    const auto wrong = std::make_shared<WrongReplayer>(steps.context().MakeReplayer(), array, false);
    steps.context().SetReplayer(wrong);
    const Status status = steps.RunUntilRefused(sequence, 40);
    EXPECT_EQ(status.ok(), !wrong->was_stale()) << "array " << array << ": " << status.ToString();
    if (status.ok()) continue;
    EXPECT_THAT(status.ToString(), ::testing::HasSubstr("a replayed step would be wrong: byte "));
    EXPECT_THAT(status.ToString(), ::testing::HasSubstr(" of op "));
    ++num_stale;
  }
  EXPECT_GE(num_stale, num_arrays / 12) << "of " << num_arrays;
}

}  // namespace
}  // namespace dsv4::testing
