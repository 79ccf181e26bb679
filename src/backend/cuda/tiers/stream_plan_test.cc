// Which slots experts of long passes take, without a device.
#include "backend/cuda/tiers/stream_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace dsv4::backend::cuda {
namespace {

// Experts [first, first + count) in the rows of a layer, behind `num_resident` others.
std::vector<int32_t> Experts(int first, int count, int num_resident = 0) {
  std::vector<int32_t> experts(static_cast<size_t>(num_resident), 0);
  for (int i = 0; i < count; ++i) experts.push_back(first + i);
  return experts;
}

// Properties of every layer. Parts cover all experts once, and no two experts of a part share a slot.
// Neighbouring parts share no slot of a buffer. Each cached expert's slot is the one it was brought to.
void Check(const StreamPlan& plan, const StreamedLayer& layer, const std::vector<int32_t>& experts) {
  int end = 0;
  int64_t brought = 0;
  for (const StreamedPart& part : layer.parts) {
    EXPECT_EQ(part.begin, end);
    end = part.end;
    EXPECT_LE(static_cast<int>(part.brought.size()), plan.buffer_slots());
    std::set<int32_t> slots;
    for (const StreamedExpert& expert : part.brought) {
      EXPECT_TRUE(slots.insert(expert.slot).second) << "two experts in slot " << expert.slot;
      EXPECT_EQ(expert.stays, expert.slot < plan.first_buffer_slot());
      if (!expert.stays) {
        EXPECT_EQ(part.buffer, (expert.slot - plan.first_buffer_slot()) / plan.buffer_slots());
      }
      bool found = false;
      for (int place = part.begin; place < part.end; ++place)
        found = found || (experts[static_cast<size_t>(place)] == expert.expert &&
                          layer.slots[static_cast<size_t>(place)] == expert.slot);
      EXPECT_TRUE(found) << "expert " << expert.expert << " is not at a place of its part";
    }
    brought += static_cast<int64_t>(part.brought.size());
  }
  EXPECT_EQ(end, static_cast<int>(experts.size()));
  EXPECT_EQ(brought, layer.num_brought);
  for (size_t i = 0; i < experts.size(); ++i) EXPECT_EQ(layer.slots[i] < 0, experts[i] == 0) << i;
}

int64_t NumStaying(const StreamedLayer& layer) {
  int64_t staying = 0;
  for (const StreamedPart& part : layer.parts)
    staying += std::ranges::count_if(part.brought, [](const StreamedExpert& expert) { return expert.stays; });
  return staying;
}

TEST(StreamPlan, BuffersTakeTurns) {
  StreamPlan plan(32);  // Two buffers of 4.
  EXPECT_EQ(plan.buffer_slots(), 4);
  EXPECT_EQ(plan.first_buffer_slot(), 24);
  // All slots but the buffers' hold experts of another layer.
  std::vector<int32_t> slot_of(64);
  for (int i = 0; i < 24; ++i) slot_of[static_cast<size_t>(40 + i)] = i + 1;
  plan.Begin(slot_of);
  int buffer = 0;
  for (int layer = 0; layer < 3; ++layer) {
    const std::vector<int32_t> experts = Experts(1 + layer * 10, 10, 2);
    const StreamedLayer streamed = plan.Next(experts);
    Check(plan, streamed, experts);
    EXPECT_EQ(streamed.num_hits, 0);
    EXPECT_EQ(streamed.num_brought, 10);
    ASSERT_EQ(streamed.parts.size(), 3);
    for (const StreamedPart& part : streamed.parts) {
      EXPECT_EQ(part.buffer, buffer);
      buffer = 1 - buffer;
    }
  }
}

TEST(StreamPlan, WhatIsThereIsNotBroughtAndFreeSlotsAreKept) {
  StreamPlan plan(32);
  std::vector<int32_t> slot_of(26);
  slot_of[0] = 5;   // Expert 1 in slot 4.
  slot_of[1] = 32;  // Expert 2 in a buffer's last slot, which is forgotten.
  for (int i = 0; i < 18; ++i) slot_of[static_cast<size_t>(8 + i)] = i < 4 ? i + 1 : i + 2;
  plan.Begin(slot_of);  // 19 of 24 slots are taken: 5 are free.
  const std::vector<int32_t> experts = Experts(1, 8);
  const StreamedLayer first = plan.Next(experts);
  Check(plan, first, experts);
  EXPECT_EQ(first.num_hits, 1);
  EXPECT_EQ(first.slots[0], 4);
  EXPECT_EQ(first.num_brought, 7);
  EXPECT_EQ(NumStaying(first), 5);
  // The next pass finds those that stayed.
  const StreamedLayer again = plan.Next(experts);
  Check(plan, again, experts);
  EXPECT_EQ(again.num_hits, 6);
  EXPECT_EQ(again.num_brought, 2);
}

// Layers that no pass comes to leave their share to those of the next pass.
TEST(StreamPlan, LayersShareFreeSlotsEvenly) {
  StreamPlan plan(40);  // 30, and two buffers of 5.
  plan.Begin(std::vector<int32_t>(70));
  for (int pass = 0; pass < 2; ++pass) {
    for (int layer = 0; layer < 6; ++layer) {
      const std::vector<int32_t> experts = Experts(1 + layer * 10, 10, layer % 2);
      const StreamedLayer streamed = plan.Next(experts);
      Check(plan, streamed, experts);
      if (pass == 0) {
        EXPECT_GE(NumStaying(streamed), 30 / 7) << layer;
        EXPECT_LE(NumStaying(streamed), 30 / 7 + 1) << layer;
      }
    }
  }
  int64_t hits = 0;
  for (int layer = 0; layer < 6; ++layer) hits += plan.Next(Experts(1 + layer * 10, 10)).num_hits;
  EXPECT_EQ(hits, 30);
}

// Time that a pass takes by arithmetic, with the times of Flash's 26 layers for 8192 tokens on an H200.
// Copies come one behind the other, each into a buffer that has been read, and products wait for theirs.
struct Times {
  double attention = 7.5;  // In milliseconds.
  double expert = 7.0 / 256;
  double copy = 14.16 / 55.3;
};

double PassTime(StreamPlan& plan, int num_layers, int num_experts, const Times& times) {
  double copied = 0;
  double computed = 0;
  double read[2] = {0, 0};
  for (int layer = 0; layer < num_layers; ++layer) {
    computed += times.attention;
    for (const StreamedPart& part : plan.Next(Experts(1 + layer * num_experts, num_experts)).parts) {
      if (!part.brought.empty()) {
        if (part.buffer >= 0) copied = std::max(copied, read[part.buffer]);
        copied += times.copy * static_cast<double>(part.brought.size());
        computed = std::max(computed, copied);
      }
      computed += times.expert * (part.end - part.begin);
      if (part.buffer >= 0) read[part.buffer] = computed;
    }
  }
  return computed;
}

TEST(StreamPlan, TheLinkIsBusyWhilePassesAreComputed) {
  constexpr int kLayers = 26;
  constexpr int kExperts = 256;
  // With 24, 48 and 76 GB, and where copies take about as long as products.
  for (const int num_slots : {934, 2640, 4618, 5100}) {
    StreamPlan plan(num_slots);
    plan.Begin(std::vector<int32_t>(kLayers * kExperts));
    const Times times;
    PassTime(plan, kLayers, kExperts, times);  // Free slots are filled.
    const double bound = times.copy * (kLayers * kExperts - plan.first_buffer_slot());
    for (int pass = 0; pass < 3; ++pass)
      EXPECT_LE(PassTime(plan, kLayers, kExperts, times), bound / 0.95) << num_slots << " slots";
  }
}

TEST(StreamPlan, NothingToBringIsOnePart) {
  StreamPlan plan(16);
  plan.Begin(std::vector<int32_t>{1, 2, 3});
  const std::vector<int32_t> experts = Experts(1, 3, 1);
  const StreamedLayer layer = plan.Next(experts);
  Check(plan, layer, experts);
  ASSERT_EQ(layer.parts.size(), 1);
  EXPECT_EQ(layer.parts[0].buffer, -1);
  EXPECT_EQ(layer.num_hits, 3);
}

TEST(StreamPlan, RoomForTwoExpertsAtLeast) {
  EXPECT_FALSE(StreamPlan(0).has_room());
  EXPECT_FALSE(StreamPlan(1).has_room());
  StreamPlan least(2);
  ASSERT_TRUE(least.has_room());
  least.Begin(std::vector<int32_t>(5));
  const std::vector<int32_t> experts = Experts(1, 5);
  const StreamedLayer layer = least.Next(experts);
  Check(least, layer, experts);
  EXPECT_EQ(layer.parts.size(), 5);
  EXPECT_EQ(StreamPlan(100000).buffer_slots(), StreamPlan::kMaxBufferSlots);
}

}  // namespace
}  // namespace dsv4::backend::cuda
