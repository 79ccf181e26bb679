// Tests of the prefix store: longest prefixes, rewinds, worth of states, shared pages, eviction, blocks for
// routers.
#include "engine/prefix_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kv/testing.h"

namespace dsv4::engine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Count(int32_t begin, int32_t end) {
  Tokens tokens;
  for (int32_t i = begin; i < end; ++i) tokens.push_back(i);
  return tokens;
}

Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefixStoreTest : public ::testing::Test {
 protected:
  kv::SequenceState NewState() { return *kv::SequenceState::Create(layout_, HostMemory(), nullptr); }
  // A state of `length` tokens, written by `branch`.
  kv::SequenceState State(int64_t length, int branch = 1) {
    kv::SequenceState state = NewState();
    Grow(state, length, branch);
    return state;
  }
  void Grow(kv::SequenceState& state, int64_t length, int branch) {
    while (state.length() < length) {
      kv::testing::Append(state, std::min(length - state.length(), layout_->max_chunk_tokens), branch);
    }
  }
  static int64_t LengthOf(const std::optional<kv::SequenceState>& state) {
    return state ? state->length() : 0;
  }

  std::shared_ptr<const kv::CacheLayout> layout_ =
      std::make_shared<kv::CacheLayout>(kv::testing::SmallLayout());
  int64_t plenty_ = int64_t{1} << 30;
};

// Follows a store by what it is told alone.
class Follower final : public BlockWatcher {
 public:
  void OnStored(StoredBlocks blocks) override {
    EXPECT_EQ(blocks.tokens.size(), blocks.hashes.size() * 8);
    if (blocks.has_parent) {
      EXPECT_TRUE(known.contains(blocks.parent));
    }
    for (const uint64_t hash : blocks.hashes) EXPECT_TRUE(known.insert(hash).second);
    ++num_stored;
  }
  void OnRemoved(std::vector<uint64_t> hashes) override {
    for (const uint64_t hash : hashes) EXPECT_EQ(known.erase(hash), 1U);
    ++num_removed;
  }
  void OnCleared() override {
    known.clear();
    ++num_cleared;
  }
  std::vector<uint64_t> Known() const { return {known.begin(), known.end()}; }

  std::set<uint64_t> known;
  int num_stored = 0;
  int num_removed = 0;
  int num_cleared = 0;
};

TEST_F(PrefixStoreTest, AFollowerKnowsEveryBlock) {
  // Room for a few states, so that most keeps evict; few letters, so that paths part anywhere.
  Follower follower;
  PrefixStore store(12 * kv::StateBytes(*layout_, 64), {*layout_}, 8, &follower);
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    Tokens tokens(std::uniform_int_distribution<size_t>(17, 64)(random));
    const int32_t same = std::uniform_int_distribution<int32_t>(0, 63)(random);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] =
          static_cast<int32_t>(i) < same ? static_cast<int32_t>(i) : static_cast<int32_t>(random() % 3);
    store.Keep(random() % 2, tokens, State(static_cast<int64_t>(tokens.size())));
    if (random() % 7 == 0) store.EvictOne();
    if (round % 500 == 499) store.Clear();
    ASSERT_EQ(follower.Known(), store.Blocks()) << "round " << round;
  }
  EXPECT_GT(follower.num_stored, 1000);
  EXPECT_GT(follower.num_removed, 1000);
  EXPECT_EQ(follower.num_cleared, 4);
}

TEST_F(PrefixStoreTest, ABlockStandsForAllInFrontOfIt) {
  Follower follower;
  PrefixStore store(plenty_, {*layout_}, 8, &follower);
  store.Keep(5, Count(0, 30), State(30));
  const uint64_t first = HashBlock(5, Count(0, 8));
  const uint64_t second = HashBlock(first, Count(8, 16));
  std::vector<uint64_t> wanted = {first, second, HashBlock(second, Count(16, 24))};
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(store.Blocks(), wanted);
  EXPECT_EQ(follower.Known(), wanted);
}

TEST_F(PrefixStoreTest, FindsTheLongestKeptProperPrefix) {
  PrefixStore store(plenty_, {*layout_});
  store.Keep(0, Count(0, 20), State(20));
  store.Keep(0, Count(0, 60), State(60));
  EXPECT_EQ(LengthOf(store.Find(0, Count(0, 100))), 60);
  EXPECT_EQ(LengthOf(store.Find(0, Join(Count(0, 50), {7, 7}))), 20);
  EXPECT_EQ(LengthOf(store.Find(0, Count(0, 20))), 19);  // The last token is always computed.
  EXPECT_EQ(LengthOf(store.Find(0, Tokens{5, 6, 7})), 0);
  EXPECT_EQ(LengthOf(store.Find(0, Tokens{})), 0);
  EXPECT_EQ(LengthOf(store.Find(1, Count(0, 100))), 0);
  EXPECT_EQ(store.SharedLength(0, Join(Count(0, 50), {7, 7})), 50);
}

TEST_F(PrefixStoreTest, TakesBackAStateThatRunsPastTheCommonPartAsFarAsItsRingsReach) {
  PrefixStore store(plenty_, {*layout_});
  store.Keep(0, Count(0, 60), State(60));
  const int64_t reach = layout_->max_rewind_tokens;
  for (int64_t past = 1; past <= reach; ++past) {
    const std::optional<kv::SequenceState> state =
        store.Find(0, Join(Count(0, static_cast<int32_t>(60 - past)), {99, 99}));
    ASSERT_EQ(LengthOf(state), 60 - past);
    kv::testing::Shadow shadow(layout_);
    shadow.Append(60 - past, 1);
    kv::testing::ExpectEqual(*state, shadow);
  }
  EXPECT_EQ(LengthOf(store.Find(0, Join(Count(0, 30), {99, 99}))), 0);
}

TEST_F(PrefixStoreTest, NothingIsKeptForLessThanItCosts) {
  PrefixStore store(plenty_, {*layout_});
  store.Keep(0, Count(0, 60), State(60));
  store.Keep(0, Count(0, 60), State(60));
  store.Keep(0, Count(0, static_cast<int32_t>(60 + PrefixStore::kMinGain - 1)),
             State(60 + PrefixStore::kMinGain - 1));
  EXPECT_EQ(store.num_states(), 1);
  store.Keep(0, Count(0, static_cast<int32_t>(60 + PrefixStore::kMinGain)),
             State(60 + PrefixStore::kMinGain));
  EXPECT_EQ(store.num_states(), 2);
}

TEST_F(PrefixStoreTest, TheLeastRecentlyUsedGoes) {
  const int64_t one = kv::StateBytes(*layout_, 60);
  PrefixStore store(2 * one, {*layout_});
  store.Keep(0, Join({1}, Count(0, 59)), State(60));
  store.Keep(0, Join({2}, Count(0, 59)), State(60));
  EXPECT_EQ(LengthOf(store.Find(0, Join({1}, Count(0, 100)))), 60);
  store.Keep(0, Join({3}, Count(0, 59)), State(60));
  EXPECT_EQ(store.num_evictions(), 1);
  EXPECT_EQ(LengthOf(store.Find(0, Join({1}, Count(0, 100)))), 60);
  EXPECT_EQ(LengthOf(store.Find(0, Join({2}, Count(0, 100)))), 0);
  EXPECT_EQ(LengthOf(store.Find(0, Join({3}, Count(0, 100)))), 60);
  EXPECT_LE(store.num_bytes(), 2 * one);
}

TEST_F(PrefixStoreTest, SharedPagesCountOnceAndForTheSurvivorWhenTheirFirstOwnerGoes) {
  PrefixStore store(plenty_, {*layout_});
  kv::SequenceState state = State(80);
  store.Keep(0, Count(0, 80), state);
  const int64_t first = store.num_bytes();
  EXPECT_EQ(first, kv::StateBytes(*layout_, 80));
  Grow(state, 120, 1);
  store.Keep(0, Count(0, 120), state);
  EXPECT_LT(store.num_bytes(), first + kv::StateBytes(*layout_, 120));
  ASSERT_TRUE(store.EvictOne());  // The shorter one.
  EXPECT_EQ(store.num_bytes(), kv::StateBytes(*layout_, 120));
  ASSERT_TRUE(store.EvictOne());
  EXPECT_EQ(store.num_bytes(), 0);
  EXPECT_FALSE(store.EvictOne());
}

TEST_F(PrefixStoreTest, ABudgetIsThatOfTheStageThatKeepsMost) {
  // Without pages on the first stage, and with more on the second.
  kv::CacheLayout windows = *layout_;
  windows.layers.resize(1);
  kv::CacheLayout fuller = *layout_;
  fuller.layers.push_back(fuller.layers[1]);
  layout_ = std::make_shared<kv::CacheLayout>(windows);
  const int64_t one = kv::StateBytes(fuller, 80);
  ASSERT_GT(one, 2 * kv::StateBytes(windows, 80));
  PrefixStore store(2 * one - 1, {windows, fuller});
  kv::SequenceState state = State(80);
  store.Keep(0, Count(0, 80), state);
  EXPECT_EQ(store.num_bytes(), one);
  Grow(state, 120, 1);
  store.Keep(0, Count(0, 120), state);  // Whole pages of the first 80 tokens are there once.
  EXPECT_EQ(store.num_bytes(), one + kv::StateBytes(fuller, 120) - kv::WholePageBytes(fuller, 80));
  EXPECT_EQ(store.num_states(), 2);
  store.Keep(0, Join({9}, Count(0, 79)), State(80));
  EXPECT_LE(store.num_bytes(), 2 * one - 1);
  EXPECT_GT(store.num_evictions(), 0);
}

// Ranks that divide the sequences: this one is told of a sequence whose rows another has.
TEST_F(PrefixStoreTest, AStateWhoseRowsAreElsewhereCountsAsMuch) {
  const auto bytes_of = [&](bool here) {
    PrefixStore store(plenty_, {*layout_});
    kv::SequenceState state =
        *kv::SequenceState::Create(layout_, HostMemory(), nullptr, nullptr, {.place = 1, .here = here});
    std::vector<int64_t> bytes;
    for (const int64_t length : {40, 80, 120}) {
      while (state.length() < length) {
        EXPECT_TRUE(state.BeginAppend(std::min(length - state.length(), layout_->max_chunk_tokens)).ok());
        state.CommitAppend();
      }
      store.Keep(0, Count(0, static_cast<int32_t>(length)), state);
      bytes.push_back(store.num_bytes());
    }
    return bytes;
  };
  EXPECT_EQ(bytes_of(false), bytes_of(true));
  EXPECT_LT(bytes_of(true).back(),
            kv::StateBytes(*layout_, 40) + kv::StateBytes(*layout_, 80) + kv::StateBytes(*layout_, 120));
}

TEST_F(PrefixStoreTest, WithoutABudgetNothingIsKept) {
  PrefixStore store(0, {*layout_});
  EXPECT_FALSE(store.enabled());
  store.Keep(0, Count(0, 60), State(60));
  EXPECT_EQ(store.num_states(), 0);
}

// Against a list of all that was kept: the store finds exactly what is there, whatever was split, joined and
// evicted.
TEST_F(PrefixStoreTest, RandomTrafficAgreesWithAPlainList) {
  std::mt19937 random(4);
  const auto tokens_of = [&](size_t length) {
    Tokens tokens(length);
    for (int32_t& token : tokens) token = random() % 12 == 0 ? 1 : 0;  // Long common beginnings.
    return tokens;
  };
  PrefixStore store(6 * kv::StateBytes(*layout_, 100), {*layout_});
  std::vector<Tokens> kept;
  int64_t num_hits = 0;
  for (int round = 0; round < 2000; ++round) {
    const Tokens tokens = tokens_of(10 + random() % 90);
    if (round % 2 == 0) {
      store.Keep(0, tokens, State(static_cast<int64_t>(tokens.size())));
      kept.push_back(tokens);
      continue;
    }
    const std::optional<kv::SequenceState> state = store.Find(0, tokens);
    if (!state) continue;
    ++num_hits;
    ASSERT_LT(state->length(), static_cast<int64_t>(tokens.size()));
    const bool known = std::any_of(kept.begin(), kept.end(), [&](const Tokens& candidate) {
      const auto length = static_cast<size_t>(state->length());
      return candidate.size() >= length &&
             std::equal(tokens.begin(), tokens.begin() + state->length(), candidate.begin());
    });
    ASSERT_TRUE(known);
    kv::testing::Shadow shadow(layout_);
    shadow.Append(state->length(), 1);
    kv::testing::ExpectEqual(*state, shadow);
  }
  EXPECT_GT(num_hits, 50);
  EXPECT_GT(store.num_evictions(), 50);
  EXPECT_LE(store.num_bytes(), 6 * kv::StateBytes(*layout_, 100));
  while (store.EvictOne()) {
  }
  EXPECT_EQ(store.num_bytes(), 0);
}

}  // namespace
}  // namespace dsv4::engine
