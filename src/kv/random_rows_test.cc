// Made-up rows: one state whichever ranks keep its parts, and copies that stay inside a page.
#include "kv/random_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kv/testing.h"
#include "tensor/host_memory_testing.h"

namespace dsv4::kv {
namespace {

// Allocations lie one behind the other, and no copy may leave the one that it begins in.
class TightMemory final : public ForwardingHostMemory {
 public:
  Result<Buffer> Allocate(size_t num_bytes) override {
    std::byte* const begin = room_.data() + used_;
    used_ += num_bytes;
    EXPECT_LE(used_, room_.size());
    ends_.push_back(begin + num_bytes);
    return Buffer(std::shared_ptr<void>(begin, [](void*) {}), num_bytes, device());
  }
  Status CopyFromHost(void* destination, const void* source, size_t num_bytes, Stream stream) override {
    const auto* const begin = static_cast<std::byte*>(destination);
    for (const std::byte* const end : ends_) EXPECT_FALSE(begin < end && end < begin + num_bytes);
    return ForwardingHostMemory::CopyFromHost(destination, source, num_bytes, stream);
  }

 private:
  std::vector<std::byte> room_ = std::vector<std::byte>(size_t{1} << 20);
  size_t used_ = 0;
  std::vector<const std::byte*> ends_;
};

// Entry rows of a layer, by entry.
std::vector<float> Entries(const SequenceState& state, int layer, int64_t num_entries) {
  const PagedRows pages = state.Pages(layer, PageKind::kEntries);
  std::vector<float> values;
  for (int64_t entry = 0; entry < num_entries; ++entry) {
    if (!state.layout().shard.Has(entry)) continue;
    const int64_t row = state.layout().shard.Row(entry);
    const auto* const page =
        static_cast<const float*>(pages.pages[static_cast<size_t>(row / pages.rows_per_page)]);
    values.push_back(static_cast<float>(entry));
    for (int64_t i = 0; i < pages.width; ++i)
      values.push_back(page[row % pages.rows_per_page * pages.width + i]);
  }
  return values;
}

TEST(RandomRows, EveryShardHasItsPartOfOneState) {
  constexpr int64_t kLength = 100;
  constexpr int kLayer = 1;
  std::vector<std::vector<float>> rows;  // All, then those of each shard.
  int64_t num_entries = 0;
  for (const EntryShard& shard : {EntryShard{}, EntryShard{0, 3}, EntryShard{1, 3}, EntryShard{2, 3}}) {
    auto layout = std::make_shared<CacheLayout>(testing::SmallLayout());
    layout->shard = shard;
    TightMemory memory;
    auto state = SequenceState::Create(layout, memory, nullptr);
    ASSERT_TRUE(state.has_value()) << state.error().ToString();
    const Status filled = FillWithRandomRows(*state, kLength, 7);
    ASSERT_TRUE(filled.ok()) << filled.ToString();
    EXPECT_EQ(state->length(), kLength);
    EXPECT_EQ(FillWithRandomRows(*state, kLength, 7).code(), StatusCode::kFailedPrecondition);
    num_entries = layout->NumEntries(kLayer, kLength);
    ASSERT_TRUE(state->BeginAppend(1).ok());
    rows.push_back(Entries(*state, kLayer, num_entries));
  }
  const size_t width = rows[0].size() / static_cast<size_t>(num_entries);
  for (int64_t entry = 0; entry < num_entries; ++entry) {
    const std::vector<float>& part = rows[static_cast<size_t>(1 + entry % 3)];
    const auto at = [&](const std::vector<float>& of, int64_t row) {
      return std::vector<float>(of.begin() + row * static_cast<int64_t>(width),
                                of.begin() + (row + 1) * static_cast<int64_t>(width));
    };
    EXPECT_EQ(at(part, entry / 3), at(rows[0], entry)) << entry;
  }
}

// V4.1's, whose entries are of FP4.
TEST(RandomRows, LieOnTheGridOfTheirFormat) {
  auto layout = std::make_shared<CacheLayout>(testing::SmallLayout());
  const int64_t width = layout->PageWidth(1, PageKind::kEntries);
  ASSERT_EQ(width % 2, 0);
  layout->entry_format = CacheFormat::Fp4WithE4m3Scales(width, 2);
  TightMemory memory;
  auto state = SequenceState::Create(layout, memory, nullptr);
  ASSERT_TRUE(state.has_value()) << state.error().ToString();
  const Status filled = FillWithRandomRows(*state, 100, 7);
  EXPECT_TRUE(filled.ok()) << filled.ToString();
}

}  // namespace
}  // namespace dsv4::kv
