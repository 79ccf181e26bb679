// Refusals of a step, and its state when an op fails half-way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/reference/reference_backend.h"
#include "tests/graph/injected_backend.h"
#include "tests/graph/runs.h"

namespace dsv4::test {
namespace {

using model::LogitsRows;
using model::Model;
using model::Numerics;
using model::SequenceChunk;
using ::testing::HasSubstr;

class StepArguments : public ::testing::Test {
 protected:
  Status StepStatus(std::vector<SequenceChunk> chunks) {
    const auto output = model_->Step(chunks);
    return output.has_value() ? Status() : output.error();
  }
  std::unique_ptr<Model> model_ =
      MakeToyModel({.max_position_embeddings = 150}, ToyModelOptions(Numerics::kRelease));
  std::vector<int32_t> tokens_ = RandomTokens(150, 4);
};

TEST_F(StepArguments, WrongOnesAreNamedAndChangeNothing) {
  kv::SequenceState state = NewSequence(*model_);
  kv::SequenceState second = NewSequence(*model_);
  RunTokens(*model_, state, std::span(tokens_).first(13));
  const std::vector<int32_t> one = {tokens_[13]};
  const std::vector<int32_t> bad = {1, 2, static_cast<int32_t>(kToyVocab)};
  const std::vector<int32_t> negative = {-1};

  EXPECT_THAT(StepStatus({}).ToString(), HasSubstr("INVALID_ARGUMENT: step: got no chunks"));
  EXPECT_THAT(StepStatus({{nullptr, one}}).ToString(), HasSubstr("chunk 0: the sequence state is null"));
  EXPECT_THAT(StepStatus({{&second, one}, {&state, {}}}).ToString(), HasSubstr("step, chunk 1"));
  EXPECT_THAT(StepStatus({{&second, one}, {&state, one}, {&second, one}}).ToString(),
              HasSubstr("step, chunk 2: the sequence state is already in chunk 0"));
  EXPECT_THAT(StepStatus({{&second, one}, {&state, bad}}).ToString(),
              HasSubstr("step, chunk 1, token 2: got id 61, want 0 to 60"));
  EXPECT_THAT(StepStatus({{&state, negative}}).ToString(), HasSubstr("got id -1"));
  EXPECT_EQ(StepStatus({{&second, one}, {&state, std::span(tokens_).first(138)}}).code(),
            StatusCode::kOutOfRange);

  const auto other = MakeToyModel({}, ToyModelOptions(Numerics::kRelease));
  kv::SequenceState foreign = NewSequence(*other);
  EXPECT_THAT(StepStatus({{&foreign, one}}).ToString(), HasSubstr("made by another model"));

  EXPECT_EQ(second.length(), 0);
  EXPECT_EQ(state.length(), 13);
  const auto straight = RunInChunks(*model_, tokens_, 64);
  EXPECT_EQ(RunTokens(*model_, state, std::span(tokens_).subspan(13)), LogitsRowsOf(straight, 13, 150));
  EXPECT_THAT(StepStatus({{&state, one}}).ToString(), HasSubstr("position 150 go past max_positions 150"));
}

TEST_F(StepArguments, LogitsRowsAreThoseAskedFor) {
  const auto straight = RunInChunks(*model_, tokens_, 64);
  kv::SequenceState all = NewSequence(*model_);
  kv::SequenceState last = NewSequence(*model_);
  kv::SequenceState none = NewSequence(*model_);
  // 3 x 100 rows: five passes, with chunks cut in the middle.
  const auto text = std::span(tokens_).first(100);
  const std::vector<SequenceChunk> chunks = {
      {&last, text, LogitsRows::kLast}, {&none, text, LogitsRows::kNone}, {&all, text, LogitsRows::kAll}};
  const auto output = model_->Step(chunks);
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->row_begin, (std::vector<int64_t>{0, 1, 1, 101}));
  EXPECT_EQ(output->num_rows(1), 0);
  EXPECT_EQ(std::vector<float>(output->Row(0, 0).begin(), output->Row(0, 0).end()),
            LogitsRowsOf(straight, 99, 100));
  const std::vector<float> rest(output->logits.begin() + kToyVocab, output->logits.end());
  EXPECT_EQ(rest, LogitsRowsOf(straight, 0, 100));
  EXPECT_EQ(none.length(), 100);
}

TEST(Options, WrongOnesAreNamed) {
  const auto status_of = [](const model::ModelOptions& options, const ToyOptions& toy = {}) {
    model::ModelConfig config = ToyConfig(toy);
    model::ModelWeights weights = ToyWeights(config, toy, options.numerics);
    if (toy.edit) toy.edit(config, weights);
    const auto made = Model::FromWeights(config, std::move(weights), ToyBackend(), options);
    return made.has_value() ? std::string("ok") : made.error().ToString();
  };
  model::ModelOptions options = ToyModelOptions(Numerics::kRelease);
  EXPECT_EQ(status_of(options), "ok");
  options.max_chunk_tokens = 0;
  EXPECT_THAT(status_of(options), HasSubstr("max_chunk_tokens: got 0"));
  options = ToyModelOptions(Numerics::kRelease);
  options.max_rewind_tokens = -1;
  EXPECT_THAT(status_of(options), HasSubstr("max_rewind_tokens: got -1"));
  options = ToyModelOptions(Numerics::kRelease);
  options.max_layers = 1;
  EXPECT_THAT(status_of(options), HasSubstr("weights in memory"));

  // Release numerics round cache rows in groups of 64; plain numerics take any width.
  ToyOptions narrow;
  narrow.edit = [](model::ModelConfig& config, model::ModelWeights&) { config.qk_rope_head_dim = 10; };
  EXPECT_THAT(status_of(ToyModelOptions(Numerics::kRelease), narrow),
              HasSubstr("head_dim - qk_rope_head_dim: got 62, release numerics want a multiple of 64"));
  EXPECT_EQ(status_of(ToyModelOptions(Numerics::kPlain), narrow), "ok");
}

TEST(Options, MissingOpsAreNamedBeforeAnythingIsRead) {
  ops::Backend backend = ToyBackend();
  backend.table.attention = nullptr;
  backend.table.swiglu = nullptr;
  const auto made = Model::Load("no/such/directory", backend, {});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(made.error().message(), HasSubstr("attention, swiglu"));
}

TEST(Numerics, PlainSimulatesNothing) {
  const auto tokens = RandomTokens(20, 1);
  for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
    const auto model = MakeToyModel({}, ToyModelOptions(numerics), InjectedBackend());
    TheInjection().Reset();
    RunInChunks(*model, tokens, 20);
    const bool release = numerics == Numerics::kRelease;
    EXPECT_EQ(TheInjection().calls["simulate_fp8"] > 0, release);
    EXPECT_EQ(TheInjection().calls["hadamard_fp4"] > 0, release);
  }
}

TEST(Numerics, ThreadsDoNotChangeABit) {
  const auto tokens = RandomTokens(100, 1);
  const ops::Backend two = backend::MakeReferenceBackend(3);
  const auto options = ToyModelOptions(Numerics::kRelease);
  const auto one_thread = MakeToyModel({.format = ToyFormat::kRelease}, options);
  const auto three_threads = MakeToyModel({.format = ToyFormat::kRelease}, options, two);
  EXPECT_EQ(RunInChunks(*one_thread, tokens, 64), RunInChunks(*three_threads, tokens, 64));
}

// Every op of a step, one after the other, fails once. The error names layer and op; the sequences are as
// they were.
TEST(FailingOps, ShortStepsLeaveEverySequenceAsItWas) {
  const auto model = MakeToyModel({}, ToyModelOptions(Numerics::kRelease), InjectedBackend());
  const auto tokens = RandomTokens(60, 8);
  TheInjection().Reset();
  const auto straight = RunInChunks(*model, tokens, 60);
  kv::SequenceState a = NewSequence(*model);
  kv::SequenceState b = NewSequence(*model);
  RunTokens(*model, a, std::span(tokens).first(31));
  RunTokens(*model, b, std::span(tokens).first(7));
  const std::vector<SequenceChunk> chunks = {{&a, std::span(tokens).subspan(31, 1), LogitsRows::kAll},
                                             {&b, std::span(tokens).subspan(7, 9), LogitsRows::kAll}};
  int failures = 0;
  for (int call = 0;; ++call) {
    TheInjection().Reset(call);
    const auto output = model->Step(chunks);
    if (TheInjection().failed_op.empty()) {
      ASSERT_TRUE(output.has_value()) << output.error().ToString();
      break;
    }
    ++failures;
    ASSERT_FALSE(output.has_value()) << call;
    EXPECT_EQ(output.error().code(), StatusCode::kInternal);
    EXPECT_THAT(output.error().message(), HasSubstr(TheInjection().failed_op + ": injected failure"));
    if (call > 0 && TheInjection().failed_op != "hc_head" && call < 100) {
      EXPECT_THAT(output.error().message(), HasSubstr("layer "));
    }
    ASSERT_EQ(a.length(), 31);
    ASSERT_EQ(b.length(), 7);
    ASSERT_FALSE(a.poisoned() || b.poisoned()) << output.error().ToString();
  }
  EXPECT_GT(failures, 100);
  TheInjection().Reset();
  EXPECT_EQ(RunTokens(*model, a, std::span(tokens).subspan(32)), LogitsRowsOf(straight, 32, 60));
  EXPECT_EQ(RunTokens(*model, b, std::span(tokens).subspan(16)), LogitsRowsOf(straight, 16, 60));
}

// How many ops a step takes, tried on a fork.
int CallsOf(Model& model, SequenceChunk chunk) {
  auto fork = chunk.state->Fork();
  EXPECT_TRUE(fork.has_value());
  chunk.state = &*fork;
  TheInjection().Reset();
  EXPECT_TRUE(model.Step(std::span(&chunk, 1)).has_value());
  return TheInjection().num_calls;
}

// When a later pass of a step fails, tokens of earlier passes are taken back too.
TEST(FailingOps, TokensOfEarlierPassesAreTakenBack) {
  const auto model = MakeToyModel({}, ToyModelOptions(Numerics::kRelease), InjectedBackend());
  const auto tokens = RandomTokens(140, 8);
  TheInjection().Reset();
  const auto straight = RunInChunks(*model, tokens, 140);
  kv::SequenceState a = NewSequence(*model);
  kv::SequenceState b = NewSequence(*model);
  RunTokens(*model, a, std::span(tokens).first(37));
  const SequenceChunk whole{.state = &a, .tokens = std::span(tokens).first(64), .logits = LogitsRows::kNone};
  const int calls_of_one_pass = CallsOf(*model, whole);
  const std::vector<SequenceChunk> chunks = {{&a, std::span(tokens).subspan(37, 6)},
                                             {&b, std::span(tokens).first(90)}};
  TheInjection().Reset(calls_of_one_pass + 20);  // The first pass has committed 6 and 58 tokens.
  ASSERT_FALSE(model->Step(chunks).has_value());
  ASSERT_FALSE(TheInjection().failed_op.empty());
  EXPECT_EQ(a.length(), 37);
  EXPECT_EQ(b.length(), 0);
  ASSERT_FALSE(a.poisoned() || b.poisoned());
  TheInjection().Reset();
  EXPECT_EQ(RunTokens(*model, a, std::span(tokens).subspan(37)), LogitsRowsOf(straight, 37, 140));
  EXPECT_EQ(RunTokens(*model, b, tokens), straight);
}

// A long chunk overwrites more rows than the rings keep for going back: the sequence says so until it is
// reset.
TEST(FailingOps, LongStepsPoisonTheSequenceUntilReset) {
  const auto model = MakeToyModel({}, ToyModelOptions(Numerics::kRelease), InjectedBackend());
  const auto tokens = RandomTokens(140, 8);
  TheInjection().Reset();
  const auto straight = RunInChunks(*model, tokens, 140);
  kv::SequenceState state = NewSequence(*model);
  RunTokens(*model, state, std::span(tokens).first(30));
  const auto before = state.Snapshot();
  ASSERT_TRUE(before.has_value());
  const SequenceChunk chunk{
      .state = &state, .tokens = std::span(tokens).subspan(30), .logits = LogitsRows::kNone};

  const int calls = CallsOf(*model, chunk);
  TheInjection().Reset(calls - 10);  // In the second of two passes.
  const auto output = model->Step(std::span(&chunk, 1));
  ASSERT_FALSE(output.has_value());
  EXPECT_TRUE(state.poisoned());
  EXPECT_EQ(state.length(), 30);
  EXPECT_THAT(output.error().message(),
              HasSubstr("the sequences of chunks 0 lost history and must be reset"));
  TheInjection().Reset();
  const auto refused = model->Step(std::span(&chunk, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), StatusCode::kFailedPrecondition);

  ASSERT_TRUE(state.Restore(*before).ok());
  EXPECT_EQ(RunTokens(*model, state, std::span(tokens).subspan(30)), LogitsRowsOf(straight, 30, 140));
  state.Reset();
  EXPECT_EQ(RunTokens(*model, state, tokens), straight);
}

// Rows computed with other numerics or options are not mistaken for this model's; of other weights,
// tests/engine/origin_test.cc.
TEST(Snapshots, OfAnotherModelAreRefused) {
  const auto tokens = RandomTokens(30, 8);
  const auto model = MakeToyModel({}, ToyModelOptions(Numerics::kPlain));
  kv::SequenceState state = NewSequence(*model);
  RunTokens(*model, state, tokens);
  const auto bytes = state.Snapshot()->Serialize(model->recipe());
  ASSERT_TRUE(bytes.has_value());
  EXPECT_TRUE(model->DeserializeSnapshot(*bytes, model->recipe()).has_value());

  const auto expect_refused = [&](const Model& other, const char* what) {
    const auto read = other.DeserializeSnapshot(*bytes, other.recipe());
    ASSERT_FALSE(read.has_value()) << what;
    EXPECT_EQ(read.error().code(), StatusCode::kInvalidArgument) << what;
  };
  expect_refused(*MakeToyModel({}, ToyModelOptions(Numerics::kRelease)), "other numerics");
  expect_refused(*MakeToyModel({.ratios = {0, 4, 8, 4, 64}}, ToyModelOptions(Numerics::kPlain)),
                 "other ratios");
  auto unclamped = ToyModelOptions(Numerics::kPlain);
  unclamped.clamp_shared_expert = false;
  expect_refused(*MakeToyModel({}, unclamped), "other clamp");
  EXPECT_EQ(model->Origin(std::chrono::milliseconds(0)).error().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace dsv4::test
