// Which cached expert goes: the keys on traces, as the kernel uses them.
#include "backend/cuda/kernels/moe/cache_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace dsv4::backend::cuda {
namespace {

class Cache {
 public:
  Cache(int num_experts, int num_slots)
      : keys_(num_slots), used_(num_slots), owners_(num_slots, -1), slot_of_(num_experts, -1) {}

  // As ExpertCachePlanKernel.
  void Choose(const std::vector<int>& experts, bool passing = false) {
    ++call_;
    for (const int expert : experts) {
      if (!Has(expert)) continue;
      uint64_t& key = keys_[slot_of_[expert]];
      used_[slot_of_[expert]] = call_;
      if (!passing) key = CacheKeyOfChosen(key, age_, call_);
      ++hits_;
    }
    for (const int expert : experts) {
      if (Has(expert)) continue;
      ++misses_;
      int victim = -1;
      for (int slot = 0; slot < static_cast<int>(keys_.size()); ++slot) {
        if (used_[slot] != call_ && (victim < 0 || Order(slot) < Order(victim))) victim = slot;
      }
      ASSERT_GE(victim, 0);
      if (owners_[victim] >= 0) {
        slot_of_[owners_[victim]] = -1;
        age_ = std::max(age_, CacheRank(keys_[victim]));
      }
      owners_[victim] = expert;
      slot_of_[expert] = victim;
      used_[victim] = call_;
      keys_[victim] = passing ? CacheKeyOfPassing(call_) : CacheKeyOfNew(age_, call_);
    }
    for (const int expert : experts) EXPECT_TRUE(Has(expert)) << "an expert of the call itself went";
  }
  // As ExpertCacheEmptyKernel: in front of a streamed pass.
  void Empty(int first) {
    for (int slot = first; slot < static_cast<int>(keys_.size()); ++slot) {
      if (owners_[slot] >= 0) slot_of_[owners_[slot]] = -1;
      owners_[slot] = -1;
      keys_[slot] = 0;
    }
    first_reserved_ = first;
    reserved_until_ = call_ + kReservedCalls;
  }
  bool Has(int expert) const { return slot_of_[expert] >= 0; }
  double HitRate() const { return static_cast<double>(hits_) / static_cast<double>(hits_ + misses_); }
  void ForgetCounts() { hits_ = misses_ = 0; }

 private:
  uint64_t Order(int slot) const {
    const bool reserved = call_ < reserved_until_ && slot >= first_reserved_;
    return reserved ? CacheOrderOfReserved(keys_[slot]) : keys_[slot];
  }

  std::vector<uint64_t> keys_;
  std::vector<uint64_t> used_;
  std::vector<int> owners_;
  std::vector<int> slot_of_;
  uint64_t age_ = 0;
  uint64_t call_ = 0;
  uint64_t reserved_until_ = 0;
  int first_reserved_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
};

// Six of 256 experts of each of eight layers, layer after layer; expert i is chosen as often as (1 +
// i)^-skew.
double HitRate(double skew, double room) {
  constexpr int kLayers = 8;
  constexpr int kExperts = 256;
  constexpr int kTopK = 6;
  std::mt19937 random(1);
  std::vector<double> weights(kExperts);
  for (int i = 0; i < kExperts; ++i) weights[i] = std::pow(1.0 + i, -skew);
  std::discrete_distribution<int> draw(weights.begin(), weights.end());
  Cache cache(kLayers * kExperts, static_cast<int>(room * kLayers * kExperts));
  for (int token = 0; token < 600; ++token) {
    if (token == 200) cache.ForgetCounts();
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<int> chosen;
      while (chosen.size() < kTopK) {
        const int expert = layer * kExperts + draw(random);
        if (std::ranges::find(chosen, expert) == chosen.end()) chosen.push_back(expert);
      }
      cache.Choose(chosen);
    }
  }
  return cache.HitRate();
}

TEST(CachePolicy, UniformChoicesFindTheShareThatThereIsRoomFor) {
  EXPECT_NEAR(HitRate(0, 0.25), 0.25, 0.02);
  EXPECT_NEAR(HitRate(0, 0.5), 0.5, 0.02);
}

// A cache that lets the expert go that has not been used for longest finds 37.8 % and 64.6 % of these.
TEST(CachePolicy, ExpertsThatAreChosenOftenStay) {
  EXPECT_GT(HitRate(1, 0.08), 0.385);
  EXPECT_GT(HitRate(1, 0.25), 0.655);
}

TEST(CachePolicy, OneThatIsChosenOftenOutlivesManyThatAreChosenOnce) {
  Cache cache(1000, 10);
  for (int i = 0; i < 20; ++i) cache.Choose({0});
  for (int i = 1; i <= 100; ++i) cache.Choose({i});
  EXPECT_TRUE(cache.Has(0));
}

TEST(CachePolicy, OneThatWasChosenOftenLongAgoGoes) {
  Cache cache(10'000, 10);
  for (int i = 0; i < 100'000; ++i) cache.Choose({0});
  // Its rank is at most kMostAhead ahead, and nine slots age by one each time that all have gone.
  const int enough = 9 * static_cast<int>(kMostAhead + 2);
  for (int i = 1; i <= enough; ++i) cache.Choose({i});
  EXPECT_FALSE(cache.Has(0));
}

TEST(CachePolicy, OfEqualsTheOneGoesThatWasUsedFirst) {
  Cache cache(10, 3);
  cache.Choose({0});
  cache.Choose({1});
  cache.Choose({2});
  cache.Choose({3});
  EXPECT_FALSE(cache.Has(0));
  EXPECT_TRUE(cache.Has(1));
}

TEST(CachePolicy, ACallThatWantsEverySlotGetsThem) {
  Cache cache(20, 4);
  cache.Choose({0, 1, 2, 3});
  cache.Choose({2, 4, 5, 6});
  EXPECT_TRUE(cache.Has(2));
  EXPECT_FALSE(cache.Has(0));
}

// Prompts of all experts of 10 layers with 8 each, room for 4 layers. The first pass fills it, and the next
// ones find three layers again.
TEST(CachePolicy, PromptsPassThroughTheSlotsOfOneLayer) {
  constexpr int kLayers = 10;
  constexpr int kExperts = 8;
  Cache cache(kLayers * kExperts, 4 * kExperts);
  for (int pass = 0; pass < 6; ++pass) {
    if (pass == 1) cache.ForgetCounts();
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<int> all;
      for (int i = 0; i < kExperts; ++i) all.push_back(layer * kExperts + i);
      cache.Choose(all, true);
    }
  }
  EXPECT_DOUBLE_EQ(cache.HitRate(), 0.3);
}

TEST(CachePolicy, APromptLeavesExpertsThatTokensChose) {
  Cache cache(100, 20);
  for (int i = 0; i < 12; ++i) cache.Choose({i});
  for (int layer = 2; layer < 10; ++layer) {
    cache.Choose({10 * layer, 10 * layer + 1, 10 * layer + 2, 10 * layer + 3, 10 * layer + 4}, true);
  }
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(cache.Has(i)) << i;
}

TEST(CachePolicy, StepsBetweenPassesLeaveTheBuffersAlone) {
  Cache cache(100, 12);
  for (int i = 50; i < 62; ++i) cache.Choose({i});
  for (int pass = 0; pass < 5; ++pass) {
    cache.Empty(8);
    cache.ForgetCounts();
    for (int i = 0; i < 8; ++i) cache.Choose({i});
    EXPECT_DOUBLE_EQ(cache.HitRate(), pass == 0 ? 0 : 1) << "pass " << pass;
  }
  // If nothing else may go, they are taken.
  cache.Choose({0, 1, 2, 3, 4, 5, 6, 7, 20, 21});
  EXPECT_TRUE(cache.Has(20));
  EXPECT_TRUE(cache.Has(0));
}

TEST(CachePolicy, BuffersOfALongPromptAreTakenAWhileBehindIt) {
  Cache cache(100, 12);
  cache.Empty(8);
  for (uint64_t i = 0; i < kReservedCalls; ++i) cache.Choose({static_cast<int>(i % 8)});
  for (int i = 8; i < 12; ++i) cache.Choose({i});
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(cache.Has(i)) << i;
}

}  // namespace
}  // namespace dsv4::backend::cuda
