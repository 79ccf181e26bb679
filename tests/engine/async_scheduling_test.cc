// An engine that queues decode steps before it has seen the tokens of the step in front, against one that
// does not. Both give the same tokens, ends and kept states. On the CPU backend, where it gains nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>

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
  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<AfterATrigger>(*this);
  }
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

// Each token says which may follow. Stop tokens may come when so many have been accepted; then nothing else may, and without a stop token
// nothing at all. A mask is there at the so many-th look.
class Chained final : public sampling::TokenConstraint {
 public:
  struct Options {
    int64_t vocab_size = 0;
    std::set<int32_t> stop_tokens = {};
    int length = 0;
    int looks = 0;
  };
  explicit Chained(Options options)
      : options_(std::move(options)), words_(static_cast<size_t>(options_.vocab_size + 63) / 64) {}

  std::span<const uint64_t> Allowed() override {
    EXPECT_LE(looks_left_, 0) << "asked for a mask that is late";
    std::ranges::fill(words_, 0);
    const auto allow = [&](int64_t id) { words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); };
    if (num_accepted_ == options_.length) {
      for (const int32_t token : options_.stop_tokens) allow(token);
      return words_;
    }
    for (int64_t id = last_ % 5; id < options_.vocab_size; id += 5)
      if (!options_.stop_tokens.contains(static_cast<int32_t>(id))) allow(id);
    return words_;
  }
  Status WhyNone() const override { return InvalidArgument("chain: it is at its end"); }
  bool Prepare(std::chrono::steady_clock::time_point) override {
    return looks_left_ <= 0 || --looks_left_ <= 0;
  }
  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<Chained>(*this);
  }
  void Accept(int32_t token) override {
    EXPECT_EQ(token % 5, last_ % 5);
    ++num_accepted_;
    last_ = token / 5;
    looks_left_ = num_accepted_ % 3 == 0 ? options_.looks : 0;
  }

 private:
  const Options options_;
  std::vector<uint64_t> words_;
  int num_accepted_ = 0;
  int32_t last_ = 0;
  int looks_left_ = 0;
};

// Asks for more than a choice among logits, in one way or several.
void AddRules(std::mt19937& random, const model::Model& model, Request& request) {
  const auto unit = [&] { return static_cast<float>(random() % 1000) / 1000; };
  if (random() % 2 == 0) request.num_logprobs = static_cast<int>(random() % 21);
  if (random() % 2 == 0) {
    request.sampling.repetition_penalty = 0.8F + unit();
    request.sampling.presence_penalty = 2 * unit() - 1;
    request.sampling.frequency_penalty = 2 * unit() - 1;
    request.sampling.penalty_window = static_cast<int>(random() % 20);
  }
  if (random() % 2 == 0) {
    request.constraint = std::make_unique<Chained>(
        Chained::Options{.vocab_size = model.config().vocab_size,
                         .stop_tokens = request.stop_tokens,
                         .length = static_cast<int>(random() % 40),
                         .looks = random() % 3 == 0 ? static_cast<int>(random() % 4) : 0});
  }
}

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

// Every other one has rules.
Request RandomRequestOfAll(std::mt19937& random, const model::Model& model) {
  Request request = RandomRequest(random, model);
  if (random() % 2 == 0) AddRules(random, model, request);
  return request;
}

std::vector<Outcome> RunMix(uint32_t seed, EngineOptions options, EngineStats* stats,
                            model::Model& model = SharedModel(),
                            Request (*next)(std::mt19937&, const model::Model&) = RandomRequest) {
  std::mt19937 random(seed);
  options.prefix_cache_bytes = int64_t{1} << 30;
  std::vector<uint8_t> allowed(static_cast<size_t>(model.config().vocab_size), 1);
  for (int i = 0; i < 20; ++i) allowed[random() % allowed.size()] = 0;
  Engine engine(model, options, seed % 2 == 0 ? std::vector<uint8_t>() : allowed);
  return RunMix(
      engine, random, [&](std::mt19937& draws) { return next(draws, model); }, stats);
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

TEST(AsyncScheduling, GivesTheSameWithRowsThatTakeMoreThanTheirLogits) {
  int64_t num_ahead = 0;
  int64_t num_steps = 0;
  std::map<FinishReason, int> reasons;
  for (uint32_t seed = 200; seed < 240; ++seed) {
    EngineStats stats;
    const std::vector<Outcome> want =
        RunMix(seed, {.async_scheduling = false}, &stats, SharedModel(), RandomRequestOfAll);
    const std::vector<Outcome> got =
        RunMix(seed, {.async_scheduling = true}, &stats, SharedModel(), RandomRequestOfAll);
    ExpectSame(got, want, seed);
    num_ahead += stats.num_steps_ahead;
    num_steps += stats.num_steps;
    for (size_t i = 0; i < got.size(); ++i) {
      ++reasons[got[i].reason];
      EXPECT_EQ(got[i].status.ToString(), want[i].status.ToString()) << seed << ", " << i;
    }
  }
  EXPECT_GT(2 * num_ahead, num_steps) << "the rest reads prompts, or begins anew behind them";
  EXPECT_GT(reasons[FinishReason::kStop], 50);
  EXPECT_GT(reasons[FinishReason::kLength], 50);
  EXPECT_GT(reasons[FinishReason::kError], 0) << "chains without a stop token end so";
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

// With penalties, log-probabilities and masks of which some are late.
Request EndlessWithRules(uint32_t seed) {
  Request request = Endless(seed);
  request.num_logprobs = 2;
  request.sampling.frequency_penalty = 0.3F;
  request.constraint = std::make_unique<Chained>(Chained::Options{
      .vocab_size = SharedModel().config().vocab_size, .length = 1000, .looks = static_cast<int>(seed)});
  return request;
}

// Room for the prompts, not for the answers.
TEST(AsyncScheduling, GoesWellWithPreemption) {
  constexpr uint32_t kRequests = 3;
  for (const auto make : {Endless, EndlessWithRules}) {
    std::vector<std::vector<int32_t>> want;
    for (const bool async_scheduling : {false, true}) {
      EngineOptions options{.async_scheduling = async_scheduling};
      if (async_scheduling)
        options.max_state_bytes = kRequests * kv::StateBytes(SharedModel().cache_layout(), 9);
      Engine engine(SharedModel(), options, {});
      std::vector<RequestId> ids;
      for (uint32_t seed = 0; seed < kRequests; ++seed) ids.push_back(*engine.Submit(make(seed)));
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
}

TEST(AsyncScheduling, IsLeftOutByNoRule) {
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
  EXPECT_EQ(ahead([](Request& r) { r.num_logprobs = 0; }), 8);
  EXPECT_EQ(ahead([](Request& r) { r.num_logprobs = sampling::kMostTopOnDevice; }), 8);
  EXPECT_EQ(ahead([](Request& r) { r.num_logprobs = sampling::kMostTopOnDevice + 1; }), 0)
      << "more than the op reports";
  EXPECT_EQ(ahead([](Request& r) { r.num_prompt_logprobs = 3; }), 8) << "the prompt alone is the host's";
  EXPECT_EQ(ahead([](Request& r) { r.sampling.repetition_penalty = 1.1F; }), 8);
  EXPECT_EQ(ahead([](Request& r) { r.sampling.presence_penalty = 1.1F; }), 8);
  EXPECT_EQ(ahead([](Request& r) { r.sampling.logit_bias = {{3, 1.0F}}; }), 8);
  EXPECT_EQ(ahead([](Request& r) {
              for (int32_t token = 0; token < SharedModel().config().vocab_size; ++token)
                r.sampling.logit_bias[token] = 1.0F;
            }),
            8);
  EXPECT_EQ(ahead([](Request& r) {
              r.constraint = std::make_unique<Chained>(
                  Chained::Options{.vocab_size = SharedModel().config().vocab_size, .length = 100});
            }),
            8);
}

// Whatever a request asks for, its neighbours' steps run ahead.
TEST(AsyncScheduling, ALateMaskHoldsUpItsOwnAnswerOnly) {
  constexpr int kLooks = 30;
  const auto late = [] {
    Request request = Endless(1);
    request.max_tokens = 30;
    request.constraint = std::make_unique<Chained>(
        Chained::Options{.vocab_size = SharedModel().config().vocab_size, .length = 100, .looks = kLooks});
    return request;
  };
  std::vector<Outcome> want;
  for (const bool async_scheduling : {false, true}) {
    Engine engine(SharedModel(), {.async_scheduling = async_scheduling}, {});
    const RequestId slow = *engine.Submit(late());
    const RequestId fast = *engine.Submit(Endless(2));
    std::map<RequestId, Outcome> outcomes;
    while (outcomes[fast].tokens.size() < 50) Collect(engine.Step(), outcomes);
    EXPECT_LT(outcomes[slow].tokens.size(), 10U);
    if (async_scheduling) {
      EXPECT_GT(engine.stats().num_steps_ahead, 45);
    }
    while (!engine.idle()) Collect(engine.Step(), outcomes);
    if (async_scheduling) {
      EXPECT_EQ(outcomes[slow].tokens, want[0].tokens);
      EXPECT_EQ(outcomes[fast].tokens, want[1].tokens);
    }
    want = {outcomes[slow], outcomes[fast]};
  }
}

TEST(AsyncScheduling, AChoiceThatFailsEndsItsStepAlone) {
  ops::Backend backend = *backend::MakeCpuBackend({.num_threads = 1});
  static ops::OpFunction<ops::SampleArgs> sample = nullptr;
  static int calls_left = 0;
  sample = backend.table.sample;
  calls_left = 4;
  backend.table.sample = [](ops::OpContext& context, const ops::SampleArgs& args) {
    return --calls_left == 0 ? Internal("broken on purpose") : sample(context, args);
  };
  const std::unique_ptr<model::Model> model = LoadModel(backend);
  Engine engine(*model, {.async_scheduling = true}, {});
  Request request = Endless(1);
  request.num_logprobs = 2;
  const RequestId broken = *engine.Submit(std::move(request));
  const Outcome outcome = RunToEnd(engine)[broken];
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_THAT(outcome.status.message(), HasSubstr("broken on purpose"));
  EXPECT_EQ(outcome.tokens.size(), 3U);
  const RequestId next = *engine.Submit(Endless(2));
  EXPECT_EQ(RunToEnd(engine)[next].tokens.size(), 200U);
}

TEST(AsyncScheduling, AStepWaitsForItsChoice) {
  model::Model& model = SharedModel();
  kv::SequenceState state = model.NewSequence().value();
  kv::SequenceState other = model.NewSequence().value();
  const model::DecodeChunk chunk{.state = &state, .token = 1};
  const model::DecodeChunk of_other{.state = &other, .token = 1};
  auto step = model.QueueDecode({&chunk, 1}, {}, /*chooses_later=*/true);
  ASSERT_TRUE(step.has_value()) << step.error().ToString();
  EXPECT_TRUE((*step)->waits_for_choice());
  EXPECT_EQ((*step)->Wait().error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(model.QueueDecode({&of_other, 1}, {}).error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(model.QueueDecode({&of_other, 1}, {}, /*chooses_later=*/true).error().code(),
            StatusCode::kFailedPrecondition);
  const std::vector<int32_t> tokens = {1};
  const model::SequenceChunk whole{.state = &other, .tokens = tokens, .logits = model::LogitsRows::kLast};
  EXPECT_EQ(model.Step({&whole, 1}).error().code(), StatusCode::kFailedPrecondition);
  const sampling::TokenRule rule{.choice = {.temperature = 0.0F}, .num_logprobs = 3};
  ASSERT_TRUE(model.Choose(**step, {&rule, 1}).ok());
  EXPECT_EQ(model.Choose(**step, {&rule, 1}).code(), StatusCode::kFailedPrecondition);
  const auto chosen = (*step)->Wait();
  ASSERT_TRUE(chosen.has_value()) << chosen.error().ToString();
  ASSERT_EQ(chosen->size(), 1U);
  EXPECT_EQ(chosen->front().top.size(), 3U);
  EXPECT_EQ(chosen->front().top.front().id, chosen->front().id);
  EXPECT_EQ(chosen->front().top.front().logprob, chosen->front().logprob);
  const auto output = model.Step({&whole, 1});
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(sampling::ScoreToken(output->Row(0, 0), chosen->front().id, 0).token.logprob,
            chosen->front().logprob);
  // A step that nobody chose of is in nobody's way.
  step = model.QueueDecode({&chunk, 1}, {}, /*chooses_later=*/true);
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(model.Choose(**step, {}).code(), StatusCode::kInvalidArgument) << "one rule for each row";
  step = model.QueueDecode({&of_other, 1}, {}, /*chooses_later=*/true);
  ASSERT_TRUE(step.has_value());
  step->reset();
  EXPECT_TRUE(model.Step({&whole, 1}).has_value());
}

TEST(AsyncScheduling, ACancelledRequestEndsInTheNextStepAndItsNeighbourGoesOn) {
  for (const auto make : {Endless, EndlessWithRules}) {
    Engine engine(SharedModel(), {.async_scheduling = true}, {});
    const RequestId cancelled = *engine.Submit(make(1));
    const RequestId kept = *engine.Submit(make(2));
    std::map<RequestId, Outcome> outcomes;
    for (int i = 0; i < 6; ++i) Collect(engine.Step(), outcomes);
    EXPECT_GT(engine.stats().num_steps_ahead, 0);
    engine.Cancel(cancelled);
    Collect(engine.Step(), outcomes);
    EXPECT_EQ(outcomes[cancelled].reason, FinishReason::kCancelled);
    while (!engine.idle()) Collect(engine.Step(), outcomes);
    Engine alone(SharedModel(), {.async_scheduling = false}, {});
    const RequestId same = *alone.Submit(make(2));
    EXPECT_EQ(outcomes[kept].tokens, RunToEnd(alone)[same].tokens);
  }
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
