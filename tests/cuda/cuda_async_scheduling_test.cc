// Steps that are queued before the one in front has been waited for, on the device. Copies are in flight, and
// an engine with async scheduling is compared with one without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "engine/engine.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;

template <typename T>
T Take(Result<T> result) {
  DSV4_CHECK(result.has_value()) << result.error().ToString();
  return std::move(*result);
}

TEST(CudaCopies, InFlightBringWhatWasThereWhenTheyBegan) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  Memory& memory = backend.context->memory();
  EXPECT_TRUE(memory.asynchronous());
  constexpr size_t kBytes = 1000;
  constexpr int kCopies = 12;
  const Buffer device = Take(memory.Allocate(kBytes));
  std::vector<Buffer> hosts;
  std::vector<std::unique_ptr<PendingCopy>> copies;
  for (int i = 0; i < kCopies; ++i) {
    const std::vector<std::byte> bytes(kBytes, static_cast<std::byte>(i + 1));
    ASSERT_TRUE(memory.CopyFromHost(device.data(), bytes.data(), kBytes, nullptr).ok());
    hosts.push_back(Take(memory.AllocateOnHost(kBytes)));
    std::memset(hosts.back().data(), 0, kBytes);
    copies.push_back(Take(memory.StartCopyToHost(hosts.back().data(), device.data(), kBytes, nullptr)));
  }
  for (int i = kCopies - 1; i >= 0; --i) {
    ASSERT_TRUE(copies[static_cast<size_t>(i)]->Wait().ok());
    const auto* const bytes = static_cast<const std::byte*>(hosts[static_cast<size_t>(i)].data());
    EXPECT_EQ(std::count(bytes, bytes + kBytes, static_cast<std::byte>(i + 1)), kBytes) << i;
  }
}

TEST(CudaCopies, InFlightTellTheFaultsOfWhatWasInFront) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  ops::OpContext& context = *backend.context;
  const Buffer memory = Take(context.memory().Allocate(4096));
  const auto view = [&](size_t offset, DType dtype, const Shape& shape) {
    return TensorView::Contiguous(static_cast<std::byte*>(memory.data()) + offset, dtype, shape,
                                  memory.device());
  };
  const ops::EmbedArgs embed{.token_ids = view(0, DType::kI32, {1}),
                             .table = view(256, DType::kF32, {4, 8}),
                             .streams = view(1024, DType::kF32, {1, 1, 8})};
  const auto run = [&](int32_t id) {
    EXPECT_TRUE(context.memory().CopyFromHost(memory.data(), &id, sizeof(id), nullptr).ok());
    EXPECT_TRUE(backend.table.embed(context, embed).ok());
  };
  const auto start = [&](const Buffer& host) {
    return Take(context.memory().StartCopyToHost(host.data(), memory.data(), sizeof(int32_t), nullptr));
  };
  const Buffer first = Take(context.memory().AllocateOnHost(4));
  const Buffer second = Take(context.memory().AllocateOnHost(4));
  run(3);
  const auto good = start(first);
  run(4);
  const auto bad = start(second);
  EXPECT_TRUE(good->Wait().ok());
  const Status fault = bad->Wait();
  EXPECT_EQ(fault.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(fault.message(), HasSubstr("token_ids[0]: 4, want 0 to 3"));
  run(2);
  EXPECT_TRUE(start(first)->Wait().ok()) << "a fault is told once";
}

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // Log-probabilities of the tokens and of the likeliest ones.
  engine::FinishReason reason = engine::FinishReason::kError;
  int32_t stop_token = -1;
  int64_t num_cached_tokens = 0;
  friend bool operator==(const Outcome& a, const Outcome& b) = default;
};

std::vector<int32_t> RandomTokens(size_t count, std::mt19937& random, int64_t vocab_size) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  return tokens;
}

// Each token says of which rest by 7 the next one is.
class Striped final : public sampling::TokenConstraint {
 public:
  explicit Striped(int64_t vocab_size)
      : vocab_size_(vocab_size), words_(static_cast<size_t>(vocab_size + 63) / 64) {}
  std::span<const uint64_t> Allowed() override {
    std::ranges::fill(words_, 0);
    for (int64_t id = rest_; id < vocab_size_; id += 7)
      words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    return words_;
  }
  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<Striped>(*this);
  }
  void Accept(int32_t token) override {
    EXPECT_EQ(token % 7, rest_);
    rest_ = token / 7 % 7;
  }

 private:
  int64_t vocab_size_;
  std::vector<uint64_t> words_;
  int64_t rest_ = 0;
};

engine::Request RandomRequest(std::mt19937& random, int64_t vocab_size) {
  engine::Request request;
  request.prompt = RandomTokens(1 + random() % 200, random, vocab_size);
  request.max_tokens = 1 + random() % 120;
  request.sampling.seed = random();
  request.sampling.temperature = 0.2F * static_cast<float>(random() % 8);
  if (random() % 3 == 0) request.sampling.top_k = static_cast<int>(1 + random() % 50);
  if (random() % 3 == 0) request.sampling.top_p = 0.1F + 0.1F * static_cast<float>(random() % 9);
  if (random() % 3 == 0) request.sampling.min_p = 0.1F;
  for (const int32_t token : RandomTokens(random() % 400, random, vocab_size))
    request.stop_tokens.insert(token);
  if (random() % 3 == 0) request.num_logprobs = static_cast<int>(random() % 21);
  if (random() % 3 == 0) {
    request.sampling.repetition_penalty = 1.2F;
    request.sampling.frequency_penalty = 0.1F * static_cast<float>(random() % 9);
    request.sampling.logit_bias[static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size))] = 5.0F;
  }
  if (random() % 3 == 0) request.constraint = std::make_unique<Striped>(vocab_size);
  return request;
}

// A mix of requests, some of which come while others run, and every conversation once more with a token behind it.
std::vector<Outcome> RunMix(model::Model& model, uint32_t seed, std::optional<bool> async_scheduling,
                            int64_t* num_ahead) {
  std::mt19937 random(seed);
  const int64_t vocab_size = model.config().vocab_size;
  std::vector<uint8_t> allowed(static_cast<size_t>(vocab_size), 1);
  for (int i = 0; i < 100; ++i) allowed[random() % allowed.size()] = 0;
  engine::Engine engine(model, {.prefix_cache_bytes = int64_t{1} << 30, .async_scheduling = async_scheduling},
                        allowed);
  std::map<engine::RequestId, Outcome> outcomes;
  const auto step = [&] {
    for (const engine::Event& event : engine.Step()) {
      Outcome& outcome = outcomes[event.request];
      if (event.kind == engine::Event::Kind::kAdmitted) outcome.num_cached_tokens = event.num_cached_tokens;
      if (event.kind == engine::Event::Kind::kToken) {
        outcome.tokens.push_back(event.token.id);
        outcome.logprobs.push_back(event.token.logprob);
        for (const auto& top : event.token.top) outcome.logprobs.push_back(top.logprob);
      }
      if (event.kind != engine::Event::Kind::kFinished) continue;
      EXPECT_NE(event.finish_reason, engine::FinishReason::kError) << event.status.ToString();
      outcome.reason = event.finish_reason;
      outcome.stop_token = event.stop_token;
    }
  };
  std::vector<engine::RequestId> ids;
  std::vector<std::vector<int32_t>> prompts;
  for (int group = 0; group < 3; ++group) {
    for (size_t i = 0; i < 1 + random() % 5; ++i) {
      engine::Request request = RandomRequest(random, vocab_size);
      prompts.push_back(request.prompt);
      ids.push_back(Take(engine.Submit(std::move(request))));
    }
    for (size_t i = random() % 40; i > 0 && !engine.idle(); --i) step();
  }
  while (!engine.idle()) step();
  *num_ahead += engine.stats().num_steps_ahead;
  std::vector<Outcome> all;
  for (size_t i = 0; i < ids.size(); ++i) {
    engine::Request again;
    again.prompt = prompts[i];
    const Outcome& outcome = outcomes[ids[i]];
    again.prompt.insert(again.prompt.end(), outcome.tokens.begin(), outcome.tokens.end());
    again.prompt.push_back(1);
    again.max_tokens = 12;
    again.sampling.seed = i;
    all.push_back(outcome);
    // When a request is admitted is not the same: what it finds may not be either.
    all.back().num_cached_tokens = 0;
    const engine::RequestId id = Take(engine.Submit(std::move(again)));
    while (!engine.idle()) step();
    all.push_back(outcomes[id]);
  }
  return all;
}

TEST(CudaAsyncScheduling, GivesTheTokensAndKeepsTheStatesOfAnEngineThatDoesNot) {
  const ops::Backend backend = Take(backend::MakeCudaBackend({}));
  const auto model = Take(model::Model::Load("models/tiny", backend, {}));
  int64_t num_ahead = 0;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    int64_t none = 0;
    const std::vector<Outcome> want = RunMix(*model, seed, false, &none);
    EXPECT_EQ(none, 0);
    const std::vector<Outcome> got = RunMix(*model, seed, std::nullopt, &num_ahead);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << "mix " << seed << ", " << i;
      EXPECT_TRUE(got[i] == want[i]) << "mix " << seed << ", " << i;
    }
  }
  EXPECT_GT(num_ahead, 200) << "it is on by itself";
}

}  // namespace
}  // namespace dsv4::testing
