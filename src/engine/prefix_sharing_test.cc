// Servers that share a directory of prefix files: each a PrefixDisk of its own, in one process or in several.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/temporary_directory_testing.h"
#include "engine/prefix_disk.h"
#include "engine/prefix_file.h"
#include "kv/testing.h"

namespace dsv4::engine {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<int32_t>;

constexpr const char* kWriterDirectory = "DSV4_TEST_WRITER_DIRECTORY";
constexpr const char* kWriterSeed = "DSV4_TEST_WRITER_SEED";
constexpr const char* kNumKills = "DSV4_TEST_KILLS";
constexpr int64_t kLength = 180;

class PrefixSharingTest : public ::testing::Test {
 protected:
  std::unique_ptr<PrefixDisk> Open(const std::string& directory, uint64_t origin = 42) {
    auto disk = PrefixDisk::Open(
        {.directory = directory, .max_bytes = max_bytes_, .origin = [origin] { return origin; }},
        [this](std::span<const std::byte> bytes, uint64_t wanted) {
          return kv::Snapshot::Deserialize(bytes, wanted, layout_, HostMemory(), nullptr);
        });
    EXPECT_TRUE(disk.has_value()) << disk.error().ToString();
    return std::move(*disk);
  }
  std::unique_ptr<PrefixDisk> Open(uint64_t origin = 42) { return Open(root_ / "cache", origin); }
  // Tells paths apart by their first token; a state's rows follow from it too.
  static Tokens Path(int32_t first, int64_t length) {
    Tokens tokens(static_cast<size_t>(length), 7);
    tokens[0] = first;
    return tokens;
  }
  kv::SequenceState State(int32_t first, int64_t length) const {
    kv::SequenceState state = *kv::SequenceState::Create(layout_, HostMemory(), nullptr);
    while (state.length() < length)
      kv::testing::Append(state, std::min(length - state.length(), layout_->max_chunk_tokens), first);
    return state;
  }
  void Keep(PrefixDisk& disk, int32_t first, int64_t length) const {
    disk.Offer(0, Path(first, length), State(first, length));
    disk.Flush();
    disk.Tidy();
  }
  static std::optional<PrefixDisk::Loaded> Get(PrefixDisk& disk, int32_t first, int64_t length) {
    const std::shared_ptr<PrefixDisk::Load> load = disk.Find(0, Path(first, length + 1), 0);
    if (load == nullptr) return std::nullopt;
    while (!disk.IsDone(*load)) disk.WaitForLoad(std::chrono::milliseconds(100));
    return disk.Take(*load);
  }
  // A state of `first` has the rows that its own server computed.
  void ExpectWhole(const PrefixDisk::Loaded& loaded, int32_t first) const {
    EXPECT_EQ(loaded.tokens, Path(first, loaded.state.length()));
    EXPECT_EQ(*loaded.state.Snapshot()->Serialize(42, 0),
              *State(first, loaded.state.length()).Snapshot()->Serialize(42, 0));
  }
  std::vector<fs::path> Files(bool unfinished) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(root_ / "cache/states")) {
      const std::string name = entry.path().filename();
      if (unfinished ? IsUnfinishedName(name) : IsPrefixFileName(name)) files.push_back(entry.path());
    }
    return files;
  }
  int64_t FileBytes() const {
    int64_t num_bytes = 0;
    for (const auto& entry : fs::directory_iterator(root_ / "cache/states")) {
      std::error_code gone;
      const uintmax_t size = entry.file_size(gone);
      if (!gone) num_bytes += static_cast<int64_t>(size);
    }
    return num_bytes;
  }

  TemporaryDirectory root_;
  std::shared_ptr<kv::CacheLayout> layout_ = std::make_shared<kv::CacheLayout>(kv::testing::SmallLayout());
  int64_t max_bytes_ = int64_t{1} << 30;
};

TEST_F(PrefixSharingTest, WhatOneHasWrittenAllFindAtOnce) {
  auto a = Open();
  auto b = Open();
  EXPECT_EQ(a->secret(), b->secret());
  for (int32_t first = 1; first <= 20; ++first) {
    Keep(*a, first, 100);
    const auto loaded = Get(*b, first, 100);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->state.length(), 100);
    ExpectWhole(*loaded, first);
    Keep(*b, first, 100);  // It is not written again.
  }
  EXPECT_EQ(b->stats().num_written, 0);
  EXPECT_EQ(b->stats().num_read_of_others, 20);
  EXPECT_EQ(b->stats().num_bytes, FileBytes());
  ASSERT_TRUE(Get(*a, 1, 100));
  EXPECT_EQ(a->stats().num_read_of_others, 0);
}

TEST_F(PrefixSharingTest, OneThatEndsLeavesItsStatesToTheOthers) {
  auto a = Open();
  auto b = Open();
  Keep(*a, 1, 100);
  a.reset();
  ASSERT_TRUE(Get(*b, 1, 100));
  a = Open();
  EXPECT_EQ(a->stats().num_states, 1);
}

TEST_F(PrefixSharingTest, StatesOfAnotherCheckpointAreNotUsed) {
  auto a = Open(42);
  auto b = Open(43);
  auto c = Open(42);
  Keep(*a, 1, 100);
  EXPECT_FALSE(Get(*b, 1, 100));
  ASSERT_TRUE(Get(*c, 1, 100));
  Keep(*b, 1, 100);  // The same tokens, another file.
  EXPECT_EQ(Files(false).size(), 2U);
  EXPECT_TRUE(Get(*b, 1, 100));
  EXPECT_EQ(b->stats().num_states, 1);
  EXPECT_EQ(b->stats().num_bytes, FileBytes());
}

TEST_F(PrefixSharingTest, DamagedAndRemovedFilesAreNotUsed) {
  auto a = Open();
  auto b = Open();
  Keep(*a, 1, 100);
  Keep(*a, 2, 100);
  ASSERT_TRUE(Get(*b, 1, 100));
  ASSERT_TRUE(Get(*b, 2, 100));
  const std::string states = root_ / "cache/states/";
  const std::string damaged = states + PrefixFileName(42, 0, Path(1, 100));
  {
    std::fstream file(damaged, std::ios::in | std::ios::out);
    file.seekp(-20, std::ios::end);
    file.put('x').put('y');
  }
  EXPECT_FALSE(Get(*b, 1, 100));
  EXPECT_EQ(b->stats().num_rejected, 1);
  b->Flush();
  EXPECT_FALSE(fs::exists(damaged));
  fs::remove(states + PrefixFileName(42, 0, Path(2, 100)));
  EXPECT_FALSE(Get(*b, 2, 100));
  EXPECT_FALSE(Get(*a, 1, 100));
  EXPECT_EQ(a->stats().num_rejected + b->stats().num_rejected, 1);
  EXPECT_EQ(a->stats().num_bytes, 0);
  Keep(*a, 1, 100);  // And it can be kept again.
  EXPECT_TRUE(Get(*b, 1, 100));
}

TEST_F(PrefixSharingTest, AllFilesTogetherStayWithinTheBytes) {
  auto first = Open();
  Keep(*first, 1, 190);
  const int64_t one = FileBytes();
  max_bytes_ = 5 * one + one / 2;
  first = Open();
  std::atomic<bool> done = false;
  std::atomic<int64_t> most = 0;
  std::thread watch([&] {
    const int lock = ::open((root_ / "cache/lock").c_str(), O_RDWR | O_CLOEXEC);
    while (!done) {
      ::flock(lock, LOCK_EX);  // No name changes in the midst of the list.
      most = std::max(most.load(), FileBytes());
      ::flock(lock, LOCK_UN);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::close(lock);
  });
  std::vector<std::thread> servers;
  for (int server = 0; server < 4; ++server) {
    servers.emplace_back([&, server] {
      const auto disk = Open();
      for (int32_t i = 0; i < 25; ++i) Keep(*disk, 1000 * (server + 1) + i, 190);
      EXPECT_GT(disk->stats().num_written, 0);
    });
  }
  for (std::thread& server : servers) server.join();
  done = true;
  watch.join();
  EXPECT_LE(most, max_bytes_);
  EXPECT_GE(FileBytes(), 4 * one);
  EXPECT_FALSE(Get(*first, 1, 190));
  EXPECT_EQ(first->stats().num_bytes, FileBytes());
}

TEST_F(PrefixSharingTest, TheLeastRecentlyUsedOfAllGoesWhateverTheClocks) {
  max_bytes_ = int64_t{1} << 30;
  auto a = Open();
  Keep(*a, 1, 190);
  const int64_t one = FileBytes();
  Keep(*a, 2, 190);
  // A server's clock was far ahead, and it went.
  const auto future = fs::file_time_type::clock::now() + std::chrono::hours(24 * 365);
  fs::last_write_time(root_ / ("cache/states/" + PrefixFileName(42, 0, Path(1, 190))), future);
  max_bytes_ = 3 * one;
  a = Open();
  auto b = Open();
  Keep(*b, 3, 190);
  ASSERT_TRUE(Get(*a, 2, 190));  // Now the first is the oldest, and the third the next.
  a->Flush();
  Keep(*b, 4, 190);
  EXPECT_FALSE(Get(*b, 1, 190));
  ASSERT_TRUE(Get(*b, 2, 190));
  b->Flush();
  Keep(*a, 5, 190);
  EXPECT_FALSE(Get(*a, 3, 190));
  for (const int32_t first : {2, 4, 5}) EXPECT_TRUE(Get(*a, first, 190)) << first;
}

// The lease of a file: while its writer lives no other writes or removes it; when it is dead, its room is
// free.
TEST_F(PrefixSharingTest, AFileHasOneWriterAndADeadOneLosesIt) {
  auto a = Open();
  Keep(*a, 1, 190);
  const std::string name = PrefixFileName(42, 0, Path(2, 190));
  {
    const auto other = UnfinishedPrefixFile::Create(root_ / "cache/states", name, FileBytes());
    ASSERT_TRUE(other.has_value());
    Keep(*a, 2, 190);
    EXPECT_EQ(a->stats().num_written, 1);
    EXPECT_EQ(a->stats().num_dropped, 0);
    EXPECT_FALSE(Get(*a, 2, 190));
    auto b = Open();
    EXPECT_EQ(b->findings().num_unfinished, 0);
    EXPECT_EQ(Files(true).size(), 1U);
  }
  std::ofstream(root_ / ("cache/states/" + name + ".0123456789abcdef.unfinished")) << "a dead server's";
  Keep(*a, 2, 190);
  EXPECT_EQ(a->stats().num_written, 2);
  EXPECT_TRUE(Files(true).empty());
  EXPECT_TRUE(Get(*a, 2, 190));
}

TEST_F(PrefixSharingTest, OneThatHoldsTheLockForLongCostsReuse) {
  auto a = Open();
  const int lock = ::open((root_ / "cache/lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  a->Offer(0, Path(1, 100), State(1, 100));
  EXPECT_FALSE(Get(*a, 2, 100));  // No reader waits for it.
  const auto other = PrefixDisk::Open({.directory = root_ / "cache", .max_bytes = 1}, {});
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code(), StatusCode::kDeadlineExceeded);
  a->Flush();
  EXPECT_EQ(a->stats().num_dropped, 1);
  ::close(lock);
  Keep(*a, 1, 100);
  EXPECT_EQ(a->stats().num_written, 1);
}

TEST_F(PrefixSharingTest, ADirectoryThatWentAwayIsNotMadeAgainAndComesBack) {
  auto a = Open();
  auto b = Open();
  Keep(*a, 1, 100);
  fs::rename(root_ / "cache", root_ / "away");
  Keep(*a, 2, 100);
  EXPECT_EQ(a->stats().num_dropped, 1);
  EXPECT_FALSE(Get(*b, 2, 100));
  EXPECT_FALSE(fs::exists(root_ / "cache"));
  fs::create_directory(root_ / "cache");  // As a path where nothing is mounted.
  Keep(*a, 2, 100);
  EXPECT_EQ(a->stats().num_dropped, 2);
  EXPECT_TRUE(fs::is_empty(root_ / "cache"));
  fs::remove(root_ / "cache");
  fs::rename(root_ / "away", root_ / "cache");
  EXPECT_TRUE(Get(*b, 1, 100));
  Keep(*a, 2, 100);
  EXPECT_TRUE(Get(*b, 2, 100));
}

// A process of its own, to be killed: writes states without end.
TEST_F(PrefixSharingTest, DISABLED_Writer) {
  const char* directory = std::getenv(kWriterDirectory);
  ASSERT_NE(directory, nullptr);
  const auto disk = Open(directory);
  std::ofstream(std::string(directory) + "/../started") << "x";
  for (int32_t first = std::atoi(std::getenv(kWriterSeed));; ++first) Keep(*disk, first, kLength);
}

// Servers that are killed while they write leave nothing that another takes for a state. Two write at once,
// half of their states the same.
TEST_F(PrefixSharingTest, NoKillLeavesATornState) {
  const char* wanted = std::getenv(kNumKills);
  const int num_kills = wanted != nullptr ? std::atoi(wanted) : 20;
  const auto reader = Open();
  std::mt19937 random(5);
  constexpr int32_t kStates = 100;  // At most that a writer comes to.
  const auto start = [&](int32_t first) {
    const pid_t writer = ::fork();
    if (writer == 0) {
      ::setenv(kWriterDirectory, (root_ / "cache").c_str(), 1);
      ::setenv(kWriterSeed, std::to_string(first).c_str(), 1);
      const int nowhere = ::open("/dev/null", O_WRONLY);
      ::dup2(nowhere, STDOUT_FILENO);
      ::execl("/proc/self/exe", "writer", "--gtest_also_run_disabled_tests",
              "--gtest_filter=PrefixSharingTest.DISABLED_Writer", nullptr);
      ::_exit(1);
    }
    return writer;
  };
  int64_t num_torn = 0;
  for (int kill = 0; kill < num_kills; kill += 2) {
    fs::remove(root_ / "started");
    const int32_t first = 1 + kill * kStates;
    const pid_t writers[] = {start(first), start(first + static_cast<int32_t>(random() % 4))};
    while (!fs::exists(root_ / "started")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // At any byte of a write.
    for (const pid_t writer : writers) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      ::kill(writer, SIGKILL);
    }
    for (const pid_t writer : writers) {
      int status = 0;
      ASSERT_EQ(::waitpid(writer, &status, 0), writer);
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended by itself: " << status;
    }
    num_torn += static_cast<int64_t>(Files(true).size());
    for (int32_t i = 0; i < 8; ++i) {
      if (const auto loaded = Get(*reader, first + i, kLength)) ExpectWhole(*loaded, first + i);
    }
    if (kill % 50 == 0) Keep(*reader, -1 - kill, kLength);  // Makes room: what the dead have begun goes.
  }
  Keep(*reader, -2, kLength);
  EXPECT_TRUE(Files(true).empty());
  // Every file that there is can be used.
  int64_t num_found = 0;
  for (int32_t first = 1; first <= num_kills * kStates; ++first) {
    if (!fs::exists(root_ / ("cache/states/" + PrefixFileName(42, 0, Path(first, kLength))))) continue;
    const auto loaded = Get(*reader, first, kLength);
    ASSERT_TRUE(loaded) << first;
    if (++num_found % 10 == 0) ExpectWhole(*loaded, first);
  }
  EXPECT_GT(num_found, 0);
  if (num_kills >= 100) {  // Some are in the midst of a write.
    EXPECT_GT(num_torn, 0);
  }
  EXPECT_EQ(reader->stats().num_rejected, 0);
  printf("%d kills: %d files begun and not finished, %d states whole, none wrong\n", num_kills,
         static_cast<int>(num_torn), static_cast<int>(num_found));
}

}  // namespace
}  // namespace dsv4::engine
