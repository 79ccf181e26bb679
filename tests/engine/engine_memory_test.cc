// Any allocation of the engine's thread may fail. The requests that run then end with kUnavailable or as
// ever, the engine goes on, and later answers are right. This binary has its own operator new, which fails
// where a test says so.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>

#include "backend/reference/reference_backend.h"
#include "engine/engine_thread.h"

namespace {

// Allocations of threads that are marked until one fails; negative: none does.
std::atomic<int64_t> g_until_failure = -1;
std::atomic<int64_t> g_failures_in_a_row = 1;
std::atomic<int64_t> g_count = 0;
thread_local bool t_may_fail = false;

bool Fails() {
  if (!t_may_fail) return false;
  g_count.fetch_add(1);
  if (g_until_failure.load() < 0) return false;
  const int64_t left = g_until_failure.fetch_sub(1);
  return left == 0 || (left < 0 && -left < g_failures_in_a_row.load());
}

}  // namespace

// g++ 12 inlines one of the pair and then calls it the wrong one.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t size) {
  if (Fails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
// std::stable_sort asks for its buffer with this one. AddressSanitizer brings its own where it is not
// replaced too.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace dsv4::engine {
namespace {

model::Model& SharedModel() {
  static const std::unique_ptr<model::Model> model = [] {
    return std::move(
        *model::Model::Load("tests/golden/models/nvfp4_experts", backend::MakeReferenceBackend(1), {}));
  }();
  return *model;
}

Request MakeRequest(int32_t first, int64_t prompt_tokens) {
  Request request;
  for (int64_t i = 0; i < prompt_tokens; ++i)
    request.prompt.push_back(static_cast<int32_t>((first + 7 * i) % 90));
  request.max_tokens = 4;
  request.sampling.temperature = 0;
  return request;
}

struct Outcome {
  std::vector<int32_t> tokens;
  Status status;
  int num_finishes = 0;
};
using Outcomes = std::map<RequestId, Outcome>;

void Collect(std::vector<Event> events, Outcomes& outcomes) {
  for (Event& event : events) {
    Outcome& outcome = outcomes[event.request];
    if (event.kind == Event::Kind::kToken) outcome.tokens.push_back(event.token.id);
    if (event.kind != Event::Kind::kFinished) continue;
    outcome.status = event.status;
    ++outcome.num_finishes;
  }
}

// Three requests, of which two share a beginning and one is cancelled half-way.
struct Work {
  explicit Work(Engine& of) : engine(of) {
    ids = {*engine.Submit(MakeRequest(1, 70)), *engine.Submit(MakeRequest(1, 40)),
           *engine.Submit(MakeRequest(5, 3))};
  }
  // The allocation of this number that the engine's steps make fails; -1: none does.
  Outcomes RunToEnd(int64_t fail_at) {
    Outcomes outcomes;
    g_until_failure = fail_at;
    for (int step = 0; !engine.idle(); ++step) {
      if (step == 3) engine.Cancel(ids[2]);
      std::vector<Event> events;
      t_may_fail = true;
      try {
        events = engine.Step();
      } catch (const std::bad_alloc&) {  // Not even for saying so: the next step does.
      }
      t_may_fail = false;
      Collect(std::move(events), outcomes);
    }
    g_until_failure = -1;
    return outcomes;
  }
  Engine& engine;
  std::vector<RequestId> ids;
};

EngineOptions Options() {
  return {.max_step_tokens = 32, .max_sequences = 2, .prefix_cache_bytes = int64_t{8} << 20};
}

TEST(EngineMemory, AnyAllocationMayFail) {
  std::vector<std::vector<int32_t>> expected;
  int64_t num_allocations = 0;
  {
    Engine engine(SharedModel(), Options(), {});
    Work work(engine);
    g_count = 0;
    Outcomes outcomes = work.RunToEnd(-1);
    num_allocations = g_count;
    for (const RequestId id : work.ids) expected.push_back(outcomes[id].tokens);
  }
  ASSERT_GT(num_allocations, 100);
  int num_failed = 0;
  for (const int64_t in_a_row : {int64_t{1}, int64_t{3}, int64_t{200}}) {
    g_failures_in_a_row = in_a_row;
    for (int64_t at = 0; at < num_allocations; at += at < 40 ? 1 : num_allocations / 60 + 1) {
      Engine engine(SharedModel(), Options(), {});
      Work work(engine);
      Outcomes outcomes = work.RunToEnd(at);
      for (size_t i = 0; i < work.ids.size(); ++i) {
        const Outcome& outcome = outcomes[work.ids[i]];
        ASSERT_EQ(outcome.num_finishes, 1) << "allocation " << at;
        if (!outcome.status.ok()) {
          ++num_failed;
          ASSERT_EQ(outcome.status.code(), StatusCode::kUnavailable) << outcome.status.ToString();
        } else if (i < 2) {
          ASSERT_EQ(outcome.tokens, expected[i]) << "allocation " << at;
        }
      }
      // The engine goes on, and what it kept is right.
      Work again(engine);
      outcomes = again.RunToEnd(-1);
      for (size_t i = 0; i < 2; ++i)
        ASSERT_EQ(outcomes[again.ids[i]].tokens, expected[i]) << "allocation " << at;
    }
  }
  EXPECT_GT(num_failed, 10);
  std::printf("%lld allocations, %d requests ended for lack of memory\n",
              static_cast<long long>(num_allocations), num_failed);
}

}  // namespace
}  // namespace dsv4::engine
