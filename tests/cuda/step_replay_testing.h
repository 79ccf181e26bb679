// Scripts of decode steps that are walked or replayed, on a runtime of no device (null_runtime.cc), and a replayer that is wrong.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "tests/cuda/flash_sizes.h"

namespace dsv4::testing {

// A list that was handed to the device at once.
struct Handed {
  std::string launches;
  std::string staged;
  friend bool operator==(const Handed& a, const Handed& b) = default;
};
using Trace = std::vector<Handed>;

// Index at which two traces part; empty: nowhere.
inline std::string Difference(const Trace& walked, const Trace& replayed) {
  for (size_t i = 0; i < std::min(walked.size(), replayed.size()); ++i) {
    if (walked[i].launches != replayed[i].launches) return "launches of list " + std::to_string(i);
    if (walked[i].staged != replayed[i].staged) return "arrays of list " + std::to_string(i);
  }
  return walked.size() == replayed.size() ? "" : "the number of lists";
}

// One step of a script: which sequences read a token, in this order.
using Step = std::vector<size_t>;

inline backend::CudaOptions Watched(Trace* trace) {
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
      std::unique_ptr<model::QueuedStep> next = Take(model_.QueueDecode(chunks, {}, chooses_later));
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

  // Steps of one sequence, until one is refused.
  Status RunUntilRefused(size_t sequence, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const model::DecodeChunk chunk = {.state = &states_[sequence],
                                        .token = static_cast<int32_t>(i),
                                        .choice = {.temperature = 0.8F, .uniform = 0.5}};
      const auto step = model_.QueueDecode({&chunk, 1}, {}, false);
      if (!step.has_value()) return step.error();
      if (const auto chosen = (*step)->Wait(); !chosen.has_value()) return chosen.error();
    }
    return {};
  }

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
inline constexpr size_t kBlock = 31;

inline std::vector<Step> Same(const Step& step, size_t count = kBlock) {
  return std::vector<Step>(count, step);
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

}  // namespace dsv4::testing
