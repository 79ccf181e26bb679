// Which memory copies to the host land in, and that it is used again. Needs no device (null_runtime.cc).
#include "backend/cuda/runtime/pinned_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace dsv4::backend::cuda {
namespace {

std::byte* Begin(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data()); }

TEST(PinnedBlocks, ABlockIsHeldToItsEnd) {
  const auto blocks = std::make_shared<PinnedBlocks>();
  const auto buffer = blocks->Allocate(5000);
  ASSERT_TRUE(buffer.has_value());
  EXPECT_EQ(buffer->num_bytes(), 5000U);
  EXPECT_EQ(buffer->device().type, DeviceType::kHost);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0U);
  // A block is a power of two long.
  EXPECT_TRUE(blocks->Holds(Begin(*buffer), 8192));
  EXPECT_TRUE(blocks->Holds(Begin(*buffer) + 8191, 1));
  EXPECT_FALSE(blocks->Holds(Begin(*buffer) + 8191, 2));
  EXPECT_FALSE(blocks->Holds(Begin(*buffer) - 1, 2));
  const int elsewhere = 0;
  EXPECT_FALSE(blocks->Holds(&elsewhere, sizeof(elsewhere)));
}

TEST(PinnedBlocks, WhatIsGivenBackComesAgainAndWhatIsInUseDoesNot) {
  const auto blocks = std::make_shared<PinnedBlocks>();
  auto first = blocks->Allocate(5000);
  ASSERT_TRUE(first.has_value());
  void* const place = first->data();
  auto second = blocks->Allocate(6000);
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(second->data(), place);
  *first = Buffer();
  EXPECT_TRUE(blocks->Holds(place, 8192)) << "kept";
  const auto smaller = blocks->Allocate(100);
  ASSERT_TRUE(smaller.has_value());
  EXPECT_NE(smaller->data(), place) << "of another length";
  const auto third = blocks->Allocate(8192);
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->data(), place);
}

TEST(PinnedBlocks, VeryLargeOnesAreTheHostsMemory) {
  const auto blocks = std::make_shared<PinnedBlocks>();
  const auto large = blocks->Allocate(PinnedBlocks::kMaxBlockBytes + 1);
  ASSERT_TRUE(large.has_value());
  EXPECT_FALSE(blocks->Holds(large->data(), 1));
  const auto largest = blocks->Allocate(PinnedBlocks::kMaxBlockBytes);
  ASSERT_TRUE(largest.has_value());
  EXPECT_TRUE(blocks->Holds(largest->data(), PinnedBlocks::kMaxBlockBytes));
}

TEST(PinnedBlocks, BuffersOutliveTheirOwner) {
  auto blocks = std::make_shared<PinnedBlocks>();
  auto buffer = blocks->Allocate(5000);
  ASSERT_TRUE(buffer.has_value());
  blocks.reset();
  std::memset(buffer->data(), 1, 5000);
  *buffer = Buffer();
}

}  // namespace
}  // namespace dsv4::backend::cuda
