// An engine whose steps verify drafts, against one that does not. Both give the same tokens,
// log-probabilities, ends and kept states. Drafters are right, wrong and half right, whatever else the
// requests ask for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "engine/engine.h"
#include "engine/schedule/measure_prices.h"
#include "tests/engine/outcomes.h"

namespace dsv4::engine {
namespace {

constexpr const char* kModelDirectory = "tests/golden/models/nvfp4_experts";
constexpr int64_t kMostRewound = 9;

std::unique_ptr<model::Model> LoadModel(const ops::Backend& backend) {
  auto model = model::Model::Load(kModelDirectory, backend, {.max_rewind_tokens = kMostRewound});
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  return std::move(*model);
}

model::Model& CpuModel() {
  static const std::unique_ptr<model::Model> model = LoadModel(*backend::MakeCpuBackend({.num_threads = 1}));
  return *model;
}
model::Model& ReferenceModel() {
  static const std::unique_ptr<model::Model> model = LoadModel(backend::MakeReferenceBackend(1));
  return *model;
}

// With a draft block or a DSpark drafter of random weights, which are hardly ever right.
std::unique_ptr<model::Model> LoadDraftModel(const ops::Backend& backend, bool dspark = false) {
  auto model =
      model::Model::Load(dspark ? "tests/golden/models/dspark" : "tests/golden/models/fp8_mxfp4", backend,
                         {.max_rewind_tokens = kMostRewound, .mtp = !dspark, .dspark = dspark});
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_TRUE((*model)->can_draft()) << (*model)->why_no_draft();
  return std::move(*model);
}
model::Model& CpuDraftModel() {
  static const std::unique_ptr<model::Model> model =
      LoadDraftModel(*backend::MakeCpuBackend({.num_threads = 1}));
  return *model;
}

model::Model& CpuDsparkModel() {
  static const std::unique_ptr<model::Model> model =
      LoadDraftModel(*backend::MakeCpuBackend({.num_threads = 1}), /*dspark=*/true);
  return *model;
}

std::vector<int32_t> RandomTokens(size_t count, std::mt19937& random) {
  std::vector<int32_t> tokens(count);
  const auto vocab_size = static_cast<uint32_t>(CpuModel().config().vocab_size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

// Allows every second token of those that the one before says.
class EveryOther final : public sampling::TokenConstraint {
 public:
  std::span<const uint64_t> Allowed() override {
    words_.assign(64, odd_ ? 0xAAAAAAAAAAAAAAAAULL : 0x5555555555555555ULL);
    return words_;
  }
  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<EveryOther>(*this);
  }
  void Accept(int32_t token) override {
    ++num_accepted;
    odd_ = token % 3 == 0;
  }
  size_t CountAllowed(std::span<const int32_t> draft) override {
    bool odd = odd_;
    size_t count = 0;
    for (; count < draft.size() && (draft[count] % 2 != 0) == odd; ++count) odd = draft[count] % 3 == 0;
    return count;
  }
  // Sometimes, and mostly not what comes: text may be spelled in other tokens.
  std::vector<int32_t> Forced(size_t most) override {
    if (num_accepted % 3 != 0) return {};
    return std::vector<int32_t>(std::min<size_t>(most, 2), odd_ ? 1 : 4);
  }
  int num_accepted = 0;

 private:
  std::vector<uint64_t> words_;
  bool odd_ = false;
};

Request RandomRequest(std::mt19937& random) {
  Request request;
  request.prompt = RandomTokens(1 + random() % 140, random);
  request.max_tokens = 1 + random() % 50;
  request.sampling.seed = random();
  const auto unit = [&] { return static_cast<float>(random() % 1000) / 1000; };
  request.sampling.temperature = random() % 2 == 0 ? 0.0F : 2.0F * unit();
  if (random() % 3 == 0) request.sampling.top_k = static_cast<int>(1 + random() % 20);
  if (random() % 3 == 0) request.sampling.top_p = 0.2F + 0.7F * unit();
  if (random() % 4 == 0) request.sampling.repetition_penalty = 1.3F;
  if (random() % 4 == 0) request.sampling.frequency_penalty = 0.7F;
  if (random() % 4 == 0) request.num_logprobs = 3;
  if (random() % 4 == 0) request.constraint = std::make_unique<EveryOther>();
  for (const int32_t token : RandomTokens(random() % 12, random)) request.stop_tokens.insert(token);
  return request;
}

// Knows how the texts go on, and is wrong at some places.
class Oracle final : public speculation::Drafter {
 public:
  Oracle(const std::vector<std::vector<int32_t>>& texts, uint32_t wrong_in, uint32_t seed)
      : texts_(texts), wrong_in_(wrong_in), random_(seed) {}

  void Read(std::span<const int32_t> text) override { read_.assign(text.begin(), text.end()); }
  speculation::Draft Propose(int64_t most) override {
    speculation::Draft draft{.evidence = static_cast<int>(random_() % speculation::kMostEvidence)};
    for (const std::vector<int32_t>& text : texts_) {
      if (text.size() < read_.size() || !std::equal(read_.begin(), read_.end(), text.begin())) continue;
      for (size_t i = read_.size(); i < text.size() && most > 0; ++i, --most) draft.tokens.push_back(text[i]);
      break;
    }
    // Beyond the end too.
    for (; most > 0; --most) draft.tokens.push_back(7);
    for (int32_t& token : draft.tokens) {
      if (wrong_in_ > 0 && random_() % wrong_in_ == 0) token = (token + 1) % 64;
    }
    return draft;
  }

 private:
  const std::vector<std::vector<int32_t>>& texts_;
  uint32_t wrong_in_;
  std::mt19937 random_;
  std::vector<int32_t> read_;
};

std::vector<Outcome> RunMix(model::Model& model, uint32_t seed, EngineOptions options, EngineStats* stats) {
  std::mt19937 random(seed);
  options.prefix_cache_bytes = int64_t{1} << 30;
  Engine engine(model, options, {});
  return RunMix(engine, random, RandomRequest, stats);
}

int64_t Sum(const EngineStats::DraftCounts& counts) {
  int64_t sum = 0;
  for (const auto& of_source : counts) {
    for (const int64_t count : of_source) sum += count;
  }
  return sum;
}

struct Sums {
  int64_t drafted = 0;
  int64_t accepted = 0;
  int64_t ahead = 0;
  int64_t steps_without = 0;
  int64_t steps_with = 0;
  int64_t verified_on_backend = 0;
};

constexpr int kSuffix = -1;  // In place of wrong_in.
constexpr int kMtp = -2;
constexpr int kSuffixAndMtp = -3;
constexpr int kDspark = -4;
constexpr int kSuffixAndDspark = -5;

// wrong_in: of so many drafted tokens one is wrong; 0: none.
Sums ExpectSameText(model::Model& model, uint32_t first_seed, uint32_t num_seeds, int wrong_in,
                    const EngineOptions& base, bool always) {
  Sums sums;
  for (uint32_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
    EngineStats stats;
    EngineOptions without = base;
    without.async_scheduling = false;
    const std::vector<Outcome> want = RunMix(model, seed, without, &stats);
    sums.steps_without += stats.num_steps;
    std::vector<std::vector<int32_t>> texts;
    for (const Outcome& outcome : want) {
      texts.push_back(outcome.prompt);
      texts.back().insert(texts.back().end(), outcome.tokens.begin(), outcome.tokens.end());
    }
    EngineOptions with = base;
    with.speculation.always = always;
    with.speculation.most_tokens = 1 + seed % 12;  // More than can be taken back, too.
    uint32_t next = seed;
    with.speculation.mtp = wrong_in == kMtp || wrong_in == kSuffixAndMtp;
    with.speculation.dspark = wrong_in == kDspark || wrong_in == kSuffixAndDspark;
    if (wrong_in != kMtp && wrong_in != kDspark) {
      with.speculation.make_drafter = [&]() -> std::unique_ptr<speculation::Drafter> {
        if (wrong_in < 0) return speculation::MakeSuffixDrafter();
        return std::make_unique<Oracle>(texts, static_cast<uint32_t>(wrong_in), next++);
      };
    }
    ExpectSame(RunMix(model, seed, with, &stats), want, seed);
    sums.drafted += Sum(stats.num_draft_tokens);
    sums.accepted += Sum(stats.num_accepted_tokens);
    sums.ahead += stats.num_steps_ahead;
    sums.verified_on_backend += stats.num_steps_verified_on_backend;
    sums.steps_with += stats.num_steps;
  }
  return sums;
}

TEST(Speculation, GivesTheTextOfSerialDecodingWithDraftsThatAreMostlyRight) {
  const Sums sums = ExpectSameText(CpuModel(), 0, 25, 4, {}, true);
  EXPECT_GT(sums.drafted, sums.accepted);
  EXPECT_GT(sums.accepted, 1000);
}

TEST(Speculation, GivesTheTextOfSerialDecodingWithDraftsThatAreMostlyWrong) {
  const Sums sums = ExpectSameText(CpuModel(), 100, 15, 1, {}, true);
  EXPECT_GT(sums.drafted, 1000);
  EXPECT_LT(sums.accepted, sums.drafted / 10);
}

TEST(Speculation, TakesFewerStepsWhereDraftsAreRight) {
  const Sums sums = ExpectSameText(CpuModel(), 200, 10, 0, {}, true);
  EXPECT_LT(sums.steps_with, sums.steps_without * 2 / 3);
}

TEST(Speculation, GivesTheTextOfSerialDecodingWithSuffixDrafts) {
  const Sums sums = ExpectSameText(CpuModel(), 300, 15, kSuffix, {}, true);
  EXPECT_GT(sums.drafted, 100);
}

TEST(Speculation, GivesTheTextOfSerialDecodingWithTheDraftBlock) {
  const Sums sums = ExpectSameText(CpuDraftModel(), 800, 12, kMtp, {}, true);
  EXPECT_GT(sums.drafted, 1000);
  EXPECT_LT(sums.accepted, sums.drafted);
}

TEST(Speculation, GivesTheTextOfSerialDecodingWithTheDraftBlockInAllCompany) {
  ExpectSameText(CpuDraftModel(), 820, 6, kSuffixAndMtp, {}, false);
  ExpectSameText(CpuDraftModel(), 830, 4, kMtp, {.async_scheduling = true}, false);
  ExpectSameText(CpuDraftModel(), 840, 4, kMtp, {.max_step_tokens = 6, .max_sequences = 3}, true);
  ExpectSameText(*LoadDraftModel(backend::MakeReferenceBackend(1)), 850, 2, kMtp, {}, true);
}

// A backend that works while the host goes on chooses the tokens of steps that verify. For some requests of
// the mix the host does.
TEST(Speculation, GivesTheTextOfSerialDecodingWithTokensThatTheBackendChooses) {
  const EngineOptions ahead = {.async_scheduling = true};
  for (const int wrong_in : {0, 1, 4, kSuffixAndMtp}) {
    const Sums sums = ExpectSameText(CpuDraftModel(), 900, 8, wrong_in, ahead, true);
    EXPECT_GE(sums.verified_on_backend, 10) << wrong_in;
    EXPECT_LT(sums.verified_on_backend, sums.steps_with) << wrong_in;
  }
}

TEST(Speculation, PricesAreMeasuredBeforeTheFirstRequest) {
  auto loaded =
      model::Model::Load("models/tiny", *backend::MakeCpuBackend({.num_threads = 2}), {.mtp = true});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().ToString();
  // One draft costs no more than two. A busy machine may measure otherwise, but not each time.
  for (int attempt = 0; attempt < 20; ++attempt) {
    speculation::DraftPolicy measured;
    MeasurePrices(**loaded, {.most_mtp_tokens = 2, .most_seconds = 60}, measured);
    // Times that were not measured are relative to one row, which takes 1; these are seconds.
    for (int64_t rows = 1; rows <= 5; ++rows) {
      EXPECT_GT(measured.RelativeCost(rows), 0.0) << rows;
      EXPECT_LT(measured.RelativeCost(rows), 0.9) << rows << " rows of models/tiny, in seconds";
    }
    EXPECT_GT(measured.DraftingCost(1, 1), 0.0);
    EXPECT_LT(measured.DraftingCost(2, 1), 0.9);
    if (measured.DraftingCost(1, 1) < measured.DraftingCost(2, 1)) break;
    EXPECT_LT(attempt, 19) << "one draft: " << measured.DraftingCost(1, 1)
                           << " s, two: " << measured.DraftingCost(2, 1);
  }
  speculation::DraftPolicy none;  // Without time.
  MeasurePrices(**loaded, {.most_mtp_tokens = 2, .most_seconds = 0}, none);
  EXPECT_EQ(none.RelativeCost(1), 1.0);
}

TEST(Speculation, GivesTheTextOfSerialDecodingWithDspark) {
  const Sums sums = ExpectSameText(CpuDsparkModel(), 900, 12, kDspark, {}, true);
  EXPECT_GT(sums.drafted, 1000);
  EXPECT_LT(sums.accepted, sums.drafted);
}

TEST(Speculation, GivesTheTextOfSerialDecodingWithDsparkInAllCompany) {
  ExpectSameText(CpuDsparkModel(), 920, 6, kSuffixAndDspark, {}, false);
  ExpectSameText(CpuDsparkModel(), 930, 4, kDspark, {.async_scheduling = true}, false);
  ExpectSameText(CpuDsparkModel(), 940, 4, kDspark, {.max_step_tokens = 6, .max_sequences = 3}, true);
  ExpectSameText(*LoadDraftModel(backend::MakeReferenceBackend(1), /*dspark=*/true), 950, 2, kDspark, {},
                 true);
}

// A model whose draft block was trained: chats of models/tiny, greedy and sampled.
TEST(Speculation, TheDraftBlockOfATrainedModelIsOftenRight) {
  auto loaded =
      model::Model::Load("models/tiny", *backend::MakeCpuBackend({.num_threads = 2}), {.mtp = true});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().ToString();
  model::Model& model = **loaded;
  // <BOS><User>What is the capital of France?<Assistant></think> and the like, as the tokenizer has them.
  std::vector<int32_t> prompt = {2};
  std::mt19937 random(4);
  for (int i = 0; i < 12; ++i) prompt.push_back(static_cast<int32_t>(300 + random() % 4000));
  for (const float temperature : {0.0F, 0.6F}) {
    std::vector<std::vector<int32_t>> texts;
    for (const bool drafts : {false, true}) {
      EngineOptions options;
      options.speculation.mtp = drafts;
      options.speculation.always = true;
      options.speculation.most_tokens = 2;
      Engine engine(model, options, {});
      std::map<RequestId, Outcome> outcomes;
      for (uint64_t seed = 0; seed < 4; ++seed) {
        Request request;
        request.prompt = prompt;
        request.max_tokens = 120;
        request.sampling.temperature = temperature;
        request.sampling.seed = seed;
        static_cast<void>(*engine.Submit(std::move(request)));
      }
      while (!engine.idle()) Collect(engine.Step(), outcomes);
      std::vector<int32_t> all;
      for (const auto& [id, outcome] : outcomes)
        all.insert(all.end(), outcome.tokens.begin(), outcome.tokens.end());
      texts.push_back(all);
      if (!drafts) continue;
      const auto mtp = static_cast<size_t>(speculation::Source::kMtp);
      const auto drafted = engine.stats().num_draft_tokens[mtp];
      const auto accepted = engine.stats().num_accepted_tokens[mtp];
      EXPECT_GT(drafted[0], 100);
      EXPECT_GT(accepted[0], drafted[0] * 3 / 10) << "temperature " << temperature;
      std::cout << "  temperature " << temperature << ": " << accepted[0] << " of " << drafted[0]
                << " first and " << accepted[1] << " second tokens\n";
    }
    EXPECT_EQ(texts[0], texts[1]);
  }
}

TEST(Speculation, ARequestMayOnlyUseDraftersThatThereAre) {
  EngineOptions options;
  options.speculation.make_drafter = speculation::MakeSuffixDrafter;
  options.speculation.mtp = true;  // A drafter that this model does not have.
  Engine engine(CpuModel(), options, {});
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 3;
  request.speculation = {.suffix = false, .mtp = true, .dspark = false};
  EXPECT_NE(engine.Submit(std::move(request)).error().message().find("speculation: got mtp"),
            std::string::npos);
  request = {.prompt = {1, 2, 3}, .max_tokens = 3};
  request.speculation = {.suffix = false, .mtp = false, .dspark = true};
  EXPECT_NE(engine.Submit(std::move(request)).error().message().find("speculation: got dspark"),
            std::string::npos);
}

TEST(Speculation, GivesTheTextOfSerialDecodingWhereLengthsFollowTheClock) {
  ExpectSameText(CpuModel(), 400, 15, 3, {}, false);
}

TEST(Speculation, GivesTheTextOfSerialDecodingOnTheReferenceBackend) {
  const Sums sums = ExpectSameText(ReferenceModel(), 500, 4, 3, {}, true);
  EXPECT_GT(sums.accepted, 100);
}

TEST(Speculation, GoesWellWithRunningAhead) {
  const Sums sums = ExpectSameText(CpuModel(), 600, 15, 3, {.async_scheduling = true}, false);
  EXPECT_GT(sums.ahead + sums.drafted, 50);
}

TEST(Speculation, GoesWellWithRequestsThatWait) {
  ExpectSameText(CpuModel(), 700, 10, 3, {.max_step_tokens = 6, .max_sequences = 3}, true);
}

TEST(Speculation, GoesWellWithPreemption) {
  std::vector<std::vector<int32_t>> want;
  for (const bool speculates : {false, true}) {
    EngineOptions options;
    if (speculates) {
      options.max_state_bytes = 3 * kv::StateBytes(CpuModel().cache_layout(), 60);
      options.speculation.make_drafter = speculation::MakeSuffixDrafter;
      options.speculation.always = true;
    }
    Engine engine(CpuModel(), options, {});
    std::vector<RequestId> ids;
    for (uint32_t seed = 0; seed < 3; ++seed) {
      std::mt19937 random(seed);
      Request request;
      request.prompt = RandomTokens(50, random);
      request.max_tokens = 300;
      request.sampling.temperature = 0.0F;
      ids.push_back(*engine.Submit(std::move(request)));
    }
    std::map<RequestId, Outcome> outcomes;
    while (!engine.idle()) Collect(engine.Step(), outcomes);
    std::vector<std::vector<int32_t>> tokens;
    for (const RequestId id : ids) tokens.push_back(outcomes[id].tokens);
    if (!speculates) {
      want = tokens;
      continue;
    }
    EXPECT_GT(engine.stats().num_preemptions, 0);
    EXPECT_GT(Sum(engine.stats().num_draft_tokens), 0);
    EXPECT_EQ(tokens, want);
  }
}

// At every phase of the blocks of 4 and of 128 positions that compressed entries are made of, with every number of accepted tokens.
TEST(Speculation, GivesTheTextOfSerialDecodingAtEveryPhaseOfABlock) {
  std::mt19937 random(5);
  const std::vector<int32_t> prompt = RandomTokens(120, random);
  const auto request = [&] {
    Request r;
    r.prompt = prompt;
    r.max_tokens = 280;
    r.sampling.seed = 3;
    return r;
  };
  Engine serial(CpuModel(), {}, {});
  static_cast<void>(*serial.Submit(request()));
  std::map<RequestId, Outcome> want;
  while (!serial.idle()) Collect(serial.Step(), want);
  std::vector<std::vector<int32_t>> texts = {prompt};
  texts[0].insert(texts[0].end(), want.begin()->second.tokens.begin(), want.begin()->second.tokens.end());
  for (uint32_t seed = 0; seed < 12; ++seed) {
    EngineOptions options;
    options.speculation.always = true;
    options.speculation.most_tokens = 1 + seed % 9;
    options.speculation.make_drafter = [&] { return std::make_unique<Oracle>(texts, 2 + seed % 5, seed); };
    Engine engine(CpuModel(), options, {});
    static_cast<void>(*engine.Submit(request()));
    std::map<RequestId, Outcome> got;
    while (!engine.idle()) Collect(engine.Step(), got);
    EXPECT_EQ(got.begin()->second.tokens, want.begin()->second.tokens) << seed;
  }
}

TEST(Speculation, IsLeftOutWhereARequestSaysSo) {
  EngineOptions options;
  options.speculation.always = true;
  options.speculation.make_drafter = speculation::MakeSuffixDrafter;
  Engine engine(CpuModel(), options, {});
  std::mt19937 random(1);
  Request request;
  request.prompt = RandomTokens(20, random);
  request.prompt.insert(request.prompt.end(), request.prompt.begin(), request.prompt.end());
  request.max_tokens = 40;
  request.speculation = speculation::Choice::Off();
  static_cast<void>(*engine.Submit(std::move(request)));
  while (!engine.idle()) engine.Step();
  EXPECT_EQ(Sum(engine.stats().num_draft_tokens), 0);
}

}  // namespace
}  // namespace dsv4::engine
