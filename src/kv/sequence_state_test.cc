// SequenceState against a model of itself that keeps every row for ever, over random sequences of operations.
#include "kv/sequence_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "kv/snapshot.h"
#include "kv/testing.h"

namespace dsv4::kv {
namespace {

using ::testing::HasSubstr;

TEST(CacheLayout, CapacitiesAndNeededRows) {
  const CacheLayout layout = testing::SmallLayout();
  EXPECT_EQ(layout.RingCapacity(1, RingKind::kWindow), 5 - 1 + 3);
  EXPECT_EQ(layout.RingCapacity(1, RingKind::kCompressorValues), 2 * 4 - 1 + 3);
  EXPECT_EQ(layout.RingCapacity(2, RingKind::kCompressorScores), 7 - 1 + 3);
  EXPECT_EQ(layout.FirstNeededRow(0, RingKind::kWindow, 3), 0);
  EXPECT_EQ(layout.FirstNeededRow(0, RingKind::kWindow, 10), 6);
  EXPECT_EQ(layout.FirstNeededRow(1, RingKind::kCompressorValues, 11), 4);  // Blocks 1 and 2.
  EXPECT_EQ(layout.FirstNeededRow(1, RingKind::kCompressorValues, 3), 0);
  EXPECT_EQ(layout.FirstNeededRow(2, RingKind::kCompressorValues, 14), 14);  // Nothing is unfinished.
  EXPECT_FALSE(layout.HasRing(2, RingKind::kIndexerValues));
  EXPECT_TRUE(layout.HasPages(1, PageKind::kIndexerKeys));
}

// A prompt that is half read, in steps of 6, until 30 tokens of it have been.
TEST(SequenceState, WhatLacksRowsIsNotWhole) {
  SequenceState state =
      *SequenceState::Create(std::make_shared<CacheLayout>(testing::SmallLayout()), HostMemory(), nullptr);
  const auto append = [&](int64_t count, int64_t whole_from) {
    ASSERT_TRUE(state.BeginAppend(count).ok());
    if (whole_from > 0) state.LeaveOut(whole_from);
    state.CommitAppend();
  };
  append(5, 0);
  EXPECT_TRUE(state.whole());
  append(6, 30);
  EXPECT_FALSE(state.whole());
  EXPECT_EQ(state.whole_from(), 30);
  const Result<std::vector<std::byte>> bytes = state.Snapshot()->Serialize(1);
  ASSERT_FALSE(bytes.has_value());
  EXPECT_THAT(bytes.error().message(), HasSubstr("at 11 tokens of a prompt that is read to 30"));
  EXPECT_THAT(state.Rewind(2).message(),
              HasSubstr("rows of a prompt's beginning were left out, want 30 or more"));
  EXPECT_FALSE(state.Fork()->whole());
  // A failed append changes nothing; a state that is taken back far enough is whole.
  ASSERT_TRUE(state.BeginAppend(3).ok());
  state.LeaveOut(50);
  state.AbandonAppend();
  EXPECT_EQ(state.whole_from(), 30);
  SequenceState back = *state.Fork();
  back.RollBack(5);
  EXPECT_TRUE(back.whole());
  append(6, 30);
  append(6, 0);
  append(6, 0);
  append(3, 0);
  EXPECT_EQ(state.length(), 32);
  EXPECT_TRUE(state.whole());
  EXPECT_TRUE(state.Snapshot()->Serialize(1).has_value());
  EXPECT_EQ(state.Rewind(3).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(state.Rewind(2).ok());
  // Rows behind may be left out again.
  append(6, 0);
  append(6, 60);
  EXPECT_FALSE(state.whole());
  state.Reset();
  EXPECT_TRUE(state.whole());
}

// A draft block behind the layers.
CacheLayout LayoutWithDrafts() {
  CacheLayout layout = testing::SmallLayout();
  layout.layers.push_back({.width = layout.layers[0].width, .draft_width = 12});
  layout.max_rewind_tokens = 9;
  return layout;
}

TEST(CacheLayout, ADraftBlockHasRowsOfItsOwn) {
  const CacheLayout layout = LayoutWithDrafts();
  EXPECT_TRUE(Validate(layout).ok());
  EXPECT_EQ(layout.DraftLayer(), 3);
  EXPECT_EQ(testing::SmallLayout().DraftLayer(), -1);
  EXPECT_FALSE(layout.HasRing(0, RingKind::kDraftStreams));
  EXPECT_EQ(layout.RingWidth(3, RingKind::kDraftStreams), 12);
  EXPECT_EQ(layout.RingRowBytes(3, RingKind::kDraftTokens), 4);
  EXPECT_EQ(layout.RingCapacity(3, RingKind::kDraftStreams), kDraftBlock + 1 + 9);
  // The first query of a draft is at the last position, and up to kMostDraftRows come behind it.
  EXPECT_EQ(layout.RingCapacity(3, RingKind::kWindow), 5 + 9 + kMostDraftRows);
  EXPECT_EQ(layout.FirstNeededRow(3, RingKind::kWindow, 10), 5);
  // The last slot's token is never known yet.
  for (const auto& [length, slots] :
       std::map<int64_t, int64_t>{{0, 0}, {1, 0}, {16, 0}, {17, 16}, {40, 32}}) {
    EXPECT_EQ(CacheLayout::DraftSlots(length), slots) << length;
    EXPECT_EQ(layout.FirstNeededRow(3, RingKind::kDraftStreams, length), slots) << length;
  }
  EXPECT_NE(layout.GeometryFingerprint(), testing::SmallLayout().GeometryFingerprint());
}

TEST(SequenceState, DraftRowsComeWhenTheyAreMade) {
  Memory& memory = HostMemory();
  auto layout = std::make_shared<const CacheLayout>(LayoutWithDrafts());
  auto state = SequenceState::Create(layout, memory, nullptr);
  ASSERT_TRUE(state.has_value());
  EXPECT_THAT(state->BeginDraft().message(), HasSubstr("want at least 1"));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(state->BeginAppend(8).ok());
    state->CommitAppend();
  }
  EXPECT_EQ(state->num_draft_slots(), 32);
  auto fork = state->Fork();
  ASSERT_TRUE(fork.has_value());
  ASSERT_TRUE(state->BeginDraft().ok());
  state->UseDraftRows(32, 8);
  std::vector<RowRun> runs;
  state->WindowRuns(3, 0, &runs);
  const RingRows ring = state->Ring(3, RingKind::kWindow);
  ASSERT_FALSE(runs.empty());
  EXPECT_EQ(runs[0].destination, static_cast<std::byte*>(ring.data) + 32 % ring.capacity * ring.RowBytes());
  // The copy keeps the rows as they were.
  ASSERT_TRUE(fork->BeginAppend(1).ok());
  EXPECT_NE(fork->Ring(3, RingKind::kWindow).data, ring.data);
  fork->AbandonAppend();
  state->EndDraft(/*made=*/true);
  EXPECT_EQ(state->num_draft_slots(), 39);
  EXPECT_EQ(fork->num_draft_slots(), 32);
  ASSERT_TRUE(state->Rewind(3).ok());
  EXPECT_EQ(state->num_draft_slots(), 36);
  ASSERT_TRUE(state->BeginDraft().ok());
  state->EndDraft(/*made=*/false);
  EXPECT_EQ(state->num_draft_slots(), 36);
  state->Reset();
  EXPECT_EQ(state->num_draft_slots(), 0);
  auto without =
      SequenceState::Create(std::make_shared<const CacheLayout>(testing::SmallLayout()), memory, nullptr);
  EXPECT_THAT(without->BeginDraft().message(), HasSubstr("no drafter"));
}

TEST(CacheLayout, ValidateNamesTheField) {
  CacheLayout layout = testing::SmallLayout();
  layout.window_size = 0;
  EXPECT_THAT(Validate(layout).ToString(), HasSubstr("window_size: got 0"));
  layout = testing::SmallLayout();
  layout.layers[2].width = -1;
  EXPECT_THAT(Validate(layout).ToString(), HasSubstr("layer 2: cache layout, width: got -1"));
  layout = testing::SmallLayout();
  layout.layers[0].indexer_width = 8;
  EXPECT_THAT(Validate(layout).ToString(), HasSubstr("layer 0: cache layout, indexer_width"));
  layout = testing::SmallLayout();
  layout.window_format = DType::kI32;
  EXPECT_THAT(Validate(layout).ToString(), HasSubstr("layer 0: window: cache format, dtype: got I32"));
  layout = testing::SmallLayout();
  layout.entry_format = CacheFormat::Fp8(64, 64);
  EXPECT_THAT(Validate(layout).ToString(), HasSubstr("layer 1: entries: cache format 64 x E4M3"));
  layout = testing::SmallLayout();
  layout.key_format = CacheFormat::Fp4(4, 4);
  EXPECT_THAT(Validate(layout).ToString(), HasSubstr("layer 1: indexer keys: cache format 4 x E2M1"));
  EXPECT_THAT(Validate(testing::SmallLayout({3, 3})).ToString(), HasSubstr("shard: got 3, want 0 to 2"));
}

TEST(CacheLayout, FingerprintSeesGeometryOnly) {
  const CacheLayout layout = testing::SmallLayout();
  CacheLayout other = layout;
  other.max_chunk_tokens = 77;
  other.rows_per_page = 5;
  EXPECT_EQ(layout.GeometryFingerprint(), other.GeometryFingerprint());
  other.layers[1].overlap = false;
  EXPECT_NE(layout.GeometryFingerprint(), other.GeometryFingerprint());
  EXPECT_NE(layout.GeometryFingerprint(), testing::SmallLayout({1, 2}).GeometryFingerprint());
}

// Ranks that divide a sequence have all its rows together, none of them more than one row more than another,
// at every length.
TEST(CacheLayout, ShardsAreEvenAtEveryLength) {
  for (const int64_t count : {2, 3, 4, 7}) {
    for (int64_t length = 0; length <= 200; ++length) {
      const CacheLayout whole = testing::SmallLayout();
      for (const int layer : {1, 2}) {
        int64_t total = 0;
        for (int64_t index = 0; index < count; ++index) {
          const int64_t rows = testing::SmallLayout({index, count}).NumEntryRows(layer, length);
          EXPECT_LE(rows, testing::SmallLayout({0, count}).NumEntryRows(layer, length));
          EXPECT_GE(rows + 1, testing::SmallLayout({0, count}).NumEntryRows(layer, length));
          total += rows;
        }
        EXPECT_EQ(total, whole.NumEntries(layer, length));
      }
    }
    EXPECT_DOUBLE_EQ(BytesPerToken(testing::SmallLayout({0, count})) * static_cast<double>(count),
                     BytesPerToken(testing::SmallLayout()));
  }
}

class SequenceStateTest : public ::testing::Test {
 protected:
  SequenceState NewState() {
    auto state = SequenceState::Create(layout_, HostMemory(), nullptr);
    EXPECT_TRUE(state.has_value());
    return std::move(*state);
  }
  std::shared_ptr<const CacheLayout> layout_ = std::make_shared<CacheLayout>(testing::SmallLayout());
};

TEST_F(SequenceStateTest, BadAppendsChangeNothing) {
  SequenceState state = NewState();
  testing::Append(state, 9, /*branch=*/1);
  EXPECT_THAT(state.BeginAppend(0).ToString(), HasSubstr("got 0 tokens"));
  EXPECT_THAT(state.BeginAppend(10).ToString(), HasSubstr("max_chunk_tokens 9"));
  EXPECT_EQ(state.length(), 9);
  ASSERT_TRUE(state.BeginAppend(2).ok());
  EXPECT_EQ(state.BeginAppend(2).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(state.Rewind(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(state.Fork().has_value());
  EXPECT_FALSE(state.Snapshot().has_value());
  state.AbandonAppend();
  EXPECT_FALSE(state.poisoned());
  while (state.length() + 9 <= layout_->max_positions) testing::Append(state, 9, 1);
  EXPECT_EQ(state.BeginAppend(9).code(), StatusCode::kOutOfRange);
}

TEST_F(SequenceStateTest, RewindBeyondTheKeptRowsIsRefused) {
  SequenceState state = NewState();
  for (int i = 0; i < 4; ++i) testing::Append(state, 9, 1);
  EXPECT_THAT(state.Rewind(37).ToString(), HasSubstr("got 37 tokens"));
  EXPECT_THAT(state.Rewind(-1).ToString(), HasSubstr("got -1 tokens"));
  const Status status = state.Rewind(20);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("needs rows from position 12"));
  EXPECT_EQ(state.length(), 36);
  ASSERT_TRUE(state.Rewind(3).ok());
  EXPECT_EQ(state.length(), 33);
}

TEST_F(SequenceStateTest, MaxRewindTokensCanAlwaysBeTakenBack) {
  for (int length = 1; length < 80; ++length) {
    SequenceState state = NewState();
    while (state.length() < length) testing::Append(state, std::min<int64_t>(9, length - state.length()), 1);
    const int64_t back = std::min<int64_t>(layout_->max_rewind_tokens, length);
    ASSERT_TRUE(state.Rewind(back).ok()) << length;
  }
}

TEST_F(SequenceStateTest, AbandonedLongAppendPoisonsUntilReset) {
  SequenceState state = NewState();
  testing::Append(state, 9, 1);
  testing::Append(state, 9, 1);
  auto before = state.Snapshot();
  ASSERT_TRUE(before.has_value());
  ASSERT_TRUE(state.BeginAppend(9).ok());
  state.AbandonAppend();
  EXPECT_TRUE(state.poisoned());
  EXPECT_THAT(state.BeginAppend(1).ToString(), HasSubstr("Reset or Restore"));
  EXPECT_EQ(state.Rewind(0).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(state.Restore(*before).ok());
  EXPECT_FALSE(state.poisoned());
  EXPECT_EQ(state.length(), 18);
  ASSERT_TRUE(state.BeginAppend(9).ok());
  state.AbandonAppend();
  state.Reset();
  EXPECT_EQ(state.length(), 0);
  testing::Append(state, 9, 2);
}

TEST_F(SequenceStateTest, AbandonedFirstChunkLeavesAnEmptyUsableState) {
  SequenceState state = NewState();
  ASSERT_TRUE(state.BeginAppend(9).ok());
  state.AbandonAppend();
  EXPECT_FALSE(state.poisoned());
  testing::Append(state, 5, 1);
  EXPECT_TRUE(state.Rewind(3).ok());  // The rows of the new append count as present.
}

TEST_F(SequenceStateTest, RollBackUndoesCommittedAndOpenAppends) {
  SequenceState state = NewState();
  testing::Shadow shadow(layout_);
  for (int i = 0; i < 3; ++i) {
    testing::Append(state, 7, 1);
    shadow.Append(7, 1);
  }
  testing::Append(state, 2, 2);
  testing::BeginAndWrite(state, 1, 2);
  state.RollBack(21);
  EXPECT_FALSE(state.poisoned());
  testing::ExpectEqual(state, shadow);
  testing::Append(state, 9, 3);
  state.RollBack(21);
  EXPECT_TRUE(state.poisoned());
  EXPECT_EQ(state.length(), 21);
}

TEST_F(SequenceStateTest, FailedAllocationsLeaveTheStateAsItWas) {
  testing::FailingMemory memory;
  auto created = SequenceState::Create(layout_, memory, nullptr);
  ASSERT_TRUE(created.has_value());
  testing::Shadow shadow(layout_);
  testing::Append(*created, 9, 1);
  shadow.Append(9, 1);
  // The rings and one page each of entries and indexer keys are shared with a fork: three allocations.
  for (int allowed = 0; allowed < 3; ++allowed) {
    auto fork = created->Fork();
    ASSERT_TRUE(fork.has_value());
    memory.FailAfter(allowed);
    const Status status = fork->BeginAppend(3);
    memory.FailAfter(-1);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << allowed;
    EXPECT_FALSE(fork->appending());
    testing::ExpectEqual(*fork, shadow);
  }
  auto fork = created->Fork();
  ASSERT_TRUE(fork.has_value());
  memory.FailAfter(3);
  testing::Append(*fork, 3, 2);
  memory.FailAfter(-1);
  testing::ExpectEqual(*created, shadow);
  shadow.Append(3, 2);
  testing::ExpectEqual(*fork, shadow);
}

// A rank without a sequence's rows knows what it may ask for.
TEST_F(SequenceStateTest, WithItsRowsElsewhereItAnswersTheSame) {
  const auto create = [&](bool here) {
    return SequenceState::Create(layout_, HostMemory(), nullptr, nullptr, {.place = 1, .here = here}).value();
  };
  SequenceState near = create(true);
  SequenceState far = create(false);
  std::mt19937 random(5);
  int refused = 0;
  int poisoned = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto n = static_cast<int64_t>(random() % 14);
    Status of_near;
    Status of_far;
    switch (random() % 6) {
      case 0:
        of_near = near.Rewind(n);
        of_far = far.Rewind(n);
        break;
      case 1:
        if (!near.BeginAppend(n).ok()) break;
        ASSERT_TRUE(far.BeginAppend(n).ok());
        near.AbandonAppend();
        far.AbandonAppend();
        break;
      case 2: {
        const auto fork = far.Fork();
        ASSERT_EQ(fork.has_value(), near.Fork().has_value());
        if (fork) {
          EXPECT_EQ(fork->home().place, 1);
          EXPECT_FALSE(fork->home().here);
        }
        break;
      }
      default:
        of_near = near.BeginAppend(n);
        of_far = far.BeginAppend(n);
        if (of_near.ok()) near.CommitAppend();
        if (of_far.ok()) far.CommitAppend();
    }
    ASSERT_EQ(of_near.ToString(), of_far.ToString());
    ASSERT_EQ(near.length(), far.length());
    ASSERT_EQ(near.poisoned(), far.poisoned());
    refused += of_near.ok() ? 0 : 1;
    if (!near.poisoned()) continue;
    ++poisoned;
    near.Reset();
    far.Reset();
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(poisoned, 10);
}

// The next state goes where the fewest are; copies are where their source is, and count.
TEST_F(SequenceStateTest, StatesGoWhereTheFewestAre) {
  const auto journal = std::make_shared<StateJournal>(3);
  const auto create = [&] {
    return SequenceState::Create(layout_, HostMemory(), nullptr, journal,
                                 {.place = journal->FreestPlace(), .here = false})
        .value();
  };
  std::vector<SequenceState> states;
  for (const int want : {0, 1, 2, 0}) {
    states.push_back(create());
    EXPECT_EQ(states.back().home().place, want);
  }
  states.push_back(states[1].Fork().value());
  EXPECT_EQ(create().home().place, 2);
  states.erase(states.begin());  // Rank 0's state, so that it has one, as 2 has.
  EXPECT_EQ(create().home().place, 0);
}

TEST_F(SequenceStateTest, RestoreOfAnotherLayoutIsRefused) {
  SequenceState state = NewState();
  const auto other_layout = std::make_shared<CacheLayout>(testing::SmallLayout());
  auto other = SequenceState::Create(other_layout, HostMemory(), nullptr);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(state.Restore(*other->Snapshot()).code(), StatusCode::kInvalidArgument);
}

// With all entries, and as one of several ranks that divide them; the last of 40 has none for long.
class ShardedStateTest : public SequenceStateTest, public ::testing::WithParamInterface<EntryShard> {
 protected:
  ShardedStateTest() { layout_ = std::make_shared<CacheLayout>(testing::SmallLayout(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(Shards, ShardedStateTest,
                         ::testing::Values(EntryShard{0, 1}, EntryShard{0, 3}, EntryShard{2, 3},
                                           EntryShard{1, 2}, EntryShard{39, 40}));

// Any interleaving of appends, failed appends, rewinds, forks, snapshots, restores and resets leaves every
// sequence with exactly the rows it should have.
TEST_P(ShardedStateTest, RandomOperationsAgreeWithTheShadow) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    std::vector<SequenceState> states;
    std::vector<testing::Shadow> shadows;
    std::vector<std::pair<Snapshot, testing::Shadow>> snapshots;
    states.push_back(NewState());
    shadows.emplace_back(layout_);
    int branch = 0;
    for (int step = 0; step < 150; ++step) {
      const auto i = static_cast<size_t>(below(static_cast<int64_t>(states.size())));
      SequenceState& state = states[i];
      testing::Shadow& shadow = shadows[i];
      ++branch;
      switch (below(10)) {
        case 0:
        case 1:
        case 2:
        case 3: {
          const int64_t room = layout_->max_positions - state.length();
          if (room == 0) break;
          const int64_t n = 1 + below(std::min<int64_t>(9, room));
          testing::Append(state, n, branch);
          shadow.Append(n, branch);
          break;
        }
        case 4: {  // A failed step that wrote its rows before it failed.
          const int64_t n = 1 + below(layout_->max_rewind_tokens);
          if (n > layout_->max_positions - state.length()) break;
          testing::BeginAndWrite(state, n, branch);
          state.AbandonAppend();
          ASSERT_FALSE(state.poisoned());
          break;
        }
        case 5: {
          const int64_t n = below(std::min<int64_t>(13, state.length() + 1));
          if (state.Rewind(n).ok()) {
            shadow.Rewind(n);
          } else {
            ASSERT_GT(n, 0);
          }
          break;
        }
        case 6: {
          if (states.size() > 5) break;
          auto fork = state.Fork();
          ASSERT_TRUE(fork.has_value());
          const testing::Shadow copy = shadow;
          states.push_back(std::move(*fork));
          shadows.push_back(copy);
          break;
        }
        case 7: {
          auto snapshot = state.Snapshot();
          ASSERT_TRUE(snapshot.has_value());
          snapshots.emplace_back(*snapshot, shadow);
          break;
        }
        case 8: {
          if (snapshots.empty()) break;
          const auto& [snapshot, kept] =
              snapshots[static_cast<size_t>(below(static_cast<int64_t>(snapshots.size())))];
          ASSERT_TRUE(state.Restore(snapshot).ok());
          shadow = kept;
          break;
        }
        default:
          if (below(4) != 0) break;
          state.Reset();
          shadow = testing::Shadow(layout_);
      }
      for (size_t k = 0; k < states.size(); ++k) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed << " step " << step << " state " << k);
        testing::ExpectEqual(states[k], shadows[k]);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::kv
