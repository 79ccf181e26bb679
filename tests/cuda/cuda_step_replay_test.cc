// Decode steps that are replayed hand the device the bytes of a walk through the model. Every script of steps
// runs twice from the same state, walked and replayed, and both are compared list by list.
#include "backend/cuda/groups/peer_group.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "comm/ranks_testing.h"
#include "tests/cuda/step_replay_testing.h"

namespace dsv4::testing {
namespace {

// Steps of one sequence, from nothing: entries of both ratios complete, keys and pages grow.
TEST(CudaStepReplay, OneSequenceIsWalkedOrReplayedWithTheSameBytes) {
  Alone alone;
  Steps& steps = alone.steps;
  const size_t warm = steps.Add(0);
  for (int i = 0; i < 24; ++i) steps.Run(Same({warm}));
  const size_t sequence = steps.Add(0);
  const int64_t before = steps.replayed();
  int64_t num_steps = 0;
  for (int block = 0; block < 20; ++block) {
    EXPECT_EQ(steps.Compare(Same({sequence})), "") << "block " << block;
    num_steps += kBlock;
  }
  EXPECT_GE(steps.replayed() - before, num_steps * 9 / 10) << "of " << num_steps << " steps";
}

// Arrays and copies of a choice move nothing of the steps.
TEST(CudaStepReplay, StepsWhoseTokensAreChosenLater) {
  Alone alone;
  Steps& steps = alone.steps;
  steps.chooses_later = true;
  for (const int64_t length : {0, 3, 1980}) steps.Add(length);
  for (int i = 0; i < 24; ++i) steps.Run(Same({0, 1, 2}));
  const int64_t before = steps.replayed();
  int64_t num_steps = 0;
  for (int block = 0; block < 8; ++block) {
    steps.Run(Same({0, 1, 2}));
    num_steps += kBlock;
  }
  EXPECT_GE(steps.replayed() - before, num_steps * 9 / 10) << "of " << num_steps << " steps";
}

// Steps that verify drafts: windows that wrap within a step, and each number of entries that one completes.
TEST(CudaStepReplay, StepsOfSeveralRowsOfASequence) {
  for (const size_t draft : {1, 3, 5}) {
    Alone alone;
    Steps& steps = alone.steps;
    steps.draft_tokens = draft;
    const size_t count = 60 / (1 + draft) - (60 / (1 + draft) + 1) % 2;  // Odd, and can be taken back.
    const size_t warm = steps.Add(0);
    for (int i = 0; i < 60; ++i) steps.Run(Same({warm}, count));
    const size_t sequence = steps.Add(0);
    const int64_t before = steps.replayed();
    int64_t num_steps = 0;
    for (int block = 0; block < 12; ++block) {
      EXPECT_EQ(steps.Compare(Same({sequence}, count)), "") << draft << " tokens, block " << block;
      num_steps += static_cast<int64_t>(count);
    }
    EXPECT_GE(steps.replayed() - before, num_steps / 2) << "of " << num_steps << " steps, " << draft;
  }
}

// The rows that a drafter wants are made behind the step: it is replayed at every position.
TEST(CudaStepReplay, StepsBehindWhichADraftersRowsAreMade) {
  for (const bool dspark : {false, true}) {
    Trace trace;
    const ops::Backend backend = Take(backend::MakeCudaBackend(Watched(&trace)));
    const std::unique_ptr<model::Model> model = MakeFlash(backend, {.mtp = !dspark, .dspark = dspark}, 5);
    Steps steps(backend, *model, trace);
    steps.draft_tokens = 3;
    steps.drafts_between = true;
    constexpr size_t kCount = 13;
    const size_t sequence = steps.Add(640);
    for (int i = 0; i < 20; ++i) steps.Run(Same({sequence}, kCount));
    const int64_t before = steps.replayed();
    int64_t num_steps = 0;
    for (int block = 0; block < 4; ++block) {
      EXPECT_EQ(steps.Compare(Same({sequence}, kCount)), "") << dspark << ", block " << block;
      num_steps += static_cast<int64_t>(kCount);
    }
    EXPECT_GE(steps.replayed() - before, num_steps * 9 / 10) << "of " << num_steps << " steps";
  }
}

TEST(CudaStepReplay, StepsBehindWhichADraftersRowsAreMadeOnSeveralRanks) {
  for (const bool dspark : {false, true}) {
    Trace trace;
    RunFlashOnRanks(
        "tensor", {.mtp = !dspark, .dspark = dspark},
        [&](const ops::Backend& backend, model::Model& model) {
          Steps steps(backend, model, trace);
          steps.draft_tokens = 3;
          steps.drafts_between = true;
          constexpr size_t kCount = 13;
          steps.AddPrompt(640);
          for (int i = 0; i < 20; ++i) steps.Run(Same({0}, kCount));
          const int64_t before = steps.replayed();
          for (int i = 0; i < 2; ++i) EXPECT_EQ(steps.Compare(Same({0}, kCount)), "") << dspark;
          EXPECT_GE(steps.replayed() - before, static_cast<int64_t>(2 * kCount * 9 / 10));
          steps.states().clear();
        },
        Watched(&trace));
  }
}

// Several sequences, of all phases. One crosses 2048 tokens, where its entries become more than the indexer
// chooses, and one its window. One comes, one leaves, the order changes, some are taken back and some go on
// as forks.
TEST(CudaStepReplay, SeveralSequencesThatJoinAndLeave) {
  Alone alone;
  Steps& steps = alone.steps;
  for (const int64_t length : {0, 3, 1980, 121, 4000}) steps.Add(length);
  const auto script = [](size_t seed) {
    std::vector<Step> some;
    for (size_t i = 0; i < kBlock; ++i) {
      Step step = {0, 1, 2, 3};
      if (i >= 8 && i < 24) step.push_back(4);  // Joins, and leaves.
      if (i >= 16) step.erase(step.begin() + static_cast<int64_t>(seed % 4));
      if (i == 28) std::swap(step[0], step[1]);
      some.push_back(step);
    }
    return some;
  };
  for (size_t i = 0; i < 16; ++i) steps.Run(script(i));
  const int64_t before = steps.replayed();
  int64_t num_steps = 0;
  for (size_t i = 0; i < 16; ++i) {
    const std::vector<Step> block = script(i);
    EXPECT_EQ(steps.Compare(block), "") << "block " << i;
    num_steps += static_cast<int64_t>(block.size());
    if (i % 3 == 0) {
      EXPECT_TRUE(steps.states()[i % 5].Rewind(static_cast<int64_t>(i % 7)).ok());
    }
    if (i % 4 == 1) {
      kv::SequenceState fork = Take(steps.states()[2].Fork());
      steps.states()[2] = std::move(fork);
    }
  }
  EXPECT_GE(steps.replayed() - before, num_steps * 3 / 4) << "of " << num_steps << " steps";
}

// On several ranks each replays for itself. What rank 0 exchanges is among its launches.
TEST(CudaStepReplay, OnSeveralRanks) {
  for (const char* placement : {"tensor", "tensor,entries", "expert,sequences"}) {
    Trace trace;
    RunFlashOnRanks(
        placement, {},
        [&](const ops::Backend& backend, model::Model& model) {
          Steps steps(backend, model, trace);
          std::vector<Step> script;
          for (size_t i = 0; i < 8; ++i) steps.AddPrompt(2030 + static_cast<int64_t>(i));
          for (size_t i = 0; i < kBlock; ++i)
            script.push_back(i < 20 ? Step{0, 1, 2, 3, 4} : Step{0, 1, 2, 3, 4, 5, 6, 7});
          for (int i = 0; i < 10; ++i) steps.Run(script);
          const int64_t before = steps.replayed();
          constexpr int kBlocks = 4;
          for (int i = 0; i < kBlocks; ++i) EXPECT_EQ(steps.Compare(script), "") << placement;
          EXPECT_GE(steps.replayed() - before, kBlocks * static_cast<int64_t>(kBlock) * 3 / 4) << placement;
          steps.states().clear();
        },
        Watched(&trace));
  }
}

// An op that waits for others to join it (lowering/launch/lowering.h) is launched in front of the step that follows it, which is walked.
TEST(CudaStepReplay, WhatIsPendingIsInFrontOfTheStep) {
  Alone alone;
  Steps& steps = alone.steps;
  const size_t sequence = steps.Add(64);
  Memory& memory = steps.backend().context->memory();
  const Buffer bytes = Take(memory.Allocate(4096));
  const auto view = [&](int64_t begin, DType dtype, Shape shape) {
    return TensorView::Contiguous(static_cast<std::byte*>(bytes.data()) + begin, dtype, shape,
                                  memory.device());
  };
  const TensorView rows = view(0, DType::kBF16, {1, 512});
  const auto norm = [&](size_t step) {
    if (step % 8 != 5) return;
    const Status done = steps.backend().table.rms_norm(
        *steps.backend().context,
        {.x = rows, .weight = view(2048, DType::kF32, {512}), .y = rows, .eps = 1e-6F});
    EXPECT_TRUE(done.ok()) << done.ToString();
    EXPECT_EQ(steps.context().lowering().num_launches(), 1U) << "the op is launched at once";
  };
  for (int i = 0; i < 8; ++i) steps.Run(Same({sequence}));
  steps.before_step = norm;
  const int64_t before = steps.replayed();
  EXPECT_EQ(steps.Compare(Same({sequence})), "");
  const int64_t num_replayed = steps.replayed() - before;
  EXPECT_GT(num_replayed, static_cast<int64_t>(kBlock) / 2);
  EXPECT_LE(num_replayed, static_cast<int64_t>(kBlock) - 4);  // Steps 5, 13, 21 and 29 are walked.
}

// Weights that come change what launches know, whosever they are.
TEST(CudaStepReplay, WeightsThatComeEndAllRecords) {
  Alone alone;
  Steps& steps = alone.steps;
  const size_t sequence = steps.Add(64);
  const std::vector<Step> script = Same({sequence}, 9);
  for (int i = 0; i < 4; ++i) {
    steps.Run(script);
    steps.TakeBack(script);
  }
  const auto replayed = [&] {
    const int64_t before = steps.replayed();
    steps.Run(script);
    steps.TakeBack(script);
    return steps.replayed() - before;
  };
  ASSERT_EQ(replayed(), 9);
  std::vector<uint16_t> numbers(64 * 64);
  Weight source;
  source.rows = source.cols = 64;
  source.format = WeightFormat::kPlain;
  source.data = TensorView::Contiguous(numbers.data(), DType::kBF16, {64, 64});
  Weight prepared;
  const Status status = steps.backend().table.prepare_weight(*steps.backend().context,
                                                             {.source = &source, .prepared = &prepared});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_LT(replayed(), 9);
}

// A fault of a replayed step is told as that of a walked one, and what the device was asked for last has its names.
TEST(CudaStepReplay, CountersAndWhatSwitchesItOff) {
  Alone alone;
  Steps& steps = alone.steps;
  const size_t sequence = steps.Add(5);
  for (int i = 0; i < 4; ++i) {
    steps.Run(Same({sequence}));
    steps.TakeBack(Same({sequence}));
  }
  const backend::CudaCounters before = backend::CountersOf(steps.backend());
  const int64_t replayed_before = steps.replayed();
  steps.SetReplay(false);
  steps.Run(Same({sequence}));
  steps.TakeBack(Same({sequence}));
  EXPECT_EQ(steps.replayed(), replayed_before);
  const backend::CudaCounters between = backend::CountersOf(steps.backend());
  steps.SetReplay(true);
  steps.Run(Same({sequence}));
  const backend::CudaCounters after = backend::CountersOf(steps.backend());
  EXPECT_GE(steps.replayed() - replayed_before, static_cast<int64_t>(kBlock) - 2);
  EXPECT_EQ(after.launches - between.launches, between.launches - before.launches);
  EXPECT_EQ(after.lists - between.lists, between.lists - before.lists);
  for (const backend::CudaOptions& options :
       {backend::CudaOptions{.synchronous = true}, backend::CudaOptions{.replay = false},
        backend::CudaOptions{.explain = true}}) {
    EXPECT_EQ(Take(backend::MakeCudaBackend(options)).context->replayer(), nullptr);
  }
}

}  // namespace
}  // namespace dsv4::testing
