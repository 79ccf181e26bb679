// Tests of the engine's thread: events from several threads, cancellation, failures and bounds.
#include "engine/engine_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "backend/reference/reference_backend.h"

namespace dsv4::engine {
namespace {

using ::testing::HasSubstr;

model::Model& SharedModel() {
  static const std::unique_ptr<model::Model> model = std::move(
      *model::Model::Load("tests/golden/models/nvfp4_experts", backend::MakeReferenceBackend(1), {}));
  return *model;
}

// More than is written while a test lasts: minutes of work.
constexpr int64_t kEndless = 100000;

Request MakeRequest(int32_t first, int64_t max_tokens) {
  Request request;
  for (int32_t i = 0; i < 20; ++i) request.prompt.push_back((first + i) % 50);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0F;
  return request;
}

std::unique_ptr<EngineThread> MakeThread(EngineOptions options = {},
                                         EngineThreadOptions thread_options = {}) {
  return std::make_unique<EngineThread>(
      std::make_unique<Engine>(SharedModel(), options, std::vector<uint8_t>()), thread_options, nullptr);
}

struct Outcome {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kError;
};

// Blocks until `is_last` says so of an event; every event is shown to it.
void ReadUntil(Generation& generation, const std::function<bool(const Event&)>& is_last) {
  std::mutex mutex;
  std::condition_variable ready;
  bool woken = false;
  generation.OnEvents([&] {
    const std::lock_guard lock(mutex);
    woken = true;
    ready.notify_one();
  });
  for (bool done = false; !done;) {
    {
      std::unique_lock lock(mutex);
      ready.wait(lock, [&] { return woken; });
      woken = false;
    }
    for (const Event& event : generation.Take()) done |= is_last(event);
  }
  generation.OnEvents({});
}

// Blocks until the last event.
Outcome Read(Generation& generation) {
  Outcome outcome;
  ReadUntil(generation, [&](const Event& event) {
    if (event.kind == Event::Kind::kToken) outcome.tokens.push_back(event.token.id);
    if (event.kind == Event::Kind::kFinished) outcome.reason = event.finish_reason;
    return event.kind == Event::Kind::kFinished;
  });
  return outcome;
}

std::vector<int32_t> Alone(int32_t first, int64_t max_tokens) {
  Engine engine(SharedModel(), {}, {});
  static_cast<void>(*engine.Submit(MakeRequest(first, max_tokens)));
  std::vector<int32_t> tokens;
  while (!engine.idle()) {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kToken) tokens.push_back(event.token.id);
    }
  }
  return tokens;
}

TEST(EngineThread, ManyThreadsGetTheTokensTheyWouldGetAlone) {
  const std::unique_ptr<EngineThread> thread =
      MakeThread({.max_step_tokens = 50, .max_sequences = 5, .prefix_cache_bytes = int64_t{1} << 26});
  std::vector<std::vector<int32_t>> got(12);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < got.size(); ++i) {
    clients.emplace_back([&, i] {
      Result<std::unique_ptr<Generation>> generation =
          thread->Submit(MakeRequest(static_cast<int32_t>(i % 4), 12));
      ASSERT_TRUE(generation.has_value());
      got[i] = Read(**generation).tokens;
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], Alone(static_cast<int32_t>(i % 4), 12)) << i;
  EXPECT_TRUE(thread->idle());
  EXPECT_EQ(thread->stats().num_output_tokens, 12 * 12);
}

TEST(EngineThread, AFullQueueSaysSoAndTakesRequestsAgainLater) {
  const std::unique_ptr<EngineThread> thread = MakeThread({.max_sequences = 1}, {.max_waiting = 2});
  std::vector<std::unique_ptr<Generation>> accepted;
  Status refused;
  for (int i = 0; i < 50 && refused.ok(); ++i) {
    Result<std::unique_ptr<Generation>> generation = thread->Submit(MakeRequest(i, kEndless));
    if (generation)
      accepted.push_back(std::move(*generation));
    else
      refused = generation.error();
  }
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("2 may"));
  EXPECT_LE(accepted.size(), 4U);
  for (const auto& generation : accepted) generation->Cancel();
  for (const auto& generation : accepted) EXPECT_EQ(Read(*generation).reason, FinishReason::kCancelled);
  EXPECT_EQ(Read(**thread->Submit(MakeRequest(1, 3))).tokens, Alone(1, 3));
  std::vector<Request> three;
  for (int i = 0; i < 3; ++i) three.push_back(MakeRequest(i, 3));
  // There will never be room for three: trying again is of no use.
  EXPECT_EQ(thread->SubmitAll(std::move(three)).error().code(), StatusCode::kInvalidArgument);
}

TEST(EngineThread, AnOwnerThatFillsTheQueueLeavesRoomForOthers) {
  const std::vector<int32_t> expected = Alone(2, 3);  // Before: the model is the thread's.
  const std::unique_ptr<EngineThread> thread = MakeThread({.max_sequences = 1}, {.max_waiting = 2});
  std::vector<std::unique_ptr<Generation>> greedy;
  greedy.push_back(std::move(*thread->Submit(MakeRequest(1, kEndless))));
  // It runs, so that none of those that wait behind it is admitted while they are counted.
  ReadUntil(*greedy[0], [](const Event& event) { return event.kind == Event::Kind::kAdmitted; });
  for (Status refused; refused.ok();) {
    Result<std::unique_ptr<Generation>> generation = thread->Submit(MakeRequest(1, kEndless));
    if (generation)
      greedy.push_back(std::move(*generation));
    else
      refused = generation.error();
  }
  std::vector<std::unique_ptr<Generation>> others;
  for (uint64_t owner = 1; owner <= 2; ++owner) {
    Request request = MakeRequest(2, 3);
    request.owner = owner;
    others.push_back(std::move(*thread->Submit(std::move(request))));
  }
  // However many owners come, each finds room for one request, up to four times as many as one may have.
  Status refused;
  for (uint64_t owner = 3; refused.ok(); ++owner) {
    Request request = MakeRequest(2, 3);
    request.owner = owner;
    Result<std::unique_ptr<Generation>> generation = thread->Submit(std::move(request));
    if (generation)
      others.push_back(std::move(*generation));
    else
      refused = generation.error();
  }
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(others.size(), 6U);  // Beside two of the greedy owner.
  for (const auto& generation : greedy) generation->Cancel();
  for (const auto& generation : others) EXPECT_EQ(Read(*generation).tokens, expected);
  EXPECT_EQ(Read(**thread->Submit(MakeRequest(2, 3))).tokens, expected);
}

TEST(EngineThread, ADestroyedGenerationIsCancelled) {
  const std::unique_ptr<EngineThread> thread = MakeThread();
  { const std::unique_ptr<Generation> abandoned = std::move(*thread->Submit(MakeRequest(1, kEndless))); }
  const std::unique_ptr<Generation> next = std::move(*thread->Submit(MakeRequest(2, 3)));
  EXPECT_EQ(Read(*next).tokens.size(), 3U);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!thread->idle() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(thread->idle());
  EXPECT_LT(thread->stats().num_output_tokens, kEndless);
}

TEST(EngineThread, StoppingCancelsWhatRunsAndItsReaderHears) {
  std::unique_ptr<EngineThread> thread = MakeThread();
  const std::unique_ptr<Generation> generation = std::move(*thread->Submit(MakeRequest(1, kEndless)));
  thread.reset();
  EXPECT_EQ(Read(*generation).reason, FinishReason::kCancelled);
}

TEST(EngineThread, WhatTheEngineWouldRefuseIsRefusedAtOnce) {
  const std::unique_ptr<EngineThread> thread = MakeThread();
  EXPECT_THAT(thread->Submit(MakeRequest(1, -1)).error().message(), HasSubstr("max_tokens"));
  EXPECT_TRUE(thread->idle());
}

}  // namespace
}  // namespace dsv4::engine
