// Tests of the engine: texts alone and in batches, preemption, reuse, cancellation and errors.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/parallel.h"
#include "base/temporary_directory_testing.h"
#include "engine/prefix_file.h"
#include "io/content_digest.h"
#include "tests/engine/outcomes.h"

namespace dsv4::engine {
namespace {

using ::testing::HasSubstr;

// A random model with every layer kind; small enough that a step takes a millisecond.
constexpr const char* kModelDirectory = "tests/golden/models/nvfp4_experts";

std::unique_ptr<model::Model> LoadModel(const ops::Backend& backend) {
  auto model = model::Model::Load(kModelDirectory, backend, {});
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  return std::move(*model);
}

model::Model& SharedModel() {
  static const std::unique_ptr<model::Model> model = LoadModel(backend::MakeReferenceBackend(1));
  return *model;
}

std::vector<int32_t> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  const auto vocab_size = static_cast<uint32_t>(SharedModel().config().vocab_size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

Request MakeRequest(std::vector<int32_t> prompt, int64_t max_tokens = 8, float temperature = 0.0F) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = 11;
  return request;
}

Outcome RunAlone(Request request, EngineOptions options = {}) {
  Engine engine(SharedModel(), options, {});
  const RequestId id = *engine.Submit(std::move(request));
  return std::move(RunToEnd(engine)[id]);
}

TEST(Engine, AGenerationIsTheSameAloneAndInAnyBatch) {
  const std::vector<size_t> lengths = {1, 3, 40, 130, 7};
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const float temperature = i % 2 == 0 ? 0.0F : 1.0F;
    alone.push_back(RunAlone(MakeRequest(RandomTokens(lengths[i], 5), 6, temperature)).tokens);
    EXPECT_EQ(alone.back().size(), 6U);
  }
  ThreadPool pool(3);
  for (const int64_t max_step_tokens : {5, 37, 512}) {
    for (const int max_sequences : {2, 16}) {
      Engine engine(SharedModel(),
                    {.max_step_tokens = max_step_tokens,
                     .max_sequences = max_sequences,
                     .threads = max_sequences == 16 ? &pool : nullptr},
                    {});
      std::vector<RequestId> ids;
      for (size_t i = 0; i < lengths.size(); ++i) {
        const float temperature = i % 2 == 0 ? 0.0F : 1.0F;
        ids.push_back(*engine.Submit(MakeRequest(RandomTokens(lengths[i], 5), 6, temperature)));
      }
      const auto outcomes = RunToEnd(engine);
      for (size_t i = 0; i < lengths.size(); ++i) {
        EXPECT_EQ(outcomes.at(ids[i]).tokens, alone[i]) << "request " << i << ", step of " << max_step_tokens;
        EXPECT_EQ(outcomes.at(ids[i]).reason, FinishReason::kLength);
      }
    }
  }
}

TEST(Engine, AStopTokenEndsTheAnswerAndIsNotPartOfIt) {
  const std::vector<int32_t> prompt = RandomTokens(9, 1);
  const std::vector<int32_t> tokens = RunAlone(MakeRequest(prompt)).tokens;
  Request request = MakeRequest(prompt);
  request.stop_tokens = {tokens[3]};
  const Outcome outcome = RunAlone(std::move(request));
  EXPECT_EQ(outcome.reason, FinishReason::kStop);
  EXPECT_EQ(outcome.stop_token, tokens[3]);
  const auto first = std::find(tokens.begin(), tokens.end(), tokens[3]);
  EXPECT_EQ(outcome.tokens, std::vector<int32_t>(tokens.begin(), first));
}

// A hit must be worth a cold run wherever it ends: within a block of each compressor, and a little before a kept state's end.
TEST(Engine, AReusedPrefixGivesTheLogitsOfAColdRunAtEveryResidueOf128) {
  const std::unique_ptr<model::Model> model =
      LoadModel(*backend::MakeCpuBackend({.num_threads = 1}));  // Faster than the judge.
  const std::vector<int32_t> prompt = RandomTokens(170, 2);
  const auto run = [&](Engine& engine, const std::vector<int32_t>& tokens) {
    Request request = MakeRequest(tokens, 2);
    request.num_logprobs = 20;
    const RequestId id = *engine.Submit(std::move(request));
    return std::move(RunToEnd(engine)[id]);
  };
  Engine plain(*model, {}, {});
  const Outcome cold = run(plain, prompt);
  for (size_t split = 30; split < 30 + 128; ++split) {
    Engine engine(*model, {.prefix_cache_bytes = int64_t{1} << 30}, {});
    std::vector<int32_t> earlier(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(split));
    // Every third earlier prompt went on differently, so that its state has to be taken back.
    if (split % 3 == 0) earlier.resize(split + split % 60 + 1, prompt[split] ^ 1);
    run(engine, earlier);
    const Outcome warm = run(engine, prompt);
    EXPECT_EQ(warm.num_cached_tokens, static_cast<int64_t>(split));
    EXPECT_EQ(warm.tokens, cold.tokens) << "split at " << split;
    EXPECT_EQ(warm.logprobs, cold.logprobs) << "split at " << split;
  }
}

// The same with a restart between: the state comes from the disk.
TEST(Engine, AStateFromTheDiskGivesTheLogitsOfAColdRun) {
  const std::unique_ptr<model::Model> model = LoadModel(*backend::MakeCpuBackend({.num_threads = 1}));
  const TemporaryDirectory directory;
  const auto open = [&] {
    return std::move(*PrefixDisk::Open({.directory = directory.path(),
                                        .max_bytes = int64_t{1} << 30,
                                        .origin = [&] { return model->Origin(io::ContentDigest::kForever); }},
                                       [&](std::span<const std::byte> bytes, uint64_t origin) {
                                         return model->DeserializeSnapshot(bytes, origin);
                                       }));
  };
  const auto run = [&](Engine& engine, const std::vector<int32_t>& tokens, uint64_t salt) {
    Request request = MakeRequest(tokens, 3);
    request.num_logprobs = 20;
    request.cache_salt = salt;
    const RequestId id = *engine.Submit(std::move(request));
    return std::move(RunToEnd(engine)[id]);
  };
  const std::vector<int32_t> prompt = RandomTokens(300, 2);
  Engine plain(*model, {}, {});
  const Outcome cold = run(plain, prompt, 0);
  for (size_t split = 90; split < 90 + 128; split += 13) {
    std::vector<int32_t> earlier(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(split));
    earlier.resize(split + split % 3, prompt[split] ^ 1);  // Some have to be taken back.
    const uint64_t salt = split;
    {
      const std::unique_ptr<PrefixDisk> disk = open();
      Engine engine(*model, {.prefix_cache_bytes = int64_t{1} << 30, .prefix_disk = disk.get()}, {});
      run(engine, earlier, salt);
    }
    const std::unique_ptr<PrefixDisk> disk = open();
    Engine engine(*model, {.prefix_cache_bytes = int64_t{1} << 30, .prefix_disk = disk.get()}, {});
    // Two at once share the load, and a third that is cancelled leaves no trace.
    const RequestId cancelled = [&] {
      Request request = MakeRequest(prompt, 3);
      request.cache_salt = salt;
      return *engine.Submit(std::move(request));
    }();
    std::vector<RequestId> ids;
    for (int i = 0; i < 2; ++i) {
      Request request = MakeRequest(prompt, 3);
      request.num_logprobs = 20;
      request.cache_salt = salt;
      ids.push_back(*engine.Submit(std::move(request)));
    }
    engine.Cancel(cancelled);
    const auto outcomes = RunToEnd(engine);
    for (const RequestId id : ids) {
      EXPECT_GE(outcomes.at(id).num_cached_tokens, static_cast<int64_t>(split)) << split;
      EXPECT_EQ(outcomes.at(id).tokens, cold.tokens);
      EXPECT_EQ(outcomes.at(id).logprobs, cold.logprobs);
    }
    EXPECT_EQ(disk->stats().num_read, 1);
    EXPECT_EQ(run(engine, prompt, salt + 1000).num_cached_tokens, 0);
  }
}

TEST(Engine, ADamagedFileIsAsIfThereWereNone) {
  const TemporaryDirectory directory;
  const auto open = [&] {
    return std::move(
        *PrefixDisk::Open({.directory = directory.path(),
                           .max_bytes = int64_t{1} << 30,
                           .origin = [&] { return SharedModel().Origin(io::ContentDigest::kForever); }},
                          [&](std::span<const std::byte> bytes, uint64_t origin) {
                            return SharedModel().DeserializeSnapshot(bytes, origin);
                          }));
  };
  const std::vector<int32_t> prompt = RandomTokens(180, 3);
  const std::vector<int32_t> beginning(prompt.begin(), prompt.begin() + 80);
  {
    const std::unique_ptr<PrefixDisk> disk = open();
    Engine engine(SharedModel(), {.prefix_cache_bytes = int64_t{1} << 30, .prefix_disk = disk.get()}, {});
    for (const auto& tokens : {beginning, prompt}) {
      ASSERT_TRUE(engine.Submit(MakeRequest(tokens, 1)).has_value());
      RunToEnd(engine);
    }
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "states"))
    files.push_back(entry.path());
  ASSERT_EQ(files.size(), 2U);
  if (ReadPrefixFileHead(files[0])->num_tokens == 80) std::swap(files[0], files[1]);
  {
    std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-9, std::ios::end);
    file << "damage";
  }
  const std::unique_ptr<PrefixDisk> disk = open();
  Engine engine(SharedModel(), {.prefix_cache_bytes = int64_t{1} << 30, .prefix_disk = disk.get()}, {});
  std::vector<int32_t> longer = prompt;
  longer.push_back(1);
  const RequestId id = *engine.Submit(MakeRequest(longer, 4));
  const Outcome outcome = std::move(RunToEnd(engine)[id]);
  EXPECT_EQ(outcome.num_cached_tokens, 80);  // From the other file.
  EXPECT_EQ(outcome.tokens, RunAlone(MakeRequest(longer, 4)).tokens);
  EXPECT_EQ(disk->stats().num_rejected, 1);
}

TEST(Engine, TheSecondTurnReadsOnlyWhatIsNew) {
  Engine engine(SharedModel(), {.prefix_cache_bytes = int64_t{1} << 30}, {});
  std::vector<int32_t> conversation = RandomTokens(140, 3);
  const RequestId first = *engine.Submit(MakeRequest(conversation, 30));
  const std::vector<int32_t> answer = std::move(RunToEnd(engine)[first].tokens);
  conversation.insert(conversation.end(), answer.begin(), answer.end());
  const std::vector<int32_t> question = RandomTokens(9, 4);
  conversation.insert(conversation.end(), question.begin(), question.end());
  const RequestId second = *engine.Submit(MakeRequest(conversation));
  const Outcome outcome = std::move(RunToEnd(engine)[second]);
  EXPECT_EQ(outcome.num_cached_tokens, 140 + 30 - 1);  // The answer's last token was never read.
  EXPECT_EQ(outcome.tokens, RunAlone(MakeRequest(conversation)).tokens);
}

TEST(Engine, OtherSaltsReuseNothing) {
  Engine engine(SharedModel(), {.prefix_cache_bytes = int64_t{1} << 30}, {});
  const std::vector<int32_t> prompt = RandomTokens(140, 3);
  for (const uint64_t salt : {1, 2}) {
    Request request = MakeRequest(prompt, 1);
    request.cache_salt = salt;
    const RequestId id = *engine.Submit(std::move(request));
    EXPECT_EQ(RunToEnd(engine)[id].num_cached_tokens, 0);
  }
}

TEST(Engine, APromptThatIsBeingReadIsReadOnce) {
  Engine engine(SharedModel(), {.max_step_tokens = 64, .prefix_cache_bytes = int64_t{1} << 30}, {});
  const std::vector<int32_t> prompt = RandomTokens(200, 3);
  std::vector<RequestId> ids;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Request request = MakeRequest(prompt, 4, 1.0F);
    request.sampling.seed = seed;
    ids.push_back(*engine.Submit(std::move(request)));
  }
  std::map<RequestId, Outcome> outcomes = RunToEnd(engine);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    EXPECT_EQ(outcomes[ids[seed]].num_cached_tokens, seed == 0 ? 0 : 199);
    Request request = MakeRequest(prompt, 4, 1.0F);
    request.sampling.seed = seed;
    EXPECT_EQ(outcomes[ids[seed]].tokens, RunAlone(std::move(request)).tokens);
  }
}

TEST(Engine, WhereTwoPromptsPartAThirdFindsAState) {
  Engine engine(SharedModel(), {.prefix_cache_bytes = int64_t{1} << 30}, {});
  const std::vector<int32_t> common = RandomTokens(150, 3);
  std::vector<int64_t> cached;
  for (const uint32_t seed : {10, 11, 12}) {
    std::vector<int32_t> prompt = common;
    const std::vector<int32_t> rest = RandomTokens(100, seed);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const RequestId id = *engine.Submit(MakeRequest(prompt, 1));
    cached.push_back(RunToEnd(engine)[id].num_cached_tokens);
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 150}));
}

TEST(Engine, ABranchPointIsKept) {
  Engine engine(SharedModel(), {.prefix_cache_bytes = int64_t{1} << 30}, {});
  std::vector<int32_t> prompt = RandomTokens(250, 3);
  Request request = MakeRequest(prompt, 1);
  request.branch_points = {130};
  static_cast<void>(*engine.Submit(std::move(request)));
  RunToEnd(engine);
  prompt.resize(131);
  const std::vector<int32_t> rest = RandomTokens(100, 12);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  const RequestId id = *engine.Submit(MakeRequest(prompt, 1));
  EXPECT_EQ(RunToEnd(engine)[id].num_cached_tokens, 130);
}

TEST(Engine, APromptThatLeavesTheMiddleOfALongOneStartsFromACheckpoint) {
  // Cached tokens of a prompt that shares `common` tokens with one of `length` before.
  const auto cached = [](size_t length, size_t common, int64_t checkpoint_tokens) {
    Engine engine(SharedModel(),
                  {.max_step_tokens = 100,
                   .prefix_cache_bytes = int64_t{1} << 30,
                   .checkpoint_tokens = checkpoint_tokens},
                  {});
    std::vector<int32_t> prompt = RandomTokens(length, 3);
    static_cast<void>(*engine.Submit(MakeRequest(prompt, 1)));
    RunToEnd(engine);
    prompt.resize(common);
    const std::vector<int32_t> rest = RandomTokens(30, 12);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const RequestId id = *engine.Submit(MakeRequest(prompt, 4));
    const Outcome outcome = std::move(RunToEnd(engine)[id]);
    EXPECT_EQ(outcome.tokens, RunAlone(MakeRequest(prompt, 4)).tokens);
    return outcome.num_cached_tokens;
  };
  EXPECT_EQ(cached(300, 200, 0), 0);
  EXPECT_EQ(cached(300, 200, 64), 192);
  EXPECT_EQ(cached(300, 63, 64), 63);  // The state of 64, taken back.
  EXPECT_EQ(cached(300, 200, 150), 150);
  EXPECT_EQ(cached(300, 200, 151), 0);  // Too near the end, which is kept.
  EXPECT_EQ(cached(560, 72, 16), 70);   // Eight of a prompt at most: 70 tokens apart.
}

TEST(Engine, PreemptedSequencesGiveTheSameTokens) {
  const std::vector<size_t> lengths = {240, 250, 60};  // The first two need another page at 256.
  int64_t at_first = 0;
  for (const size_t length : lengths) {
    at_first += kv::StateBytes(SharedModel().cache_layout(), static_cast<int64_t>(length));
  }
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{1} << 30}) {
    Engine engine(SharedModel(), {.max_state_bytes = at_first, .prefix_cache_bytes = cache_bytes}, {});
    std::vector<RequestId> ids;
    for (const size_t length : lengths)
      ids.push_back(*engine.Submit(MakeRequest(RandomTokens(length, 5), 40)));
    std::map<RequestId, Outcome> outcomes = RunToEnd(engine);
    EXPECT_GT(engine.stats().num_preemptions, 0);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const Outcome alone = RunAlone(MakeRequest(RandomTokens(lengths[i], 5), 40));
      EXPECT_EQ(outcomes[ids[i]].tokens, alone.tokens) << "request " << i;
      EXPECT_EQ(outcomes[ids[i]].num_finishes, 1);
    }
  }
}

TEST(Engine, TheStateBudgetLimitsTheContext) {
  const int64_t budget = kv::StateBytes(SharedModel().cache_layout(), 200);
  Engine engine(SharedModel(), {.max_state_bytes = budget}, {});
  EXPECT_GE(engine.context_length(), 200);
  EXPECT_LE(kv::StateBytes(SharedModel().cache_layout(), engine.context_length()), budget);
  EXPECT_GT(kv::StateBytes(SharedModel().cache_layout(), engine.context_length() + 1), budget);
  const Request request = MakeRequest(RandomTokens(static_cast<size_t>(engine.context_length()), 1));
  EXPECT_EQ(engine.Check(request).code(), StatusCode::kOutOfRange);
}

TEST(Engine, ALongPromptDoesNotHoldUpAShortOne) {
  Engine engine(SharedModel(), {.max_step_tokens = 32}, {});
  static_cast<void>(*engine.Submit(MakeRequest(RandomTokens(400, 1), 1)));
  const RequestId quick = *engine.Submit(MakeRequest(RandomTokens(20, 2), 1));
  for (int step = 0; step < 2; ++step) {
    for (const Event& event : engine.Step()) {
      if (event.request == quick && event.kind == Event::Kind::kFinished) return;
    }
  }
  FAIL() << "not answered in two steps";
}

TEST(Engine, ADeadlineEndsRunningAndWaitingRequests) {
  Engine engine(SharedModel(), {.max_sequences = 1}, {});
  const auto submit = [&](std::chrono::steady_clock::duration left) {
    Request request = MakeRequest(RandomTokens(4, 1), 50);
    request.deadline = std::chrono::steady_clock::now() + left;
    return *engine.Submit(std::move(request));
  };
  const RequestId long_enough = submit(std::chrono::hours(1));
  const RequestId waiting = submit(std::chrono::seconds(-1));
  std::map<RequestId, Outcome> outcomes = RunToEnd(engine);
  EXPECT_EQ(outcomes[long_enough].reason, FinishReason::kLength);
  EXPECT_EQ(outcomes[waiting].reason, FinishReason::kError);
  EXPECT_EQ(outcomes[waiting].status.code(), StatusCode::kDeadlineExceeded);
}

class OnlyTokens final : public sampling::TokenConstraint {
 public:
  OnlyTokens(std::vector<int32_t> tokens, size_t num_words) : tokens_(std::move(tokens)), words_(num_words) {}
  std::span<const uint64_t> Allowed() override {
    if (next_ == tokens_.size()) return {};
    std::fill(words_.begin(), words_.end(), 0);
    words_[static_cast<size_t>(tokens_[next_]) / 64] |= uint64_t{1} << (tokens_[next_] % 64);
    return words_;
  }
  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<OnlyTokens>(*this);
  }
  void Accept(int32_t token) override {
    if (next_ == tokens_.size()) return;
    EXPECT_EQ(token, tokens_[next_++]);
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> words_;
  size_t next_ = 0;
};

TEST(Engine, AConstraintDecidesWhatMayComeNext) {
  Request request = MakeRequest(RandomTokens(9, 1));
  request.constraint = std::make_unique<OnlyTokens>(std::vector<int32_t>{3, 70, 1}, 2);
  std::vector<int32_t> forced = RunAlone(std::move(request)).tokens;
  ASSERT_EQ(forced.size(), 8U);
  EXPECT_EQ(std::vector<int32_t>(forced.begin(), forced.begin() + 3), (std::vector<int32_t>{3, 70, 1}));
  std::vector<int32_t> prompt = RandomTokens(9, 1);
  prompt.insert(prompt.end(), {3, 70, 1});
  EXPECT_EQ(std::vector<int32_t>(forced.begin() + 3, forced.end()), RunAlone(MakeRequest(prompt, 5)).tokens);
}

// Log-probabilities of the tokens behind the first of a prompt: the log-probability that a row of one token
// more says.
TEST(Engine, PromptsAreScored) {
  const std::vector<int32_t> prompt = RandomTokens(150, 8);
  const auto scores = [&](EngineOptions options, int64_t max_tokens, size_t others) {
    options.prefix_cache_bytes = int64_t{1} << 30;
    Engine engine(SharedModel(), options, {});
    // Its kept state has no logits.
    engine.Submit(MakeRequest(prompt, 1)).value();
    RunToEnd(engine);
    Request request = MakeRequest(prompt, max_tokens);
    request.num_prompt_logprobs = 2;
    const RequestId id = *engine.Submit(std::move(request));
    for (size_t i = 0; i < others; ++i) engine.Submit(MakeRequest(RandomTokens(40, 20), 9)).value();
    std::vector<sampling::ScoredToken> scored;
    Outcome outcome;
    while (!engine.idle()) {
      for (Event& event : engine.Step()) {
        if (event.request != id) continue;
        for (auto& token : event.scored) scored.push_back(std::move(token));
        if (event.kind == Event::Kind::kToken) outcome.tokens.push_back(event.token.id);
        if (event.kind == Event::Kind::kFinished) outcome.reason = event.finish_reason;
      }
    }
    EXPECT_EQ(outcome.reason, FinishReason::kLength);
    EXPECT_EQ(static_cast<int64_t>(outcome.tokens.size()), max_tokens);
    return scored;
  };
  const std::vector<sampling::ScoredToken> alone = scores({}, 0, 0);
  ASSERT_EQ(alone.size(), prompt.size() - 1);
  for (const size_t position : {1U, 2U, 77U, 149U}) {
    Request ahead = MakeRequest({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(position)}, 1);
    ahead.num_logprobs = 2;
    const sampling::ScoredToken& scored = alone[position - 1];
    EXPECT_EQ(scored.token.id, prompt[position]);
    ASSERT_EQ(scored.token.top.size(), 2U);
    const Outcome outcome = RunAlone(std::move(ahead));
    EXPECT_EQ(scored.token.top[0].id, outcome.tokens[0]);
    EXPECT_EQ(scored.token.top[0].logprob, outcome.logprobs[0]);
    EXPECT_EQ(scored.token.top[1].logprob, outcome.logprobs[1]);
    EXPECT_LE(scored.token.logprob, scored.token.top[0].logprob);
    EXPECT_EQ(scored.rank == 1, scored.token.logprob == scored.token.top[0].logprob);
  }
  // Chunks, neighbours and preemption change nothing, and nothing comes twice.
  const int64_t one = kv::StateBytes(SharedModel().cache_layout(), 160);
  for (const auto& others :
       {scores({.max_step_tokens = 7}, 3, 2), scores({.max_state_bytes = 2 * one}, 20, 6)}) {
    ASSERT_EQ(others.size(), alone.size());
    for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(others[i].token.logprob, alone[i].token.logprob);
  }
}

TEST(Engine, APromptAloneMayFillTheContext) {
  Engine engine(SharedModel(), {.max_context = 20}, {});
  const RequestId id = *engine.Submit(MakeRequest(RandomTokens(20, 1), 0));
  EXPECT_EQ(RunToEnd(engine)[id].reason, FinishReason::kLength);
  EXPECT_FALSE(engine.Submit(MakeRequest(RandomTokens(20, 1), 1)).has_value());
  EXPECT_FALSE(engine.Submit(MakeRequest(RandomTokens(21, 1), 0)).has_value());
}

TEST(Engine, ALowerPriorityNumberStartsFirst) {
  Engine engine(SharedModel(), {.max_sequences = 1}, {});
  std::vector<RequestId> ids;
  for (const int64_t priority : {0, 5, -1, 5, -2}) {
    Request request = MakeRequest(RandomTokens(4, 1), 2);
    request.priority = priority;
    ids.push_back(*engine.Submit(std::move(request)));
  }
  std::vector<RequestId> order;
  while (!engine.idle()) {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kAdmitted) order.push_back(event.request);
    }
  }
  EXPECT_EQ(order, (std::vector<RequestId>{ids[4], ids[2], ids[0], ids[1], ids[3]}));
}

TEST(Engine, CancelEndsWaitingAndRunningRequestsAndNoOthers) {
  Engine engine(SharedModel(), {.max_sequences = 2}, {});
  const RequestId running = *engine.Submit(MakeRequest(RandomTokens(4, 1), 50));
  const RequestId kept = *engine.Submit(MakeRequest(RandomTokens(4, 2), 3));
  const RequestId waiting = *engine.Submit(MakeRequest(RandomTokens(4, 3), 50));
  static_cast<void>(engine.Step());
  engine.Cancel(running);
  engine.Cancel(waiting);
  engine.Cancel(999);
  const auto outcomes = RunToEnd(engine);
  EXPECT_EQ(outcomes.at(running).reason, FinishReason::kCancelled);
  EXPECT_EQ(outcomes.at(waiting).reason, FinishReason::kCancelled);
  EXPECT_EQ(outcomes.at(kept).reason, FinishReason::kLength);
  EXPECT_EQ(outcomes.at(running).num_finishes, 1);
  EXPECT_TRUE(outcomes.at(waiting).tokens.empty());
}

TEST(Engine, IdsWithoutAStringAreNeverSampled) {
  const std::vector<int32_t> prompt = RandomTokens(6, 4);
  const std::vector<int32_t> free = RunAlone(MakeRequest(prompt)).tokens;
  std::vector<uint8_t> allowed(static_cast<size_t>(SharedModel().config().vocab_size), 1);
  allowed[static_cast<size_t>(free[0])] = 0;
  Engine engine(SharedModel(), {}, allowed);
  const RequestId id = *engine.Submit(MakeRequest(prompt));
  const Outcome outcome = std::move(RunToEnd(engine)[id]);
  EXPECT_EQ(outcome.tokens.size(), 8U);
  for (const int32_t token : outcome.tokens) EXPECT_NE(token, free[0]);
}

TEST(Engine, SubmitNamesWhatIsWrong) {
  Engine engine(SharedModel(), {}, {});
  const auto message = [&](auto change) {
    Request request = MakeRequest(RandomTokens(4, 1));
    change(request);
    return engine.Submit(std::move(request)).error().message();
  };
  EXPECT_THAT(message([](Request& r) { r.prompt.clear(); }), HasSubstr("prompt: got no tokens"));
  EXPECT_THAT(message([](Request& r) { r.prompt[1] = -1; }), HasSubstr("token id -1"));
  EXPECT_THAT(message([](Request& r) { r.max_tokens = -1; }), HasSubstr("max_tokens: got -1"));
  EXPECT_THAT(message([](Request& r) { r.sampling.top_p = 2.0F; }), HasSubstr("top_p"));
  const auto too_long = static_cast<size_t>(SharedModel().config().max_position_embeddings);
  EXPECT_THAT(message([&](Request& r) { r.prompt.assign(too_long, 1); }),
              HasSubstr("this model's maximum context length is"));
  EXPECT_TRUE(engine.idle());
}

// Fails the n-th call of the attention op; other calls go to the reference.
int g_calls_until_failure = -1;
ops::OpFunction<ops::AttentionArgs> g_attention = nullptr;
Status FailingAttention(ops::OpContext& context, const ops::AttentionArgs& args) {
  if (g_calls_until_failure-- == 0) return Internal("op attention: injected fault");
  return g_attention(context, args);
}

TEST(Engine, AFailingOpEndsItsRequestsWithAnErrorThatNamesItAndTheEngineGoesOn) {
  ops::Backend backend = backend::MakeReferenceBackend(1);
  g_attention = backend.table.attention;
  backend.table.attention = FailingAttention;
  const std::unique_ptr<model::Model> model = LoadModel(backend);
  const std::vector<int32_t> prompt = RandomTokens(9, 1);
  Engine engine(*model, {}, {});
  g_calls_until_failure = 7;  // In the second or third step: the answer has begun.
  const RequestId failed = *engine.Submit(MakeRequest(prompt));
  const Outcome outcome = std::move(RunToEnd(engine)[failed]);
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_THAT(outcome.status.message(), HasSubstr("op attention: injected fault"));
  EXPECT_FALSE(outcome.tokens.empty());
  const RequestId healthy = *engine.Submit(MakeRequest(prompt));
  EXPECT_EQ(RunToEnd(engine)[healthy].tokens, RunAlone(MakeRequest(prompt)).tokens);
}

}  // namespace
}  // namespace dsv4::engine
