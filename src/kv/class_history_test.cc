// Classes of a state's last tokens against a vector that keeps all of them.
#include "kv/class_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kv/testing.h"

namespace dsv4::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const CacheLayout> Layout(int64_t look_back = 3) {
  CacheLayout layout = testing::SmallLayout();
  layout.look_back = look_back;
  return std::make_shared<const CacheLayout>(layout);
}

std::vector<int32_t> Behind(const SequenceState& state, size_t count = 3) {
  std::vector<int32_t> out(count, 77);
  state.LookBack(out);
  return out;
}

std::vector<int32_t> Wanted(const std::vector<int32_t>& all) {
  std::vector<int32_t> out;
  for (size_t k = 1; k <= 3; ++k) out.push_back(k > all.size() ? kNoClass : all[all.size() - k]);
  return out;
}

void AppendClasses(SequenceState& state, const std::vector<int32_t>& classes) {
  const Status begun = state.BeginAppend(static_cast<int64_t>(classes.size()));
  ASSERT_TRUE(begun.ok()) << begun.ToString();
  state.SetClasses(classes);
  state.CommitAppend();
}

TEST(ClassHistory, NearestFirstAndNoneBeforeTheStart) {
  auto state = SequenceState::Create(Layout(), HostMemory(), nullptr);
  ASSERT_TRUE(state.has_value());
  EXPECT_THAT(Behind(*state), ElementsAre(kNoClass, kNoClass, kNoClass));
  AppendClasses(*state, {11, 12});
  EXPECT_THAT(Behind(*state), ElementsAre(12, 11, kNoClass));
  AppendClasses(*state, {13, 14, 15});
  EXPECT_THAT(Behind(*state), ElementsAre(15, 14, 13));
  state->Reset();
  EXPECT_THAT(Behind(*state), ElementsAre(kNoClass, kNoClass, kNoClass));
}

TEST(ClassHistory, AnAppendIsSeenOnceItIsCommitted) {
  auto state = SequenceState::Create(Layout(), HostMemory(), nullptr);
  ASSERT_TRUE(state.has_value());
  AppendClasses(*state, {1, 2, 3});
  ASSERT_TRUE(state->BeginAppend(2).ok());
  state->SetClasses(std::vector<int32_t>{4, 5});
  EXPECT_THAT(Behind(*state), ElementsAre(3, 2, 1));
  state->AbandonAppend();
  EXPECT_THAT(Behind(*state), ElementsAre(3, 2, 1));
  ASSERT_TRUE(state->BeginAppend(1).ok());
  state->CommitAppend();  // Without classes.
  EXPECT_THAT(Behind(*state), ElementsAre(kNoClass, 3, 2));
}

TEST(ClassHistory, RandomAppendsRewindsForksAndCopies) {
  const auto layout = Layout();
  std::mt19937 random(3);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 200; ++round) {
    auto created = SequenceState::Create(layout, HostMemory(), nullptr);
    ASSERT_TRUE(created.has_value());
    SequenceState state = std::move(*created);
    std::vector<int32_t> all;
    while (all.size() < 60) {
      switch (draw(0, 4)) {
        case 0: {
          const int64_t count = draw(0, static_cast<int>(std::min<size_t>(3, all.size())));
          if (const Status taken = state.Rewind(count); taken.ok()) {
            all.resize(all.size() - static_cast<size_t>(count));
          }
          break;
        }
        case 1: {
          auto fork = state.Fork();
          ASSERT_TRUE(fork.has_value());
          AppendClasses(state, {1, 2, 3, 4});  // Changes no copy.
          state = std::move(*fork);
          break;
        }
        case 2: {
          auto snapshot = state.Snapshot();
          ASSERT_TRUE(snapshot.has_value());
          const auto bytes = snapshot->Serialize(5, draw(0, 3));
          ASSERT_TRUE(bytes.has_value()) << bytes.error().ToString();
          const auto read = Snapshot::Deserialize(*bytes, 5, layout, HostMemory(), nullptr);
          ASSERT_TRUE(read.has_value()) << read.error().ToString();
          state = read->Continue();
          break;
        }
        default: {
          std::vector<int32_t> classes;
          for (int i = draw(1, 9); i > 0; --i) classes.push_back(draw(-1, 1000));
          AppendClasses(state, classes);
          all.insert(all.end(), classes.begin(), classes.end());
        }
      }
      ASSERT_EQ(state.length(), static_cast<int64_t>(all.size()));
      ASSERT_EQ(Behind(state), Wanted(all)) << "round " << round << ", " << all.size() << " tokens";
    }
  }
}

TEST(ClassHistory, AlwaysGoesBackByMaxRewindAndNoFurther) {
  ClassHistory history(3, 2);
  history.Append(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_TRUE(history.CanCut(8));
  const Status status = history.Cut(7);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("taking back 3 of 10 tokens needs those from position 4, kept from 5"));
  ASSERT_TRUE(history.Cut(8).ok());
  std::vector<int32_t> out(3);
  history.LookBack(out);
  EXPECT_THAT(out, ElementsAre(7, 6, 5));
  // From the longest length, not from this one.
  EXPECT_FALSE(history.CanCut(7));
  EXPECT_TRUE(history.CanCut(0));
}

TEST(ClassHistory, AModelThatLooksBackToNoneKeepsNothing) {
  auto state = SequenceState::Create(Layout(0), HostMemory(), nullptr);
  ASSERT_TRUE(state.has_value());
  AppendClasses(*state, {1, 2, 3, 4});
  EXPECT_THAT(Behind(*state, 0), ElementsAre());
  EXPECT_TRUE(state->Rewind(3).ok());
  EXPECT_NE(Layout(0)->GeometryFingerprint(), Layout(3)->GeometryFingerprint());
  EXPECT_EQ(Layout(0)->GeometryFingerprint(), testing::SmallLayout().GeometryFingerprint());
  EXPECT_EQ(SnapshotBytes(*Layout(3), 10, 2) - SnapshotBytes(*Layout(0), 10, 2), 5 * 4);
}

}  // namespace
}  // namespace dsv4::kv
