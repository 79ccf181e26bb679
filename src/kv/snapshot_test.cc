// Tests of snapshots: round trips at every length, rewinds, truncation, flipped bytes, forged headers, other
// origins.
#include "kv/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <random>

#include "kv/random_rows.h"
#include "kv/testing.h"

namespace dsv4::kv {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kOrigin = 42;

class SnapshotTest : public ::testing::Test {
 protected:
  // A sequence of `length` tokens and its shadow, appended in chunks of at most 9.
  std::pair<SequenceState, testing::Shadow> Make(int64_t length) {
    SequenceState state = std::move(*SequenceState::Create(layout_, HostMemory(), nullptr));
    testing::Shadow shadow(layout_);
    for (int branch = 1; state.length() < length; ++branch) {
      const int64_t n = std::min<int64_t>(1 + branch % 9, length - state.length());
      testing::Append(state, n, branch);
      shadow.Append(n, branch);
    }
    return {std::move(state), shadow};
  }
  std::vector<std::byte> Bytes(int64_t length) { return *Make(length).first.Snapshot()->Serialize(kOrigin); }
  Status ReadStatus(std::span<const std::byte> bytes, std::shared_ptr<const CacheLayout> layout = nullptr) {
    auto snapshot = Snapshot::Deserialize(bytes, kOrigin, layout ? layout : layout_, HostMemory(), nullptr);
    return snapshot.has_value() ? Status() : snapshot.error();
  }
  // Makes the header hash right again after a field was changed.
  static void SealHeader(std::vector<std::byte>& bytes) {
    const uint64_t hash = XXH3_64bits(bytes.data(), 64);
    std::memcpy(bytes.data() + 64, &hash, sizeof(hash));
  }
  template <typename T>
  static void Put(std::vector<std::byte>& bytes, size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
    SealHeader(bytes);
  }

  std::shared_ptr<const CacheLayout> layout_ = std::make_shared<CacheLayout>(testing::SmallLayout());
};

TEST_F(SnapshotTest, RoundTripAtEveryLength) {
  for (int64_t length = 0; length < 90; ++length) {
    SCOPED_TRACE(length);
    auto [state, shadow] = Make(length);
    const std::vector<std::byte> bytes = *state.Snapshot()->Serialize(kOrigin);
    // Another page size and other capacities on the reading side.
    auto changed = std::make_shared<CacheLayout>(testing::SmallLayout());
    changed->rows_per_page = 7;
    changed->max_chunk_tokens = 20;
    changed->max_rewind_tokens = 11;
    auto snapshot = Snapshot::Deserialize(bytes, kOrigin, changed, HostMemory(), nullptr);
    ASSERT_TRUE(snapshot.has_value()) << snapshot.error().ToString();
    EXPECT_EQ(snapshot->length(), length);
    SequenceState restored = std::move(*SequenceState::Create(changed, HostMemory(), nullptr));
    ASSERT_TRUE(restored.Restore(*snapshot).ok());
    testing::ExpectEqual(restored, shadow);
    // A second writing gives the same, byte for byte.
    EXPECT_EQ(*restored.Snapshot()->Serialize(kOrigin), bytes);
    testing::Append(restored, 9, 77);
    shadow.Append(9, 77);
    testing::ExpectEqual(restored, shadow);
  }
}

TEST_F(SnapshotTest, ReadBackStateCannotRewindBelowItsLength) {
  auto snapshot = Snapshot::Deserialize(Bytes(30), kOrigin, layout_, HostMemory(), nullptr);
  ASSERT_TRUE(snapshot.has_value());
  SequenceState state = std::move(*SequenceState::Create(layout_, HostMemory(), nullptr));
  ASSERT_TRUE(state.Restore(*snapshot).ok());
  EXPECT_EQ(state.Rewind(1).code(), StatusCode::kFailedPrecondition);
  testing::Append(state, 3, 5);
  EXPECT_TRUE(state.Rewind(3).ok());
}

TEST_F(SnapshotTest, CanBeTakenBackAsFarAsWasAskedFor) {
  for (int64_t length = 0; length < 40; ++length) {
    for (int64_t asked = 0; asked <= 5; ++asked) {
      SCOPED_TRACE(length * 10 + asked);
      auto [state, shadow] = Make(length);
      const std::vector<std::byte> bytes = *state.Snapshot()->Serialize(kOrigin, asked);
      const auto snapshot = Snapshot::Deserialize(bytes, kOrigin, layout_, HostMemory(), nullptr);
      ASSERT_TRUE(snapshot.has_value()) << snapshot.error().ToString();
      SequenceState back = snapshot->Continue();
      testing::ExpectEqual(back, shadow);
      EXPECT_EQ(static_cast<int64_t>(bytes.size()),
                SnapshotBytes(*layout_, length, std::min({asked, length, layout_->max_rewind_tokens})));
      const int64_t reach = std::min({asked, length, layout_->max_rewind_tokens});
      ASSERT_TRUE(back.Rewind(reach).ok());
      shadow.Rewind(reach);
      testing::ExpectEqual(back, shadow);
      testing::Append(back, 9, 55);
      shadow.Append(9, 55);
      testing::ExpectEqual(back, shadow);
    }
  }
}

TEST_F(SnapshotTest, WhatTheStateHasLostCannotBeTakenBackEither) {
  auto [state, shadow] = Make(40);
  testing::Append(state, 9, 77);
  ASSERT_TRUE(state.Rewind(2).ok());  // 47 tokens now; window row 41, which 45 would need, is overwritten.
  const auto snapshot = Snapshot::Deserialize(*state.Snapshot()->Serialize(kOrigin, 3), kOrigin, layout_,
                                              HostMemory(), nullptr);
  ASSERT_TRUE(snapshot.has_value()) << snapshot.error().ToString();
  SequenceState back = snapshot->Continue();
  for (SequenceState* one : {&state, &back}) {
    EXPECT_FALSE(one->Rewind(2).ok());
    EXPECT_TRUE(one->Rewind(1).ok());
  }
}

TEST_F(SnapshotTest, IsImmutable) {
  auto [state, shadow] = Make(40);
  const auto snapshot = state.Snapshot();
  const std::vector<std::byte> bytes = *snapshot->Serialize(kOrigin);
  ASSERT_TRUE(state.Rewind(3).ok());
  for (int i = 0; i < 8; ++i) testing::Append(state, 9, 99);
  EXPECT_EQ(*snapshot->Serialize(kOrigin), bytes);
}

TEST_F(SnapshotTest, EveryTruncationAndEveryFlippedByteIsRefused) {
  const std::vector<std::byte> bytes = Bytes(23);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_FALSE(ReadStatus(std::span(bytes).first(size)).ok()) << size;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{0x40};
    ASSERT_FALSE(ReadStatus(damaged).ok()) << i;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(ReadStatus(longer).code(), StatusCode::kDataLoss);
}

TEST_F(SnapshotTest, ForgedHeadersAreRefusedByName) {
  const std::vector<std::byte> good = Bytes(23);
  std::vector<std::byte> bytes = good;
  Put<uint32_t>(bytes, 8, 4);
  EXPECT_EQ(ReadStatus(bytes).code(), StatusCode::kUnimplemented);
  bytes = good;
  Put<int64_t>(bytes, 32, -1);
  EXPECT_THAT(ReadStatus(bytes).ToString(), HasSubstr("OUT_OF_RANGE: sequence snapshot, length: got -1"));
  bytes = good;
  Put<int64_t>(bytes, 32, INT64_MAX);
  EXPECT_THAT(ReadStatus(bytes).ToString(), HasSubstr("OUT_OF_RANGE"));
  bytes = good;
  Put<int64_t>(bytes, 32, 24);
  EXPECT_THAT(ReadStatus(bytes).ToString(), HasSubstr("DATA_LOSS: sequence snapshot, payload"));
  for (const int64_t too_many : {int64_t{-1}, int64_t{4}, INT64_MAX}) {
    bytes = good;
    Put<int64_t>(bytes, 40, too_many);
    EXPECT_THAT(ReadStatus(bytes).ToString(),
                HasSubstr("OUT_OF_RANGE: sequence snapshot, tokens that can be"));
  }
  bytes = good;
  Put<uint64_t>(bytes, 48, UINT64_MAX);
  EXPECT_THAT(ReadStatus(bytes).ToString(), HasSubstr("DATA_LOSS: sequence snapshot, payload"));
}

TEST_F(SnapshotTest, OtherOriginOrShapeIsRefused) {
  const std::vector<std::byte> bytes = Bytes(23);
  auto other = std::make_shared<CacheLayout>(testing::SmallLayout());
  EXPECT_TRUE(ReadStatus(bytes, other).ok());
  EXPECT_THAT(Snapshot::Deserialize(bytes, kOrigin + 1, other, HostMemory(), nullptr).error().ToString(),
              HasSubstr("INVALID_ARGUMENT: sequence snapshot, origin"));
  other->layers[0].width = 4;
  EXPECT_THAT(ReadStatus(bytes, other).ToString(),
              HasSubstr("INVALID_ARGUMENT: sequence snapshot, geometry"));
}

// Files of before rows were packed, and states whose rows are kept in another format.
TEST_F(SnapshotTest, RowsOfAnotherFormatAreNeverMisread) {
  std::vector<std::byte> bytes = Bytes(23);
  Put<uint32_t>(bytes, 8, 2);
  EXPECT_THAT(
      ReadStatus(bytes).ToString(),
      HasSubstr("UNIMPLEMENTED: sequence snapshot, version: got 2 (header of 72 bytes), want 3 (72)"));
  for (CacheFormat CacheLayout::*const format :
       {&CacheLayout::window_format, &CacheLayout::entry_format, &CacheLayout::key_format}) {
    auto other = std::make_shared<CacheLayout>(testing::SmallLayout());
    other->layers[1].indexer_width = 4;
    const std::vector<std::byte> wide =
        *SequenceState::Create(other, HostMemory(), nullptr)->Snapshot()->Serialize(kOrigin);
    auto packed = std::make_shared<CacheLayout>(*other);
    CacheFormat codes = CacheFormat::Fp4(format == &CacheLayout::key_format ? 4 : 2, 2);
    codes.dtype = DType::kF32;
    packed.get()->*format = codes;
    EXPECT_THAT(ReadStatus(wide, packed).ToString(),
                HasSubstr("INVALID_ARGUMENT: sequence snapshot, geometry"));
  }
}

// Rows kept as codes go to a file as codes, and comes back.
TEST_F(SnapshotTest, PackedRowsAreHalfAFile) {
  CacheLayout wide = testing::SmallLayout();
  wide.layers = {{.ratio = 4, .overlap = true, .width = 512, .indexer_width = 128}};
  wide.window_format = wide.entry_format = wide.key_format = DType::kBF16;
  wide.max_positions = 4000;
  CacheLayout packed = wide;
  packed.window_format = packed.entry_format = CacheFormat::Fp8(448, 64);
  packed.key_format = CacheFormat::Fp4(128, 32);
  constexpr int64_t kLength = 3999;
  const auto filled = [&](const CacheLayout& layout) {
    auto owned = std::make_shared<const CacheLayout>(layout);
    SequenceState state = std::move(*SequenceState::Create(owned, HostMemory(), nullptr));
    EXPECT_TRUE(FillWithRandomRows(state, kLength, 3).ok());
    const std::vector<std::byte> bytes = *state.Snapshot()->Serialize(kOrigin);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), SnapshotBytes(layout, kLength, 0));
    const auto read = Snapshot::Deserialize(bytes, kOrigin, owned, HostMemory(), nullptr);
    EXPECT_TRUE(read.has_value()) << read.error().ToString();
    EXPECT_EQ(*read->Serialize(kOrigin), bytes);
    return static_cast<double>(bytes.size());
  };
  EXPECT_LT(filled(packed), 0.55 * filled(wide));
  EXPECT_DOUBLE_EQ(BytesPerToken(wide), (1024 + 256) / 4.0);
  EXPECT_DOUBLE_EQ(BytesPerToken(packed), (592 + 68) / 4.0);
}

TEST_F(SnapshotTest, RandomBytesBehindAValidHeaderNeverCrash) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes = Bytes(23);
    for (int i = 0; i < 3; ++i) bytes[8 + random() % 56] = static_cast<std::byte>(random());
    SealHeader(bytes);
    (void)ReadStatus(bytes);
  }
}

}  // namespace
}  // namespace dsv4::kv
