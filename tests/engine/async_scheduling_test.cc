// An engine that queues decode steps before it has seen the tokens of the step in front, against one that
// does not. Both give the same tokens, ends and kept states. On the CPU backend, where it gains nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "base/json.h"
#include "engine/engine.h"
#include "io/mapped_file.h"
#include "tests/engine/outcomes.h"

namespace dsv4::engine {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModelDirectory = "tests/golden/models/nvfp4_experts";

std::unique_ptr<model::Model> LoadModel(const ops::Backend& backend) {
  auto model = model::Model::Load(kModelDirectory, backend, {.max_rewind_tokens = 8});
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  return std::move(*model);
}

model::Model& SharedModel() {
  static const std::unique_ptr<model::Model> model = LoadModel(*backend::MakeCpuBackend({.num_threads = 1}));
  return *model;
}

// With n-gram tables, whose rows are found by tokens.
model::Model& NgramModel() {
  static const ops::Backend backend = *backend::MakeCpuBackend({.num_threads = 1});
  static const std::unique_ptr<model::Model> model = [] {
    const std::string directory = "tests/golden/v41/deep";
    const Json info = *ParseJson(*io::ReadTextFile(directory + "/golden.json"), "golden.json");
    auto loaded = model::Model::Load(
        directory, backend,
        {.max_rewind_tokens = 8, .token_classes = info.at("classes").get<std::vector<int32_t>>()});
    EXPECT_TRUE(loaded.has_value()) << loaded.error().ToString();
    return std::move(*loaded);
  }();
  return *model;
}

std::vector<int32_t> RandomTokens(size_t count, std::mt19937& random,
                                  const model::Model& model = SharedModel()) {
  std::vector<int32_t> tokens(count);
  const auto vocab_size = static_cast<uint32_t>(model.config().vocab_size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

// Free until a token of one kind comes; then some tokens of another kind have to follow.
class AfterATrigger final : public sampling::TokenConstraint {
 public:
  explicit AfterATrigger(int64_t vocab_size) : words_(static_cast<size_t>(vocab_size + 63) / 64) {
    for (int64_t id = 0; id < vocab_size; id += 3)
      words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
  std::span<const uint64_t> Allowed() override { return left_ > 0 ? words_ : std::span<const uint64_t>(); }
  bool IsWaiting() const override { return left_ == 0; }
  void Accept(int32_t token) override {
    if (left_ > 0) {
      EXPECT_EQ(token % 3, 0);
      --left_;
    } else if (token % 7 == 1) {
      left_ = 4;
    }
  }

 private:
  std::vector<uint64_t> words_;
  int left_ = 0;
};

// A request of a mix; with the same numbers twice, the same request.
Request RandomRequest(std::mt19937& random, const model::Model& model) {
  Request request;
  request.prompt = RandomTokens(1 + random() % 60, random, model);
  request.max_tokens = 1 + random() % 40;
  request.sampling.seed = random();
  const auto unit = [&] { return static_cast<float>(random() % 1000) / 1000; };
  switch (random() % 5) {
    case 0:
      request.sampling.temperature = 0.0F;
      break;
    case 1:
      request.sampling.top_k = static_cast<int>(1 + random() % 20);
      break;
    case 2:
      request.sampling.top_p = 0.2F + 0.7F * unit();
      break;
    case 3:
      request.sampling.min_p = 0.3F * unit();
      break;
    default:
      request.sampling.temperature = 0.3F + 2 * unit();
  }
  if (random() % 4 == 0) {
    for (const int32_t token : RandomTokens(1 + random() % 40, random, model))
      request.sampling.logit_bias[token] =
          random() % 3 == 0 ? -std::numeric_limits<float>::infinity() : 8 * unit() - 4;
  }
  if (random() % 3 == 0) request.constraint = std::make_unique<AfterATrigger>(model.config().vocab_size);
  // Tokens of a vocabulary of a few hundred: most answers end by one of them.
  for (const int32_t token : RandomTokens(random() % 30, random, model)) request.stop_tokens.insert(token);
  return request;
}

std::vector<Outcome> RunMix(uint32_t seed, EngineOptions options, EngineStats* stats,
                            model::Model& model = SharedModel()) {
  std::mt19937 random(seed);
  options.prefix_cache_bytes = int64_t{1} << 30;
  std::vector<uint8_t> allowed(static_cast<size_t>(model.config().vocab_size), 1);
  for (int i = 0; i < 20; ++i) allowed[random() % allowed.size()] = 0;
  Engine engine(model, options, seed % 2 == 0 ? std::vector<uint8_t>() : allowed);
  return RunMix(
      engine, random, [&](std::mt19937& draws) { return RandomRequest(draws, model); }, stats);
}

TEST(AsyncScheduling, GivesTheTokensAndKeepsTheStatesOfAnEngineThatDoesNot) {
  int64_t num_ahead = 0;
  int64_t num_stopped = 0;
  int64_t num_mixed = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    EngineStats stats;
    const std::vector<Outcome> want = RunMix(seed, {.async_scheduling = false}, &stats);
    EXPECT_EQ(stats.num_steps_ahead + stats.num_mixed_steps_on_backend, 0);
    const std::vector<Outcome> got = RunMix(seed, {.async_scheduling = true}, &stats);
    ExpectSame(got, want, seed);
    num_ahead += stats.num_steps_ahead;
    num_mixed += stats.num_mixed_steps_on_backend;
    for (const Outcome& outcome : got) num_stopped += outcome.reason == FinishReason::kStop ? 1 : 0;
  }
  EXPECT_GT(num_ahead, 300);
  EXPECT_GT(num_mixed, 100);
  EXPECT_GT(num_stopped, 50) << "else nothing is taken back";
}

TEST(AsyncScheduling, RowsOfNgramTablesAreThoseOfTheTokenThatWasChosen) {
  int64_t num_ahead = 0;
  for (uint32_t seed = 200; seed < 212; ++seed) {
    EngineStats stats;
    const std::vector<Outcome> want = RunMix(seed, {.async_scheduling = false}, &stats, NgramModel());
    const std::vector<Outcome> got = RunMix(seed, {.async_scheduling = true}, &stats, NgramModel());
    ExpectSame(got, want, seed);
    num_ahead += stats.num_steps_ahead;
  }
  EXPECT_GT(num_ahead, 60);
}

TEST(AsyncScheduling, ATokenOfAStepThatIsGoneFindsNoRows) {
  model::Model& model = NgramModel();
  kv::SequenceState state = *model.NewSequence();
  model::DecodeChunk chunk{.state = &state, .token = 3};
  auto first = model.QueueDecode({&chunk, 1}, {});
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  chunk.follows = 0;
  auto second = model.QueueDecode({&chunk, 1}, {});
  ASSERT_TRUE(second.has_value()) << second.error().ToString();
  first->reset();
  second->reset();
  const auto third = model.QueueDecode({&chunk, 1}, {});
  EXPECT_EQ(third.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(third.error().message(), HasSubstr("queued step, chunk 0: the step that it follows is gone"));
  EXPECT_EQ(state.length(), 2);
}

TEST(AsyncScheduling, GoesWellWithRequestsThatWait) {
  int64_t num_ahead = 0;
  for (uint32_t seed = 100; seed < 112; ++seed) {
    EngineStats stats;
    const std::vector<Outcome> want = RunMix(seed, {.async_scheduling = false}, &stats);
    const std::vector<Outcome> got = RunMix(seed, {.max_sequences = 2, .async_scheduling = true}, &stats);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); i += 2) EXPECT_EQ(got[i].tokens, want[i].tokens) << seed << ", " << i;
    num_ahead += stats.num_steps_ahead;
  }
  EXPECT_GT(num_ahead, 50);
}

Request Endless(uint32_t seed) {
  std::mt19937 random(seed);
  Request request;
  request.prompt = RandomTokens(9, random);
  request.max_tokens = 200;
  return request;
}

// Room for the prompts, not for the answers.
TEST(AsyncScheduling, GoesWellWithPreemption) {
  constexpr uint32_t kRequests = 3;
  EngineOptions options{.async_scheduling = false};
  std::vector<std::vector<int32_t>> want;
  for (const bool async_scheduling : {false, true}) {
    if (async_scheduling)
      options = {.max_state_bytes = kRequests * kv::StateBytes(SharedModel().cache_layout(), 9),
                 .async_scheduling = true};
    Engine engine(SharedModel(), options, {});
    std::vector<RequestId> ids;
    for (uint32_t seed = 0; seed < kRequests; ++seed) ids.push_back(*engine.Submit(Endless(seed)));
    std::map<RequestId, Outcome> outcomes = RunToEnd(engine);
    std::vector<std::vector<int32_t>> tokens;
    for (const RequestId id : ids) tokens.push_back(outcomes[id].tokens);
    if (!async_scheduling) {
      want = tokens;
      continue;
    }
    EXPECT_GT(engine.stats().num_preemptions, 0);
    EXPECT_GT(engine.stats().num_steps_ahead, 0);
    EXPECT_EQ(tokens, want);
  }
}

TEST(AsyncScheduling, IsLeftOutWhereATokenTakesMoreThanItsLogits) {
  const auto ahead = [](auto change) {
    Engine engine(SharedModel(), {.async_scheduling = true}, {});
    Request request = Endless(1);
    request.max_tokens = 10;
    change(request);
    const RequestId id = *engine.Submit(std::move(request));
    EXPECT_EQ(RunToEnd(engine)[id].tokens.size(), 10U);
    return engine.stats().num_steps_ahead;
  };
  EXPECT_EQ(ahead([](Request&) {}), 8) << "all but the prompt's and the first behind it";
  EXPECT_EQ(ahead([](Request& r) { r.num_logprobs = 0; }), 0);
  EXPECT_EQ(ahead([](Request& r) { r.sampling.repetition_penalty = 1.1F; }), 0);
  EXPECT_EQ(ahead([](Request& r) { r.sampling.logit_bias = {{3, 1.0F}}; }), 8) << "the device adds a bias";
  struct Anything final : sampling::TokenConstraint {
    std::span<const uint64_t> Allowed() override { return {}; }
    void Accept(int32_t) override {}
  };
  EXPECT_EQ(ahead([](Request& r) { r.constraint = std::make_unique<Anything>(); }), 0);
}

TEST(AsyncScheduling, ACancelledRequestEndsInTheNextStepAndItsNeighbourGoesOn) {
  Engine engine(SharedModel(), {.async_scheduling = true}, {});
  const RequestId cancelled = *engine.Submit(Endless(1));
  const RequestId kept = *engine.Submit(Endless(2));
  std::map<RequestId, Outcome> outcomes;
  for (int i = 0; i < 6; ++i) Collect(engine.Step(), outcomes);
  EXPECT_GT(engine.stats().num_steps_ahead, 0);
  engine.Cancel(cancelled);
  Collect(engine.Step(), outcomes);
  EXPECT_EQ(outcomes[cancelled].reason, FinishReason::kCancelled);
  while (!engine.idle()) Collect(engine.Step(), outcomes);
  Engine alone(SharedModel(), {.async_scheduling = false}, {});
  const RequestId same = *alone.Submit(Endless(2));
  EXPECT_EQ(outcomes[kept].tokens, RunToEnd(alone)[same].tokens);
}

TEST(AsyncScheduling, ARequestThatComesMeanwhileIsAdmitted) {
  Engine engine(SharedModel(), {.async_scheduling = true}, {});
  static_cast<void>(*engine.Submit(Endless(1)));
  for (int i = 0; i < 6; ++i) engine.Step();
  const RequestId late = *engine.Submit(Endless(2));
  std::map<RequestId, Outcome> outcomes;
  for (int i = 0; i < 2; ++i) Collect(engine.Step(), outcomes);
  EXPECT_EQ(outcomes[late].num_cached_tokens, 0) << "admitted in the second step at the latest";
}

// An engine that is given up, and one whose last step nobody wants, with a step in flight.
TEST(AsyncScheduling, AStepThatNobodyWantsDoesNoHarm) {
  {
    Engine engine(SharedModel(), {.async_scheduling = true}, {});
    static_cast<void>(*engine.Submit(Endless(1)));
    for (int i = 0; i < 6; ++i) engine.Step();
  }
  Engine engine(SharedModel(), {.async_scheduling = true}, {});
  const RequestId first = *engine.Submit(Endless(1));
  const std::vector<int32_t> tokens = RunToEnd(engine)[first].tokens;
  for (const size_t place : {4U, 5U, 9U}) {
    Request request = Endless(1);
    request.stop_tokens = {tokens[place]};
    const RequestId id = *engine.Submit(std::move(request));
    const Outcome outcome = std::move(RunToEnd(engine)[id]);
    EXPECT_EQ(outcome.reason, FinishReason::kStop);
    EXPECT_EQ(outcome.tokens, std::vector<int32_t>(tokens.begin(), std::ranges::find(tokens, tokens[place])));
    EXPECT_TRUE(engine.idle());
  }
}

// Faults of row 0 that the next calls of `sample` report, in turn.
std::vector<int32_t> g_faults;
ops::OpFunction<ops::SampleArgs> g_sample = nullptr;
Status FaultySample(ops::OpContext& context, const ops::SampleArgs& args) {
  DSV4_RETURN_IF_ERROR(g_sample(context, args));
  if (g_faults.empty()) return {};
  args.faults.as<int32_t>()[0] = g_faults.front();
  g_faults.erase(g_faults.begin());
  return {};
}

TEST(AsyncScheduling, AWrongRowEndsItsOwnRequest) {
  ops::Backend backend = *backend::MakeCpuBackend({.num_threads = 1});
  g_sample = backend.table.sample;
  backend.table.sample = FaultySample;
  const std::unique_ptr<model::Model> model = LoadModel(backend);
  const auto vocab_size = static_cast<int32_t>(model->config().vocab_size);
  for (const bool has_bad_logit : {true, false}) {
    // The first call chooses what comes behind the prompts.
    g_faults = {ops::kNoFault, ops::kNoFault, ops::kNoFault, has_bad_logit ? 7 : vocab_size};
    Engine engine(*model, {.async_scheduling = true}, {});
    const RequestId wrong = *engine.Submit(Endless(1));
    const RequestId right = *engine.Submit(Endless(2));
    const auto outcomes = RunToEnd(engine);
    EXPECT_EQ(outcomes.at(wrong).reason, FinishReason::kError);
    EXPECT_EQ(outcomes.at(wrong).tokens.size(), 3U);
    EXPECT_THAT(outcomes.at(wrong).status.message(),
                HasSubstr(has_bad_logit ? "logit of token 7 is NaN or infinite at output token 3"
                                        : "no token has a finite logit at output token 3"));
    Engine alone(SharedModel(), {.async_scheduling = false}, {});
    const RequestId same = *alone.Submit(Endless(2));
    EXPECT_EQ(outcomes.at(right).tokens, RunToEnd(alone)[same].tokens);
  }
}

}  // namespace
}  // namespace dsv4::engine
