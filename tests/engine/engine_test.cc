#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "backend/reference/reference_backend.h"

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

struct Outcome {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kError;
  int32_t stop_token = -1;
  Status status;
  std::optional<kv::SequenceState> state;
  int num_finishes = 0;
};

std::map<RequestId, Outcome> RunToEnd(Engine& engine) {
  std::map<RequestId, Outcome> outcomes;
  while (!engine.idle()) {
    for (Event& event : engine.Step()) {
      Outcome& outcome = outcomes[event.request];
      if (event.kind == Event::Kind::kToken) outcome.tokens.push_back(event.token.id);
      if (event.kind != Event::Kind::kFinished) continue;
      outcome.reason = event.finish_reason;
      outcome.stop_token = event.stop_token;
      outcome.status = event.status;
      outcome.state = std::move(event.state);
      ++outcome.num_finishes;
    }
  }
  return outcomes;
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
  for (const int64_t max_step_tokens : {5, 37, 512}) {
    for (const int max_sequences : {2, 16}) {
      Engine engine(SharedModel(), {.max_step_tokens = max_step_tokens, .max_sequences = max_sequences}, {});
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

TEST(Engine, APrefixGivesTheSameTokensAsAColdRun) {
  const std::vector<int32_t> prompt = RandomTokens(140, 2);
  const std::vector<int32_t> cold = RunAlone(MakeRequest(prompt)).tokens;
  for (const size_t split : {1, 3, 4, 127, 128, 129, 139}) {
    Outcome head =
        RunAlone(MakeRequest({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(split)}, 1));
    ASSERT_TRUE(head.state.has_value());
    EXPECT_EQ(head.state->length(), static_cast<int64_t>(split));
    Request request = MakeRequest(prompt);
    request.prefix = std::move(head.state);
    EXPECT_EQ(RunAlone(std::move(request)).tokens, cold) << "split at " << split;
  }
}

TEST(Engine, AForkTakenAfterPrefillContinuesLikeTheOriginal) {
  const std::vector<int32_t> prompt = RandomTokens(20, 3);
  Engine engine(SharedModel(), {}, {});
  const RequestId id = *engine.Submit(MakeRequest(prompt));
  std::vector<int32_t> first;
  for (const Event& event : engine.Step()) {
    if (event.kind == Event::Kind::kToken) first.push_back(event.token.id);
  }
  Result<kv::SequenceState> fork = engine.ForkState(id);
  ASSERT_TRUE(fork.has_value());
  std::vector<int32_t> tokens = first;
  const std::vector<int32_t> rest = std::move(RunToEnd(engine)[id].tokens);
  tokens.insert(tokens.end(), rest.begin(), rest.end());

  Request again = MakeRequest(prompt);
  again.prompt.push_back(first[0]);
  again.max_tokens = 7;
  again.prefix = std::move(*fork);
  EXPECT_EQ(RunAlone(std::move(again)).tokens, std::vector<int32_t>(tokens.begin() + 1, tokens.end()));
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
  EXPECT_THAT(message([](Request& r) { r.max_tokens = 0; }), HasSubstr("max_tokens: got 0"));
  EXPECT_THAT(message([](Request& r) { r.sampling.top_p = 2.0F; }), HasSubstr("top_p"));
  EXPECT_THAT(message([](Request& r) {
                r.prefix = *SharedModel().NewSequence();
                r.prompt = {};
              }),
              HasSubstr("no tokens"));
  const auto too_long = static_cast<size_t>(SharedModel().config().max_position_embeddings);
  EXPECT_THAT(message([&](Request& r) { r.prompt.assign(too_long, 1); }), HasSubstr("no room for an answer"));
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
