// Tests of the arena: no overlap, stack order, equal addresses step after step, bounded size.
#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace dsv4 {
namespace {

TEST(Arena, TensorsDoNotOverlapAcrossBlocks) {
  Arena arena(HostMemory());
  std::vector<TensorView> views;
  for (int i = 0; i < 40; ++i) {
    const auto view = arena.Allocate(DType::kF32, {1 + i * 3000});
    ASSERT_TRUE(view.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % 64, 0U);
    std::memset(view->data, i, static_cast<size_t>(view->num_bytes()));
    views.push_back(*view);
  }
  for (int i = 0; i < 40; ++i) {
    const auto* bytes = views[static_cast<size_t>(i)].as<unsigned char>();
    for (int64_t k = 0; k < views[static_cast<size_t>(i)].num_bytes(); k += 97) ASSERT_EQ(bytes[k], i);
  }
  EXPECT_GT(arena.num_blocks(), 1U);
}

TEST(Arena, ScopesGiveBackInStackOrder) {
  Arena arena(HostMemory());
  const auto outer = arena.Allocate(DType::kF32, {10});
  void* inside = nullptr;
  {
    const Arena::Scope scope(arena);
    inside = arena.Allocate(DType::kF32, {10})->data;
    arena.Allocate(DType::kF32, {1000000}).value();
  }
  EXPECT_EQ(arena.Allocate(DType::kF32, {10})->data, inside);
  EXPECT_NE(outer->data, inside);
}

TEST(Arena, RecycledStepsReuseTheSameAddresses) {
  Arena arena(HostMemory());
  std::vector<void*> addresses;
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(arena.Recycle().ok());
    const Arena::Scope scope(arena);
    std::vector<void*> now;
    for (int i = 0; i < 5; ++i) now.push_back(arena.Allocate(DType::kBF16, {400000})->data);
    if (step >= 2) {
      EXPECT_EQ(now, addresses);
    }
    addresses = now;
  }
  EXPECT_EQ(arena.num_blocks(), 1U);
}

// A device's memory is planned by the largest work alone: what came before it must not make an arena larger.
TEST(Arena, HoldsLittleMoreThanTheLargestWorkWants) {
  constexpr int64_t kLarge = int64_t{40} << 20;
  constexpr size_t kWanted = 3 * size_t{kLarge};
  const auto work = [](Arena& arena, int64_t tensor, int count) {
    ASSERT_TRUE(arena.Recycle().ok());
    const Arena::Scope scope(arena);
    for (int i = 0; i < count; ++i) ASSERT_TRUE(arena.Allocate(DType::kU8, {tensor}).has_value());
  };
  Arena arena(HostMemory());
  for (const int64_t small : {kLarge / 40, kLarge / 4}) {
    for (int again = 0; again < 2; ++again) work(arena, small, 5);
  }
  for (int again = 0; again < 2; ++again) work(arena, kLarge, 3);
  ASSERT_TRUE(arena.Recycle().ok());
  EXPECT_EQ(arena.num_blocks(), 1U);
  // And what smaller work had left, whose blocks are too small for it.
  EXPECT_LE(arena.capacity_bytes(), kWanted + size_t{5 * kLarge / 4} + (size_t{16} << 20));
}

// Memory of a device: before some of it is freed, work that waited is handed over, which takes memory of the
// same arena.
class BusyMemory final : public Memory {
 public:
  Device device() const override { return {}; }
  Result<Buffer> Allocate(size_t num_bytes) override {
    DSV4_ASSIGN_OR_RETURN(const Buffer memory, HostMemory().Allocate(num_bytes));
    const std::shared_ptr<void> owner(memory.data(), [this, memory](void*) {
      if (before_free) before_free();
    });
    return Buffer(owner, num_bytes, device());
  }
  Status Copy(void*, const void*, size_t, Stream) override { return {}; }
  Status CopyFromHost(void*, const void*, size_t, Stream) override { return {}; }
  Status CopyToHost(void*, const void*, size_t, Stream) override { return {}; }

  std::function<void()> before_free;
};

TEST(Arena, WhatFreesItsMemoryMayTakeSome) {
  BusyMemory memory;
  Arena arena(memory);
  const auto fill = [&] {
    const Arena::Scope scope(arena);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(arena.Allocate(DType::kF32, {1000000}).has_value());
  };
  fill();
  ASSERT_GT(arena.num_blocks(), 1U);
  bool waits = true;
  memory.before_free = [&] {
    if (std::exchange(waits, false)) fill();
  };
  ASSERT_TRUE(arena.Recycle().ok());
  EXPECT_FALSE(waits);
  const auto tensor = arena.Allocate(DType::kF32, {1000000});
  ASSERT_TRUE(tensor.has_value());
  std::memset(tensor->data, 1, static_cast<size_t>(tensor->num_bytes()));
  memory.before_free = {};
}

TEST(Arena, EmptyTensorsAreNotNull) {
  Arena arena(HostMemory());
  EXPECT_NE(arena.Allocate(DType::kF32, {0, 7})->data, nullptr);
}

}  // namespace
}  // namespace dsv4
