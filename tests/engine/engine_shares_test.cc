// Shares of owners in the places of an engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "backend/reference/reference_backend.h"
#include "engine/engine.h"

namespace dsv4::engine {
namespace {

model::Model& SharedModel() {
  static const std::unique_ptr<model::Model> model = std::move(
      *model::Model::Load("tests/golden/models/nvfp4_experts", backend::MakeReferenceBackend(1), {}));
  return *model;
}

std::vector<int32_t> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  const auto vocab_size = static_cast<uint32_t>(SharedModel().config().vocab_size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

Request MakeRequest(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0F;
  return request;
}

std::vector<int32_t> RunAlone(Request request) {
  Engine engine(SharedModel(), {}, {});
  static_cast<void>(*engine.Submit(std::move(request)));
  std::vector<int32_t> tokens;
  while (!engine.idle()) {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kToken) tokens.push_back(event.token.id);
    }
  }
  return tokens;
}

TEST(EngineShares, OwnersTakeTurns) {
  Engine engine(SharedModel(), {.max_sequences = 2}, {});
  std::vector<RequestId> ids;
  for (const uint64_t owner : {1, 1, 1, 2}) {
    Request request = MakeRequest(RandomTokens(4, 1), 5);
    request.owner = owner;
    ids.push_back(*engine.Submit(std::move(request)));
  }
  std::vector<RequestId> admitted;
  for (const Event& event : engine.Step()) {
    if (event.kind == Event::Kind::kAdmitted) admitted.push_back(event.request);
  }
  EXPECT_EQ(admitted, (std::vector<RequestId>{ids[0], ids[3]}));
}

// One owner has taken all places, and another sends a request. It runs at once, none of the answers differs,
// and the first owner keeps a place.
TEST(EngineShares, AnOwnerWithNoPlaceTakesOneOfAnOwnerWithSeveral) {
  for (const double turn : {0.0, 3600.0}) {  // Seconds.
    Engine engine(SharedModel(), {.max_sequences = 2, .turn_seconds = turn}, {});
    const auto submit = [&](uint64_t owner, uint32_t seed, int64_t priority = 0) {
      Request request = MakeRequest(RandomTokens(6, seed), 12);
      request.owner = owner;
      request.priority = priority;
      return *engine.Submit(std::move(request));
    };
    std::map<RequestId, uint32_t> seeds;
    for (const uint32_t seed : {1U, 2U, 3U}) seeds[submit(1, seed)] = seed;
    std::map<RequestId, std::vector<int32_t>> tokens;
    const auto step = [&] {
      for (const Event& event : engine.Step()) {
        if (event.kind == Event::Kind::kToken) tokens[event.request].push_back(event.token.id);
      }
    };
    for (int i = 0; i < 4; ++i) step();
    const RequestId other = submit(2, 4);
    // Whatever its priority: no owner has several any more, so it waits for a turn of an only one.
    const RequestId third = submit(3, 5, -1);
    seeds[other] = 4;
    seeds[third] = 5;
    step();
    EXPECT_EQ(tokens[other].size(), turn == 0.0 ? 1U : 0U);
    EXPECT_EQ(tokens[third].size(), turn == 0.0 ? 1U : 0U);
    EXPECT_EQ(engine.stats().num_preemptions, turn == 0.0 ? 2 : 0);
    EXPECT_EQ(engine.stats().num_running, 2);
    for (int i = 0; i < 4; ++i) step();
    if (turn > 0.0) {
      EXPECT_EQ(engine.stats().num_preemptions, 0);
    }
    while (!engine.idle()) step();
    for (const auto& [id, seed] : seeds)
      EXPECT_EQ(tokens[id], RunAlone(MakeRequest(RandomTokens(6, seed), 12))) << seed;
  }
}

// A priority orders an owner's own requests; it passes nobody else's.
TEST(EngineShares, APriorityPassesOnesOwnRequestsOnly) {
  Engine engine(SharedModel(), {.max_sequences = 1}, {});
  const auto submit = [&](uint64_t owner, int64_t priority) {
    Request request = MakeRequest(RandomTokens(4, 1), 2);
    request.owner = owner;
    request.priority = priority;
    return *engine.Submit(std::move(request));
  };
  const RequestId first = submit(1, 5);
  const RequestId greedy = submit(2, -1000);
  const RequestId urgent = submit(1, 0);
  std::vector<RequestId> admitted;
  while (!engine.idle()) {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kAdmitted) admitted.push_back(event.request);
    }
  }
  EXPECT_EQ(admitted, (std::vector<RequestId>{urgent, greedy, first}));  // The owners in turn.
}

// Requests that an owner has long had in the queue do not pass the first of another.
TEST(EngineShares, AQueueOfOneOwnerHoldsUpNoOther) {
  Engine engine(SharedModel(), {.max_sequences = 1}, {});
  std::vector<uint64_t> admitted;
  std::map<RequestId, uint64_t> owners;
  const auto submit = [&](uint64_t owner) {
    Request request = MakeRequest(RandomTokens(4, 1), 2);
    request.owner = owner;
    owners[*engine.Submit(std::move(request))] = owner;
  };
  for (int i = 0; i < 5; ++i) submit(1);
  while (!engine.idle()) {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kAdmitted) admitted.push_back(owners[event.request]);
      if (event.kind == Event::Kind::kAdmitted && admitted.size() == 2) {
        for (const uint64_t owner : {2, 2, 3}) submit(owner);
      }
    }
  }
  EXPECT_EQ(admitted, (std::vector<uint64_t>{1, 1, 2, 3, 1, 2, 1, 1}));
}

// More owners than places, all of whom read: they have the places in turn, and no answer differs. Where nothing is kept turns grow, so all end.
TEST(EngineShares, MoreOwnersThanPlacesHaveThemInTurn) {
  for (const int64_t cache : {int64_t{0}, int64_t{8} << 20}) {
    Engine engine(SharedModel(), {.max_sequences = 2, .turn_seconds = 2.5e-5, .prefix_cache_bytes = cache},
                  {});
    std::map<RequestId, std::vector<int32_t>> tokens;
    std::map<RequestId, uint32_t> seeds;
    for (const uint32_t seed : {1U, 2U, 3U, 4U, 5U}) {
      Request request = MakeRequest(RandomTokens(100, seed), 12);
      request.owner = seed;
      seeds[*engine.Submit(std::move(request))] = seed;
    }
    size_t begun_before_the_first_end = 0;
    while (!engine.idle()) {
      for (const Event& event : engine.Step()) {
        if (event.kind == Event::Kind::kToken) tokens[event.request].push_back(event.token.id);
        if (event.kind == Event::Kind::kFinished && begun_before_the_first_end == 0)
          begun_before_the_first_end = tokens.size();
      }
    }
    EXPECT_GT(begun_before_the_first_end, 2U);
    EXPECT_GT(engine.stats().num_preemptions, 0);
    for (const auto& [id, seed] : seeds)
      EXPECT_EQ(tokens[id], RunAlone(MakeRequest(RandomTokens(100, seed), 12))) << seed;
  }
}

// More owners than places: the one whose events nobody takes gives its only place up, and goes on when they are taken.
TEST(EngineShares, APlaceThatNobodyReadsGoesToAnOwnerWithNone) {
  Engine engine(SharedModel(), {.max_sequences = 1, .unread_seconds = 0.0}, {});
  const auto submit = [&](uint64_t owner, uint32_t seed) {
    Request request = MakeRequest(RandomTokens(6, seed), 12);
    request.owner = owner;
    return *engine.Submit(std::move(request));
  };
  std::map<RequestId, std::vector<int32_t>> tokens;
  const auto step = [&] {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kToken) tokens[event.request].push_back(event.token.id);
    }
  };
  const RequestId silent = submit(1, 1);
  for (int i = 0; i < 4; ++i) step();
  const RequestId other = submit(2, 2);
  const auto since = std::chrono::steady_clock::now();
  const auto unread = [&](RequestId id) { return id == silent ? std::optional(since) : std::nullopt; };
  const size_t before = tokens[silent].size();
  while (tokens[other].size() < 12) {
    engine.SetUnread(unread);
    step();
  }
  EXPECT_EQ(tokens[silent].size(), before);
  EXPECT_EQ(engine.stats().num_preemptions, 1);
  while (!engine.idle()) step();
  EXPECT_EQ(tokens[silent], RunAlone(MakeRequest(RandomTokens(6, 1), 12)));
  EXPECT_EQ(tokens[other], RunAlone(MakeRequest(RandomTokens(6, 2), 12)));
}

// A constraint whose masks are late, and one that allows everything at once.
class LateConstraint final : public sampling::TokenConstraint {
 public:
  explicit LateConstraint(int looks) : looks_(looks), left_(looks) {}
  std::span<const uint64_t> Allowed() override { return {}; }
  bool Prepare(std::chrono::steady_clock::time_point) override { return left_ <= 0 || --left_ <= 0; }
  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<LateConstraint>(*this);
  }
  void Accept(int32_t) override { left_ = looks_; }

 private:
  const int looks_;
  int left_;
};

TEST(EngineShares, ALateMaskHoldsUpItsOwnAnswerOnly) {
  Engine engine(SharedModel(), {.max_sequences = 2}, {});
  Request late = MakeRequest(RandomTokens(6, 1), 8);
  late.constraint = std::make_unique<LateConstraint>(10);
  const RequestId slow = *engine.Submit(std::move(late));
  const RequestId fast = *engine.Submit(MakeRequest(RandomTokens(6, 2), 8));
  std::map<RequestId, std::vector<int32_t>> tokens;
  int steps_of_fast = 0;
  while (!engine.idle()) {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kToken) tokens[event.request].push_back(event.token.id);
    }
    if (tokens[fast].size() < 8) ++steps_of_fast;
    if (tokens[fast].size() == 8 && steps_of_fast > 0) {
      EXPECT_LT(tokens[slow].size(), 4U);
      steps_of_fast = -1000;
    }
  }
  EXPECT_EQ(tokens[slow], RunAlone(MakeRequest(RandomTokens(6, 1), 8)));
  EXPECT_EQ(tokens[fast], RunAlone(MakeRequest(RandomTokens(6, 2), 8)));
}

}  // namespace
}  // namespace dsv4::engine
