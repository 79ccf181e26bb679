#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>
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

TEST(Arena, EmptyTensorsAreNotNull) {
  Arena arena(HostMemory());
  EXPECT_NE(arena.Allocate(DType::kF32, {0, 7})->data, nullptr);
}

}  // namespace
}  // namespace dsv4
