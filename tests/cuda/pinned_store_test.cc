// Threads bring every byte of very many weights to its address. Further what happens where memory or a source
// ends. Needs no device (null_runtime.cc): what is registered stays as it is.
#include "backend/cuda/tiers/pinned_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "backend/cuda/tiers/reordered_copy.h"
#include "backend/cuda/weights/e2m1_order.h"
#include "io/mapped_file.h"
#include "tests/cuda/null_runtime.h"

namespace dsv4::backend::cuda {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Bytes(size_t num_bytes, size_t seed) {
  std::vector<std::byte> bytes(num_bytes);
  for (size_t i = 0; i < num_bytes; ++i)
    bytes[i] = static_cast<std::byte>(((i + seed) * 0x9E3779B97F4A7C15) >> 56);
  return bytes;
}

// As one thread does it, one code after the other.
std::vector<std::byte> Reordered(std::vector<std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t codes;
    std::memcpy(&codes, &bytes[i], sizeof(codes));
    codes = InE2m1Order(codes);
    std::memcpy(&bytes[i], &codes, sizeof(codes));
  }
  return bytes;
}

struct Kept {
  std::vector<std::byte> source;
  std::vector<std::byte> want;
  Buffer place;

  // From the end on, which comes last.
  bool IsRight() const {
    const auto* const copied = static_cast<const std::byte*>(place.data());
    return std::equal(want.rbegin(), want.rend(), std::reverse_iterator(copied + want.size()));
  }
};

Kept Keep(PinnedStore& store, size_t num_bytes, bool reorder) {
  Kept kept{.source = Bytes(num_bytes, num_bytes), .want = {}, .place = {}};
  kept.want = reorder ? Reordered(kept.source) : kept.source;
  Result<Buffer> place = store.Place(num_bytes);
  EXPECT_TRUE(place.has_value()) << place.error().ToString();
  kept.place = *std::move(place);
  store.Copy(static_cast<std::byte*>(kept.place.data()), kept.source.data(), num_bytes, reorder);
  return kept;
}

std::shared_ptr<DeviceQueue> Queue() {
  null_runtime::registrations_left = INT_MAX;
  return *DeviceQueue::Create({});
}

TEST(CopyInE2m1Order, BlocksAtOnceAreThoseOneByOne) {
  for (size_t blocks = 0; blocks < 70; ++blocks) {
    const std::vector<std::byte> source = Bytes(blocks * 8, blocks);
    std::vector<std::byte> copied(source.size() + 1, std::byte{7});
    CopyInE2m1Order(copied.data(), source.data(), source.size());
    EXPECT_EQ(copied.back(), std::byte{7}) << blocks;
    copied.pop_back();
    EXPECT_EQ(copied, Reordered(source)) << blocks;
  }
}

TEST(PinnedStore, ALayersBytesAreThoseThatOneThreadCopies) {
  const auto queue = Queue();
  for (const int num_threads : {1, 2, 5, 16}) {
    SCOPED_TRACE(num_threads);
    PinnedStore store(*queue, num_threads);
    std::vector<Kept> layer;
    for (size_t expert = 0; expert < 12; ++expert) {
      for (const size_t num_bytes : {size_t{1} << 20, (size_t{1} << 20) + 4096 * expert, size_t{512} << 10}) {
        layer.push_back(Keep(store, num_bytes, expert % 2 == 0));
        layer.push_back(Keep(store, num_bytes / 8 + expert, false));  // Scales.
      }
    }
    store.Settle();
    std::ranges::reverse(layer);
    for (const Kept& kept : layer) {
      EXPECT_TRUE(kept.IsRight()) << kept.source.size();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.place.data()) % 256, 0U);
      EXPECT_TRUE(store.Holds(static_cast<const std::byte*>(kept.place.data())));
    }
    EXPECT_FALSE(store.Holds(layer[0].source.data()));
    EXPECT_EQ(store.counters().threads, num_threads);
    // It goes on behind an end.
    store.Finish();
    const Kept more = Keep(store, size_t{3} << 20, true);
    store.Settle();
    EXPECT_TRUE(more.IsRight());
  }
}

// Three weights, of which two lie in a block of 256 MiB.
TEST(PinnedStore, ABlockThatCannotBePinnedIsNamedAndTheOthersStay) {
  constexpr size_t kBytes = size_t{100} << 20;
  const auto queue = Queue();
  PinnedStore store(*queue, 4);
  null_runtime::registrations_left = 1;
  const Kept first = Keep(store, kBytes, false);
  const Kept second = Keep(store, kBytes, true);
  for (int i = 0; i < 2; ++i) {
    const Result<Buffer> third = store.Place(kBytes);
    ASSERT_FALSE(third.has_value());
    EXPECT_EQ(third.error().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(third.error().message(),
                HasSubstr("cached experts: 0.27 GB of the host's memory are pinned"));
    EXPECT_THAT(third.error().message(), HasSubstr("pinning 268435456 bytes"));
  }
  store.Settle();
  EXPECT_TRUE(first.IsRight());
  EXPECT_TRUE(second.IsRight());
  null_runtime::registrations_left = INT_MAX;
  const Kept third = Keep(store, kBytes, false);
  store.Settle();
  EXPECT_TRUE(third.IsRight());
}

// Blocks that threads make ahead count: where one of them fails, another in the making may be what is waited
// for.
TEST(PinnedStore, AsManyBlocksArePlacedAsCanBePinned) {
  constexpr int kBlocks = 5;
  constexpr size_t kBytes = size_t{200} << 20;  // A block each.
  const auto queue = Queue();
  {
    PinnedStore store(*queue, 4);
    null_runtime::registrations_left = kBlocks;
    null_runtime::registration_ms = 200;
    std::vector<Buffer> places;
    for (int i = 0; i < kBlocks; ++i) {
      Result<Buffer> place = store.Place(kBytes);
      ASSERT_TRUE(place.has_value()) << "block " << i << ": " << place.error().ToString();
      places.push_back(*std::move(place));
    }
    EXPECT_EQ(store.Place(kBytes).error().code(), StatusCode::kResourceExhausted);
  }
  null_runtime::registration_ms = 0;
}

TEST(PinnedStore, AnEndInTheMidstLeavesWhatHasNotBegun) {
  const auto queue = Queue();
  std::vector<Kept> kept;
  PinnedStore store(*queue, 2);
  for (int i = 0; i < 30; ++i) kept.push_back(Keep(store, size_t{2} << 20, true));
}

// The pages of a file that was cut short become zeros, and the error names it (io::LostFile): as in a run.
void StandIn(int, siginfo_t* info, void*) {
  if (!io::StandInForLostPages(info->si_addr)) std::abort();
}

TEST(PinnedStore, ASourceThatEndsEarlyIsALostFile) {
  constexpr size_t kBytes = size_t{8} << 20;
  constexpr size_t kLeft = size_t{3} << 20;
  const auto path = std::filesystem::temp_directory_path() / ("pinned-store-" + std::to_string(::getpid()));
  const std::vector<std::byte> bytes = Bytes(kBytes, 1);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), kBytes);
  const Result<io::MappedFile> file = io::MappedFile::Open(path.string());
  ASSERT_TRUE(file.has_value());
  std::filesystem::resize_file(path, kLeft);
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_sigaction = StandIn;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGBUS, &action, &before), 0);
  const auto queue = Queue();
  PinnedStore store(*queue, 4);
  const Result<Buffer> place = store.Place(kBytes);
  ASSERT_TRUE(place.has_value());
  store.Copy(static_cast<std::byte*>(place->data()), file->bytes().data(), kBytes, false);
  store.Settle();
  ::sigaction(SIGBUS, &before, nullptr);
  const auto* const copied = static_cast<const std::byte*>(place->data());
  EXPECT_EQ(std::memcmp(copied, bytes.data(), kLeft), 0);
  EXPECT_TRUE(std::all_of(copied + kLeft, copied + kBytes, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(io::LostFile().code(), StatusCode::kDataLoss);
  EXPECT_THAT(io::LostFile().message(), HasSubstr(path.string()));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace dsv4::backend::cuda
