// Decode steps that are replayed hand the device the bytes of a walk through the model. Every script of steps
// runs twice from the same state, walked and replayed, and both are compared list by list. On a runtime of no
// device (null_runtime.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/groups/peer_group.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "comm/ranks_testing.h"
#include "tests/cuda/flash_sizes.h"

namespace dsv4::testing {
namespace {

// A list that was handed to the device at once.
struct Handed {
  std::string launches;
  std::string staged;
  friend bool operator==(const Handed& a, const Handed& b) = default;
};
using Trace = std::vector<Handed>;

// Index at which two traces part; empty: nowhere.
std::string Difference(const Trace& walked, const Trace& replayed) {
  for (size_t i = 0; i < std::min(walked.size(), replayed.size()); ++i) {
    if (walked[i].launches != replayed[i].launches) return "launches of list " + std::to_string(i);
    if (walked[i].staged != replayed[i].staged) return "arrays of list " + std::to_string(i);
  }
  return walked.size() == replayed.size() ? "" : "the number of lists";
}

// One step of a script: which sequences read a token, in this order.
using Step = std::vector<size_t>;

backend::CudaOptions Watched(Trace* trace) {
  return {.watch = [trace](std::span<const std::byte> launches, std::span<const std::byte> staged) {
    const auto text = [](std::span<const std::byte> bytes) {
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    trace->push_back({text(launches), text(staged)});
  }};
}

class Steps {
 public:
  Steps(const ops::Backend& backend, model::Model& model, Trace& trace)
      : trace_(trace), backend_(backend), model_(model) {}

  const ops::Backend& backend() const { return backend_; }
  backend::cuda::CudaContext& context() {
    return static_cast<backend::cuda::CudaContext&>(*backend_.context);
  }
  std::vector<kv::SequenceState>& states() { return states_; }
  int64_t replayed() const { return backend::ReplayCountersOf(backend_).replayed; }

  size_t Add(int64_t length) {
    states_.push_back(Take(model_.NewSequence()));
    Lengthen(states_.back(), length);
    return states_.size() - 1;
  }

  // The same by a prompt, so that other ranks know of it.
  void AddPrompt(int64_t length) {
    states_.push_back(Take(model_.NewSequence()));
    const std::vector<int32_t> tokens(static_cast<size_t>(length), 1);
    const model::SequenceChunk chunk = {
        .state = &states_.back(), .tokens = tokens, .logits = model::LogitsRows::kNone};
    EXPECT_TRUE(model_.Step({&chunk, 1}).has_value());
  }

  // Runs the script one step ahead of what has been waited for; what it handed over.
  Trace Run(std::span<const Step> script, float temperature = 0.8F) {
    // A host that has waited for all begins in the same half of staging memory.
    if (!word_) word_ = Take(backend_.context->memory().Allocate(sizeof(int32_t)));
    int32_t word = 0;
    EXPECT_TRUE(backend_.context->memory().CopyToHost(&word, word_.data(), sizeof(word), nullptr).ok());
    trace_.clear();
    std::map<size_t, int64_t> rows;  // Rows of the step in front.
    std::unique_ptr<model::QueuedStep> now;
    for (size_t i = 0; i < script.size(); ++i) {
      const Step& step = script[i];
      if (before_step) before_step(i);
      std::vector<model::DecodeChunk> chunks;
      std::map<size_t, int64_t> rows_here;
      if (drafts_between) {
        if (now != nullptr) {
          EXPECT_TRUE(now->Wait().has_value());
        }
        now.reset();
        DraftAll(step);
      }
      const std::vector<int32_t> draft(draft_tokens, static_cast<int32_t>(7 + i));
      const std::vector<sampling::ChoiceParams> draft_choices(
          draft_tokens, {.temperature = temperature, .uniform = static_cast<double>(i % 89) / 89.0});
      for (const size_t sequence : step) {
        kv::SequenceState& state = states_[sequence];
        const auto before = rows.find(sequence);
        chunks.push_back({.state = &state,
                          .token = static_cast<int32_t>(state.length() % 1000),
                          .follows = before == rows.end() ? -1 : before->second,
                          .choice = {.temperature = temperature,
                                     .top_p = 0.9F,
                                     .uniform = static_cast<double>(state.length() % 97) / 97.0},
                          .draft = draft,
                          .draft_choices = draft_choices,
                          .drafts_next = drafts_between});
        if (draft.empty()) rows_here[sequence] = static_cast<int64_t>(chunks.size()) - 1;
      }
      std::unique_ptr<model::QueuedStep> next =
          Take(chooses_later ? model_.QueueLogits(chunks, {}) : model_.QueueDecode(chunks, {}));
      if (now != nullptr) {
        EXPECT_TRUE(now->Wait().has_value());
      }
      if (chooses_later) ChooseRows(i, chunks.size(), *next);
      now = std::move(next);
      rows = rows_here;
    }
    EXPECT_TRUE(now->Wait().has_value());
    now.reset();
    return std::exchange(trace_, {});
  }

  // The same from where the sequences were before the script ran.
  void TakeBack(std::span<const Step> script) {
    std::map<size_t, int64_t> counts;
    for (const Step& step : script) {
      for (const size_t sequence : step) counts[sequence] += 1 + static_cast<int64_t>(draft_tokens);
    }
    for (const auto& [sequence, count] : counts) {
      const Status rewound = states_[sequence].Rewind(count);
      EXPECT_TRUE(rewound.ok()) << rewound.ToString();
    }
  }

  void SetReplay(bool replay) { backend::SetReplay(backend_, replay); }

  // Each sequence reads so many tokens more in each step, of a draft. None follows a step in front then.
  size_t draft_tokens = 0;
  // In front of each step the drafter drafts as many, of rows that the step before has made for it.
  bool drafts_between = false;

  // Steps end with their logits, and are chosen from by rules of any size behind them.
  bool chooses_later = false;

  // Called before each step of a script is queued.
  std::function<void(size_t)> before_step;

  // Walked, taken back, replayed: where the two part.
  std::string Compare(std::span<const Step> script) {
    SetReplay(false);
    const Trace walked = Run(script);
    TakeBack(script);
    SetReplay(true);
    return Difference(walked, Run(script));
  }

 private:
  void ChooseRows(size_t step_number, size_t num_rows, model::QueuedStep& step) {
    const std::vector<uint64_t> mask(static_cast<size_t>(model_.config().vocab_size + 63) / 64,
                                     0x5555555555555555ULL << (step_number % 2));
    std::vector<sampling::TokenRule> rules(num_rows);
    for (size_t i = 0; i < num_rows; ++i) {
      if ((step_number + i) % 3 == 0) rules[i].permitted = mask;
      if ((step_number + i) % 4 == 0) rules[i].num_logprobs = static_cast<int>(step_number % 5);
      if ((step_number + i) % 5 == 0) {
        rules[i].penalties.presence = 0.5F;
        for (size_t k = 0; k <= step_number; ++k) rules[i].counts.push_back({static_cast<int32_t>(k), 1});
      }
    }
    const Status chosen = model_.Choose(step, rules);
    EXPECT_TRUE(chosen.ok()) << chosen.ToString();
  }

  void DraftAll(const Step& step) {
    std::vector<model::DraftChunk> chunks;
    for (const size_t sequence : step) {
      chunks.push_back({.state = &states_[sequence], .token = 1});
      chunks.back().choices.resize(draft_tokens, {.temperature = 0.0F});
    }
    const auto drafts = model_.Draft(chunks, {});
    EXPECT_TRUE(drafts.has_value()) << drafts.error().ToString();
  }

  Trace& trace_;
  const ops::Backend& backend_;
  model::Model& model_;
  Buffer word_;
  std::vector<kv::SequenceState> states_;
};

// On one rank.
struct Alone {
  Trace trace;
  ops::Backend backend = Take(backend::MakeCudaBackend(Watched(&trace)));
  std::unique_ptr<model::Model> model = MakeFlash(backend, {}, 5);
  Steps steps{backend, *model, trace};
};

// Steps that can be taken back; an odd number, after which pinned memory is given out from the same block on.
constexpr size_t kBlock = 31;

std::vector<Step> Same(const Step& step, size_t count = kBlock) { return std::vector<Step>(count, step); }

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
  for (const char* placement : {"tensor", "expert,sequences"}) {
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

// A replayer that forgets to make one array again, or that takes every step for one of the same key.
class WrongReplayer final : public ops::StepReplayer {
 public:
  WrongReplayer(std::shared_ptr<ops::StepReplayer> inner, int64_t stale_array, bool one_key)
      : inner_(std::move(inner)), stale_array_(stale_array), one_key_(one_key) {}

  Result<std::unique_ptr<PendingCopy>> Replay(std::string_view key, const End& end,
                                              const std::function<void(ops::StepArrays&)>& pass) override {
    return inner_->Replay(KeyOf(key), end,
                          [&](ops::StepArrays& arrays) { pass(static_cast<Arrays&>(arrays).inner()); });
  }
  void BeginRecording(std::string_view key, std::shared_ptr<ops::StepArrays> arrays) override {
    num_arrays_ = std::max(num_arrays_, arrays->size());
    recorded_.push_back(std::make_shared<Arrays>(std::move(arrays), *this));
    inner_->BeginRecording(KeyOf(key), recorded_.back());
  }
  void EndRecording(bool queued) override {
    inner_->EndRecording(queued);
    num_arrays_ = std::max(num_arrays_, recorded_.back()->size());
  }
  Status SetBetweenSteps(bool between) override { return inner_->SetBetweenSteps(between); }
  ops::ReplayCounters replay_counters() const override { return inner_->replay_counters(); }

  size_t num_arrays() const { return num_arrays_; }
  // Whether the array that was not made again should have been.
  bool was_stale() const { return was_stale_; }

 private:
  class Arrays final : public ops::StepArrays {
   public:
    Arrays(std::shared_ptr<ops::StepArrays> inner, WrongReplayer& owner)
        : inner_(std::move(inner)), owner_(owner) {}
    ops::StepArrays& inner() { return *inner_; }
    size_t size() const override { return inner_->size(); }
    int64_t Find(std::span<const std::byte> bytes) const override { return inner_->Find(bytes); }
    Array Make(size_t i) override {
      const Array array = inner_->Make(i);
      if (static_cast<int64_t>(i) != owner_.stale_array_) return array;
      const std::string bytes(static_cast<const char*>(array.data), array.count * array.element_bytes);
      if (first_.empty()) first_ = bytes;
      if (bytes.size() != first_.size()) return array;
      owner_.was_stale_ = owner_.was_stale_ || bytes != first_;
      return {first_.data(), array.count, array.element_bytes};
    }

   private:
    std::shared_ptr<ops::StepArrays> inner_;
    WrongReplayer& owner_;
    std::string first_;
  };

  std::string KeyOf(std::string_view key) const {
    return one_key_ ? "any" : "stale " + std::to_string(stale_array_) + std::string(key);
  }

  std::shared_ptr<ops::StepReplayer> inner_;
  const int64_t stale_array_;
  const bool one_key_;
  size_t num_arrays_ = 0;
  bool was_stale_ = false;
  std::vector<std::shared_ptr<Arrays>> recorded_;
};

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
