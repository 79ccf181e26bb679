// Experts that the host multiplies for a device: the test is the device, and writes and reads what its
// kernels would.
#include "tiers/host_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "tests/parity/experts.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

using tiers::ExchangeWords;
using tiers::HostExperts;
using tiers::Payload;

constexpr float kLimit = 0.8F;
constexpr ExpertCase kSize = {.num_tokens = 5, .num_experts = 8, .top_k = 3, .dim = 256, .inter_dim = 128};

ops::Backend Cpu(int num_threads) {
  auto backend = backend::MakeCpuBackend({.num_threads = num_threads});
  DSV4_CHECK(backend.has_value()) << backend.error().ToString();
  return *backend;
}

std::unique_ptr<HostExperts> Make(const ops::Backend& backend) {
  auto experts = HostExperts::Create(
      {.backend = backend, .allocate = [](size_t num_bytes) { return HostMemory().Allocate(num_bytes); }});
  DSV4_CHECK(experts.has_value()) << experts.error().ToString();
  return std::move(*experts);
}

// The kernels' part.
class FakeDevice {
 public:
  explicit FakeDevice(HostExperts& host) : words_(*host.words()) {}

  // False: it took longer than any test should.
  bool Ask(int32_t layer, const Payload& payload, int32_t num_rows) {
    words_.layer = layer;
    words_.num_rows = num_rows;
    words_.payload = payload.index;
    words_.limit = kLimit;
    std::atomic_ref(words_.asked).store(++number_, std::memory_order_release);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::atomic_ref(words_.answered).load(std::memory_order_acquire) != number_) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool failed() const { return words_.failed == number_; }

 private:
  ExchangeWords& words_;
  uint32_t number_ = 0;
};

struct Problem {
  TestExperts experts;
  TestTensor x;
  TestTensor indices;  // Indices below kSize.num_experts; the last of them is elsewhere.
  TestTensor weights;
};

Problem MakeProblem() {
  Random random(5);
  TestExperts experts =
      MakeExperts(kSize.num_experts, kSize.dim, kSize.inter_dim, ExpertFormat::kNvFp4, random);
  TestTensor x(DType::kBF16, {kSize.num_tokens, kSize.dim}, random.Normals(kSize.num_tokens * kSize.dim));
  TestTensor indices(DType::kI32, {kSize.num_tokens, kSize.top_k}, DistinctIndices(kSize, random));
  TestTensor weights(DType::kF32, {kSize.num_tokens, kSize.top_k},
                     random.Normals(kSize.num_tokens * kSize.top_k));
  return {std::move(experts), std::move(x), std::move(indices), std::move(weights)};
}

// All but the last expert.
std::vector<ops::ExpertWeights> HostsOf(const Problem& p) {
  return {p.experts.weights.begin(), p.experts.weights.end() - 1};
}

// Number of those that any token chose.
int64_t NumChosen(const Problem& p) {
  const auto* const begin = p.indices.view().as<const int32_t>();
  std::set<int32_t> chosen(begin, begin + p.indices.view().num_elements());
  chosen.erase(static_cast<int32_t>(kSize.num_experts) - 1);
  return static_cast<int64_t>(chosen.size());
}

void Put(const Problem& p, const Payload& payload) {
  std::memcpy(payload.x, p.x.view().data, static_cast<size_t>(p.x.view().num_bytes()));
  std::memcpy(payload.indices, p.indices.view().data, static_cast<size_t>(p.indices.view().num_bytes()));
  std::memcpy(payload.weights, p.weights.view().data, static_cast<size_t>(p.weights.view().num_bytes()));
}

std::vector<std::byte> TermsOf(const Payload& payload) {
  const int64_t num_bytes = kSize.num_tokens * kSize.top_k * kSize.dim * ElementBytes(payload.dtype);
  const auto* const begin = static_cast<const std::byte*>(payload.terms);
  return {begin, begin + num_bytes};
}

Payload NewPayload(HostExperts& host) {
  auto payload = host.PayloadFor(DType::kBF16, kSize.dim, kSize.top_k);
  DSV4_CHECK(payload.has_value()) << payload.error().ToString();
  return *payload;
}

TEST(HostExperts, GivesWhatTheOpGivesForAnyNumberOfThreads) {
  const Problem p = MakeProblem();
  TestTensor want(DType::kBF16, {kSize.num_tokens, kSize.top_k, kSize.dim});
  constexpr std::byte kUntouched{0x5A};
  std::memset(want.view().data, static_cast<int>(kUntouched), static_cast<size_t>(want.view().num_bytes()));
  const std::vector<ops::ExpertWeights> here = HostsOf(p);
  const ops::Backend alone = Cpu(1);
  ASSERT_TRUE(alone.table
                  .expert_terms(*alone.context, {.x = p.x,
                                                 .indices = p.indices,
                                                 .weights = p.weights,
                                                 .experts = here,
                                                 .first_expert = 0,
                                                 .num_experts = kSize.num_experts,
                                                 .limit = kLimit,
                                                 .terms = want})
                  .ok());
  const auto* const begin = static_cast<const std::byte*>(want.view().data);
  const std::vector<std::byte> bytes(begin, begin + want.view().num_bytes());
  ASSERT_THAT(bytes, ::testing::Contains(kUntouched));  // The expert that is elsewhere was chosen.
  for (const int num_threads : {1, 2, 3}) {
    const auto host = Make(Cpu(num_threads));
    FakeDevice device(*host);
    const int32_t layer = host->AddLayer(HostsOf(p));
    const Payload payload = NewPayload(*host);
    for (int round = 0; round < 3; ++round) {
      Put(p, payload);
      std::memset(payload.terms, static_cast<int>(kUntouched), bytes.size());
      ASSERT_TRUE(device.Ask(layer, payload, kSize.num_tokens));
      EXPECT_FALSE(device.failed()) << host->failure();
      EXPECT_EQ(TermsOf(payload), bytes) << num_threads << " threads, round " << round;
    }
    EXPECT_EQ(host->counters().requests, 3);
    EXPECT_EQ(host->counters().rows, 3 * kSize.num_tokens);
    EXPECT_EQ(host->counters().experts, 3 * NumChosen(p));
  }
}

TEST(HostExperts, LayersAndShapesAreNotMixedUp) {
  const Problem p = MakeProblem();
  const auto host = Make(Cpu(2));
  FakeDevice device(*host);
  std::vector<ops::ExpertWeights> reversed = HostsOf(p);
  std::reverse(reversed.begin(), reversed.end());
  const int32_t first = host->AddLayer(HostsOf(p));
  const int32_t second = host->AddLayer(reversed);
  const Payload payload = NewPayload(*host);
  EXPECT_EQ(NewPayload(*host).terms, payload.terms);
  const auto other = host->PayloadFor(DType::kF32, kSize.dim, kSize.top_k);
  ASSERT_TRUE(other.has_value());
  EXPECT_NE(other->index, payload.index);
  Put(p, payload);
  ASSERT_TRUE(device.Ask(first, payload, kSize.num_tokens));
  const std::vector<std::byte> of_first = TermsOf(payload);
  ASSERT_TRUE(device.Ask(second, payload, kSize.num_tokens));
  EXPECT_NE(TermsOf(payload), of_first);
  ASSERT_TRUE(device.Ask(first, payload, kSize.num_tokens));
  EXPECT_EQ(TermsOf(payload), of_first);
}

TEST(HostExperts, AFailureIsToldAndTheNextRequestWorks) {
  const Problem p = MakeProblem();
  const auto host = Make(Cpu(2));
  FakeDevice device(*host);
  const int32_t layer = host->AddLayer(HostsOf(p));
  const Payload payload = NewPayload(*host);
  Put(p, payload);
  payload.indices[4] = 99;
  ASSERT_TRUE(device.Ask(layer, payload, kSize.num_tokens));
  EXPECT_TRUE(device.failed());
  EXPECT_THAT(host->failure(), ::testing::HasSubstr("indices[1, 1]: 99, want 0 to 7"));
  ASSERT_TRUE(device.Ask(layer + 7, payload, kSize.num_tokens));
  EXPECT_TRUE(device.failed());
  EXPECT_THAT(host->failure(), ::testing::HasSubstr("layer 7 of 1"));
  Put(p, payload);
  ASSERT_TRUE(device.Ask(layer, payload, kSize.num_tokens));
  EXPECT_FALSE(device.failed());
}

TEST(HostExperts, AnswersAfterItSleeps) {
  const Problem p = MakeProblem();
  const auto host = Make(Cpu(1));
  FakeDevice device(*host);
  const int32_t layer = host->AddLayer(HostsOf(p));
  const Payload payload = NewPayload(*host);
  Put(p, payload);
  ASSERT_TRUE(device.Ask(layer, payload, kSize.num_tokens));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(device.Ask(layer, payload, kSize.num_tokens));
}

TEST(HostExperts, WantsABackendWithTheOpAndMemory) {
  const auto allocate = [](size_t num_bytes) { return HostMemory().Allocate(num_bytes); };
  const auto without = HostExperts::Create({.backend = {.name = "none"}, .allocate = allocate});
  ASSERT_FALSE(without.has_value());
  EXPECT_EQ(without.error().code(), StatusCode::kUnimplemented);
  const auto no_memory = [](size_t) -> Result<Buffer> {
    return Error(ResourceExhausted("no pinned memory"));
  };
  const auto refused = HostExperts::Create({.backend = Cpu(1), .allocate = no_memory});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dsv4::test
