// Tests of states on disk: one server alone.
#include "engine/prefix_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/temporary_directory_testing.h"
#include "engine/prefix_file.h"
#include "kv/testing.h"
#include "model/arch/architecture.h"
#include "model/config/cache_geometry.h"
#include "model/synthetic/synthetic_shape.h"

namespace dsv4::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

class PrefixDiskTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() {
    disk_.reset();
    auto disk =
        PrefixDisk::Open({.directory = root_ / "cache",
                          .max_bytes = max_bytes_,
                          .origin = [this] { return Origin(); },
                          .max_queued_bytes = max_queued_bytes_},
                         [this](std::span<const std::byte> bytes, uint64_t origin) {
                           return kv::Snapshot::Deserialize(bytes, origin, layout_, HostMemory(), nullptr);
                         });
    ASSERT_TRUE(disk.has_value()) << disk.error().ToString();
    disk_ = std::move(*disk);
  }

  // `length` tokens; `first` tells paths apart.
  static Tokens Path(int32_t first, int64_t length) {
    Tokens tokens(static_cast<size_t>(length));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first * 1000 + static_cast<int32_t>(i);
    return tokens;
  }
  static Tokens Join(Tokens a, const Tokens& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  kv::SequenceState State(int64_t length, int branch = 1) {
    kv::SequenceState state = *kv::SequenceState::Create(layout_, HostMemory(), nullptr);
    while (state.length() < length) {
      kv::testing::Append(state, std::min(length - state.length(), layout_->max_chunk_tokens), branch);
    }
    return state;
  }
  void Offer(const Tokens& tokens, uint64_t salt = 0) {
    disk_->Offer(salt, tokens, State(static_cast<int64_t>(tokens.size())));
  }
  void Keep(const Tokens& tokens, uint64_t salt = 0) {
    Offer(tokens, salt);
    disk_->Flush();
    disk_->Tidy();
  }
  std::optional<PrefixDisk::Loaded> Get(const Tokens& prompt, uint64_t salt = 0, int64_t longer_than = 0) {
    const std::shared_ptr<PrefixDisk::Load> load = disk_->Find(salt, prompt, longer_than);
    if (load == nullptr) return std::nullopt;
    while (!disk_->IsDone(*load)) disk_->WaitForLoad(std::chrono::milliseconds(100));
    return disk_->Take(*load);
  }
  int64_t LengthOf(const Tokens& prompt, uint64_t salt = 0) {
    const auto loaded = Get(prompt, salt);
    return loaded ? loaded->state.length() : 0;
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(root_ / "cache/states")) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
  int64_t FileBytes() const {
    int64_t num_bytes = 0;
    for (const fs::path& file : Files()) num_bytes += static_cast<int64_t>(fs::file_size(file));
    return num_bytes;
  }

  TemporaryDirectory root_;
  std::shared_ptr<kv::CacheLayout> layout_ = std::make_shared<kv::CacheLayout>(kv::testing::SmallLayout());
  int64_t max_bytes_ = int64_t{1} << 30;
  int64_t max_queued_bytes_ = int64_t{1} << 30;
  Result<uint64_t> Origin() {
    const std::lock_guard lock(origin_mutex_);
    return origin_;
  }
  void SetOrigin(Result<uint64_t> origin) {
    const std::lock_guard lock(origin_mutex_);
    origin_ = std::move(origin);
  }

  std::mutex origin_mutex_;  // Threads of the disk ask.
  Result<uint64_t> origin_ = 42;
  std::unique_ptr<PrefixDisk> disk_;
};

TEST_F(PrefixDiskTest, AStateOutlivesItsProcess) {
  Offer(Path(1, 100));
  Open();
  EXPECT_EQ(disk_->stats().num_states, 1);
  EXPECT_EQ(disk_->stats().num_bytes, FileBytes());
  auto loaded = Get(Join(Path(1, 100), {5, 6}));
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->tokens, Path(1, 100));
  kv::testing::Shadow shadow(layout_);
  shadow.Append(100, 1);
  kv::testing::ExpectEqual(loaded->state, shadow);
  // The copy can be written, and the next asker gets what the first got.
  kv::testing::Append(loaded->state, 5, 9);
  auto again = Get(Join(Path(1, 100), {5, 6}));
  kv::testing::ExpectEqual(again->state, shadow);
  EXPECT_EQ(disk_->stats().num_read, 2);
  EXPECT_EQ(disk_->stats().num_read_tokens, 200);
}

TEST_F(PrefixDiskTest, FindsTheLongestUsablePrefixAndStatesALittleLonger) {
  Keep(Path(1, 70));
  Keep(Path(1, 150));
  EXPECT_EQ(LengthOf(Path(1, 200)), 150);
  EXPECT_EQ(LengthOf(Path(1, 151)), 150);
  EXPECT_EQ(LengthOf(Path(1, 150)), 150);  // To be taken back: the last token is always computed.
  EXPECT_EQ(LengthOf(Join(Path(1, 150 - kDiskRewindTokens), {5, 5})), 150);
  EXPECT_EQ(LengthOf(Join(Path(1, 150 - kDiskRewindTokens - 1), {5, 5})), 70);
  EXPECT_EQ(LengthOf(Path(1, 60)), 0);
  EXPECT_EQ(LengthOf(Path(2, 200)), 0);
  EXPECT_FALSE(Get(Path(1, 200), 0, 150));
  EXPECT_TRUE(Get(Path(1, 200), 0, 149));
  EXPECT_EQ(disk_->Find(0, Path(1, 150), 149), nullptr);  // Too short for more.
  auto loaded = Get(Join(Path(1, 148), {5, 5}));
  ASSERT_TRUE(loaded && loaded->state.Rewind(2).ok());
  kv::testing::Shadow shadow(layout_);
  shadow.Append(148, 1);
  kv::testing::ExpectEqual(loaded->state, shadow);
}

TEST_F(PrefixDiskTest, OnlyWhatIsWorthAFileIsWritten) {
  Keep(Path(1, PrefixDisk::kMinGain - 1));
  EXPECT_EQ(disk_->stats().num_written, 0);
  Keep(Path(1, 100));
  Keep(Path(1, 100));
  Keep(Path(1, 100 + PrefixDisk::kMinGain - 1));
  EXPECT_EQ(disk_->stats().num_written, 1);
  Keep(Path(1, 100 + PrefixDisk::kMinGain));
  EXPECT_EQ(disk_->stats().num_written, 2);
  EXPECT_EQ(Files().size(), 2U);
}

TEST_F(PrefixDiskTest, OtherSaltsAndOriginsShareNothing) {
  Keep(Path(1, 100), 5);
  EXPECT_EQ(LengthOf(Path(1, 120), 5), 100);
  EXPECT_EQ(LengthOf(Path(1, 120), 6), 0);
  SetOrigin(43);
  Open();
  EXPECT_EQ(LengthOf(Path(1, 120), 5), 0);
  EXPECT_EQ(disk_->stats().num_states, 0);
  EXPECT_EQ(disk_->stats().num_bytes, FileBytes());  // They take room all the same.
  SetOrigin(42);
  Open();
  EXPECT_EQ(LengthOf(Path(1, 120), 5), 100);
}

TEST_F(PrefixDiskTest, NothingIsReadOrWrittenBeforeTheOriginIsKnown) {
  Keep(Path(1, 100));
  const Result<uint64_t> known = Origin();
  SetOrigin(Error(StatusCode::kUnavailable, "not yet"));
  Open();
  EXPECT_EQ(disk_->stats().num_bytes, FileBytes());
  EXPECT_EQ(disk_->stats().num_states, 0);
  EXPECT_EQ(LengthOf(Path(1, 120)), 0);
  Offer(Path(1, 100));
  Offer(Path(2, 100));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(LengthOf(Path(2, 120)), 0);
  EXPECT_EQ(disk_->stats().num_written, 0);
  EXPECT_EQ(Files().size(), 1U);
  SetOrigin(known);
  disk_->Flush();
  disk_->Tidy();
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  EXPECT_EQ(LengthOf(Path(2, 120)), 100);
  EXPECT_EQ(disk_->stats().num_written, 1);  // The other was there.
  EXPECT_EQ(disk_->stats().num_states, 2);
  // An origin that comes out as another finds nothing.
  SetOrigin(Error(StatusCode::kUnavailable, "not yet"));
  Open();
  Offer(Path(3, 100));
  SetOrigin(7);
  disk_->Flush();
  disk_->Tidy();
  EXPECT_EQ(disk_->stats().num_states, 1);
  EXPECT_EQ(LengthOf(Path(1, 120)), 0);
  EXPECT_EQ(LengthOf(Path(3, 120)), 100);
}

TEST_F(PrefixDiskTest, AnEndBeforeTheOriginIsKnownLeavesTheFilesAsTheyAre) {
  Keep(Path(1, 100));
  SetOrigin(Error(StatusCode::kUnavailable, "not yet"));
  Open();
  Offer(Path(2, 100));
  disk_.reset();
  SetOrigin(42);
  Open();
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  EXPECT_EQ(LengthOf(Path(2, 120)), 0);
}

TEST_F(PrefixDiskTest, AfterAChangeOfTheWeightsNothingIsReadOrWritten) {
  Keep(Path(1, 100));
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  const int64_t num_read = disk_->stats().num_read;
  SetOrigin(Error(DataLoss("model.safetensors: was changed")));
  EXPECT_EQ(LengthOf(Path(1, 120)), 0);
  Offer(Path(2, 100));
  disk_->Flush();
  disk_->Tidy();
  EXPECT_EQ(disk_->stats().num_read, num_read);
  EXPECT_EQ(disk_->stats().num_states, 0);
  EXPECT_EQ(Files().size(), 1U);
  // The same where a write finds it first.
  SetOrigin(42);
  Open();
  SetOrigin(Error(DataLoss("model.safetensors: was changed")));
  Offer(Path(2, 100));
  disk_->Flush();
  disk_->Tidy();
  EXPECT_EQ(disk_->stats().num_dropped, 1);
  EXPECT_EQ(LengthOf(Path(1, 120)), 0);
  EXPECT_EQ(Files().size(), 1U);
}

TEST_F(PrefixDiskTest, TheLeastRecentlyUsedGoesAlsoAcrossARestart) {
  Keep(Path(1, 100));
  const int64_t one = FileBytes();
  max_bytes_ = 3 * one;
  Open();
  Keep(Path(2, 100));
  Keep(Path(3, 100));
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  disk_->Flush();
  Open();
  Keep(Path(4, 100));
  EXPECT_EQ(LengthOf(Path(2, 120)), 0);
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  EXPECT_EQ(disk_->stats().num_evictions, 1);
  EXPECT_EQ(disk_->stats().num_bytes, FileBytes());
  max_bytes_ = one;  // A smaller budget holds from the start.
  Open();
  EXPECT_EQ(FileBytes(), one);
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  max_bytes_ = one - 1;
  Open();
  Keep(Path(5, 100));  // Does not fit at all.
  EXPECT_EQ(FileBytes(), 0);
  EXPECT_EQ(disk_->stats().num_dropped, 1);
  EXPECT_EQ(disk_->stats().num_states, 0);
}

TEST_F(PrefixDiskTest, TheQueueIsBoundedAndCanBeGivenUp) {
  max_queued_bytes_ = 1;
  Open();
  const kv::SequenceState state = State(100);  // Once, so that offering is faster than any disk.
  for (int32_t path = 1; path <= 200; ++path) disk_->Offer(0, Path(path, 100), state);
  disk_->Flush();
  const PrefixDiskStats stats = disk_->stats();
  EXPECT_GT(stats.num_dropped, 0);
  EXPECT_GT(stats.num_written, 0);
  EXPECT_EQ(stats.num_dropped + stats.num_written, 200);
  EXPECT_EQ(static_cast<int64_t>(Files().size()), stats.num_written);
  EXPECT_EQ(stats.num_states, stats.num_written);
  EXPECT_TRUE(disk_->DropQueue());  // Memory of unwritten states is held until now.
  EXPECT_FALSE(disk_->DropQueue());
}

TEST_F(PrefixDiskTest, AskersShareALoadAndMayLeave) {
  Keep(Path(1, 100));
  const auto first = disk_->Find(0, Path(1, 120), 0);
  const auto second = disk_->Find(0, Path(1, 130), 0);
  while (!disk_->IsDone(*second)) disk_->WaitForLoad(std::chrono::milliseconds(10));
  if (first == second) {  // Unless the first was done before the second asked.
    EXPECT_EQ(disk_->Take(*first)->state.length(), 100);
  }
  EXPECT_EQ(disk_->Take(*second)->state.length(), 100);
  for (int i = 0; i < 50; ++i) (void)disk_->Find(0, Path(1, 120), 0);
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
}

TEST_F(PrefixDiskTest, ADirectoryThatCannotBeUsedIsSaid) {
  std::ofstream(root_ / "file") << "x";
  const auto file = PrefixDisk::Open({.directory = root_ / "file/cache", .max_bytes = 1}, {});
  EXPECT_EQ(file.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(file.error().message(), HasSubstr("Not a directory"));
  EXPECT_EQ(PrefixDisk::Open({.directory = root_ / "other", .max_bytes = 0}, {}).error().code(),
            StatusCode::kInvalidArgument);
  fs::create_directories(root_ / "third/lock");
  const auto locked = PrefixDisk::Open({.directory = root_ / "third", .max_bytes = 1}, {});
  EXPECT_THAT(locked.error().message(), HasSubstr("third/lock: cannot open"));
}

TEST_F(PrefixDiskTest, TheSecretStaysAndIsPrivate) {
  const std::string secret = disk_->secret();
  EXPECT_EQ(secret.size(), 32U);
  Open();
  EXPECT_EQ(disk_->secret(), secret);
  struct stat status = {};
  ASSERT_EQ(::stat((root_ / "cache/secret").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  ASSERT_EQ(::stat((root_ / "cache").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
}

// Each kind of damage: found at the start or when the state is wanted, removed, counted, and not met again.
TEST_F(PrefixDiskTest, DamagedFilesAreRemovedOnce) {
  const auto damage = [](const fs::path& file, int kind) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<int64_t>(fs::file_size(file));
    const int64_t place = kind == 0   ? 3
                          : kind == 1 ? 40
                          : kind == 2 ? 144 + 40
                          : kind == 3 ? size / 2
                                      : 144 + 600 + 35;
    if (kind == 5) {
      fs::resize_file(file, static_cast<uintmax_t>(size / 2));
    } else if (kind == 6) {
      fs::remove(file);
    } else {
      stream.seekg(place);
      const int byte = stream.get();
      stream.seekp(place);
      stream.put(static_cast<char>(byte ^ 0x10));
    }
  };
  for (const bool while_running : {true, false}) {
    for (int kind = 0; kind <= 6; ++kind) {
      SCOPED_TRACE(kind + (while_running ? 100 : 0));
      Keep(Path(1, 80));
      Keep(Path(1, 150));
      ASSERT_EQ(Files().size(), 2U);
      if (!while_running) disk_.reset();
      // The longer state's.
      const std::vector<fs::path> files = Files();
      damage(fs::file_size(files[0]) > fs::file_size(files[1]) ? files[0] : files[1], kind);
      if (!while_running) Open();
      const int64_t rejected = disk_->stats().num_rejected;
      (void)Get(Path(1, 200));  // May meet the damage.
      EXPECT_EQ(LengthOf(Path(1, 200)), 80);
      disk_->Flush();
      EXPECT_EQ(Files().size(), 1U);
      EXPECT_EQ(disk_->stats().num_bytes, FileBytes());
      EXPECT_EQ(disk_->stats().num_states, 1);
      if (while_running) {  // A file that is gone is one that another server has removed.
        EXPECT_EQ(disk_->stats().num_rejected, rejected + (kind == 6 ? 0 : 1));
      }
      Keep(Path(1, 150));  // And it can be kept again.
      EXPECT_EQ(LengthOf(Path(1, 200)), 150);
    }
  }
}

TEST_F(PrefixDiskTest, AStateUnderAnothersNameIsNotUsed) {
  Keep(Path(1, 100));
  Keep(Path(2, 100));
  const std::vector<fs::path> files = Files();
  fs::copy_file(files[0], files[1], fs::copy_options::overwrite_existing);
  EXPECT_EQ(LengthOf(Path(1, 120)) + LengthOf(Path(2, 120)), 100);
  disk_->Flush();
  EXPECT_EQ(Files().size(), 1U);
}

TEST_F(PrefixDiskTest, WhatAKillLeavesGoesAndWhatIsNotOursStays) {
  Keep(Path(1, 100));
  disk_.reset();
  const std::string states = root_ / "cache/states/";
  const std::string name = PrefixFileName(1, 2, Path(1, 3));
  std::ofstream(states + "notes.txt") << "mine";
  std::ofstream(states + name + ".0123456789abcdef.unfinished") << "half a st";
  std::ofstream(states + name + ".unfinished") << "an earlier version's";
  std::ofstream(states + name) << "no state at all";
  fs::create_symlink("/etc/passwd", states + PrefixFileName(1, 2, Path(1, 4)));
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::ofstream(root_ / (std::string("cache/catalogue.sqlite") + suffix)) << "an earlier version's";
  }
  Open();
  EXPECT_EQ(disk_->stats().num_rejected, 2);
  EXPECT_EQ(disk_->findings().num_unfinished, 2);
  EXPECT_EQ(disk_->findings().num_foreign, 1);
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  EXPECT_TRUE(fs::exists("/etc/passwd"));
  EXPECT_TRUE(fs::exists(states + "notes.txt"));
  EXPECT_FALSE(fs::exists(root_ / "cache/catalogue.sqlite"));
  EXPECT_EQ(Files().size(), 2U);
  Open();
  EXPECT_EQ(disk_->stats().num_rejected, 0);
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
}

// Another version's server may use it: it takes room, and goes when the room is wanted.
TEST_F(PrefixDiskTest, AFileOfAnotherVersionIsLeftAlone) {
  Keep(Path(1, 100));
  const int64_t one = FileBytes();
  {
    std::fstream file(Files()[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put(3);
  }
  Open();
  EXPECT_EQ(LengthOf(Path(1, 120)), 0);
  EXPECT_EQ(Files().size(), 1U);
  EXPECT_EQ(disk_->stats().num_bytes, one);
  EXPECT_EQ(disk_->stats().num_states, 0);
  max_bytes_ = one;
  Open();
  Keep(Path(2, 100));
  EXPECT_EQ(LengthOf(Path(2, 120)), 100);
  EXPECT_EQ(FileBytes(), one);
}

TEST_F(PrefixDiskTest, AFailingDiskCostsReuseAndNothingElse) {
  Keep(Path(1, 100));
  const std::string states = root_ / "cache/states";
  fs::rename(states, root_ / "away");
  Keep(Path(2, 100));
  EXPECT_EQ(disk_->stats().num_dropped, 1);
  EXPECT_EQ(disk_->stats().num_states, 1);
  fs::rename(root_ / "away", states);
  EXPECT_EQ(LengthOf(Path(1, 120)), 100);
  Keep(Path(2, 100));
  EXPECT_EQ(LengthOf(Path(2, 120)), 100);
}

// The figures in docs/serving.md.
TEST(PrefixDiskSize, AFileHasHalfOfTheRingsOfAFlashState) {
  const auto config = model::ParseModelConfig(*model::SyntheticConfig({.shape = "flash"}), "flash");
  ASSERT_TRUE(config.has_value()) << config.error().ToString();
  const kv::CacheLayout layout = model::CacheGeometry(*config, config->layers, model::Numerics::kRelease,
                                                      model::CacheRows::kPacked, 512, 64);
  const int64_t length = 4096;
  const int64_t rings = kv::StateBytes(layout, 0);
  const int64_t entries = kv::StateBytes(layout, length) - rings;
  int64_t least = rings;
  int64_t most = 0;
  for (int64_t i = 0; i < 128; ++i) {
    int64_t in_file = kv::SnapshotBytes(layout, length + i, kDiskRewindTokens);
    for (int layer = 0; layer < static_cast<int>(layout.layers.size()); ++layer) {
      for (const kv::PageKind kind : {kv::PageKind::kEntries, kv::PageKind::kIndexerKeys}) {
        if (!layout.HasPages(layer, kind)) continue;
        in_file -= layout.NumEntries(layer, length + i) * layout.PageRowBytes(layer, kind);
      }
    }
    least = std::min(least, in_file);
    most = std::max(most, in_file);
  }
  printf(
      "rings of a Flash state: %.1f MB in memory, %.1f to %.1f MB in a file; entries of %d tokens: %.1f MB\n",
      static_cast<double>(rings) / 1e6, static_cast<double>(least) / 1e6, static_cast<double>(most) / 1e6,
      static_cast<int>(length), static_cast<double>(entries) / 1e6);
  EXPECT_LT(100 * most, 52 * rings);
}

// Against a list of all that was offered, with restarts and evictions between.
TEST_F(PrefixDiskTest, RandomTrafficAgreesWithAPlainList) {
  Keep(Path(1, 100));
  max_bytes_ = 6 * FileBytes();
  Open();
  std::mt19937 random(4);
  std::vector<std::pair<uint64_t, Tokens>> offered;
  int64_t num_hits = 0;
  int64_t num_evictions = 0;
  for (int round = 0; round < 300; ++round) {
    Tokens tokens(70 + random() % 120);
    for (int32_t& token : tokens) token = random() % 60 == 0 ? 1 : 0;
    const uint64_t salt = random() % 2;
    if (round % 100 == 99) {
      num_evictions += disk_->stats().num_evictions;
      Open();
    }
    if (round % 2 == 0) {
      Keep(tokens, salt);
      offered.emplace_back(salt, tokens);
      continue;
    }
    const auto loaded = Get(tokens, salt);
    if (!loaded) continue;
    ++num_hits;
    const auto common =
        std::mismatch(loaded->tokens.begin(), loaded->tokens.end(), tokens.begin(), tokens.end());
    ASSERT_LE(loaded->tokens.end() - common.first, kDiskRewindTokens);
    ASSERT_TRUE(std::any_of(offered.begin(), offered.end(), [&](const auto& candidate) {
      return candidate.first == salt && candidate.second == loaded->tokens;
    }));
    kv::testing::Shadow shadow(layout_);
    shadow.Append(static_cast<int64_t>(loaded->tokens.size()), 1);
    kv::testing::ExpectEqual(loaded->state, shadow);
  }
  EXPECT_GT(num_hits, 10);
  EXPECT_GT(num_evictions, 5);
  EXPECT_LE(FileBytes(), max_bytes_);
  EXPECT_EQ(disk_->stats().num_bytes, FileBytes());
  EXPECT_EQ(disk_->stats().num_rejected, 0);
}

}  // namespace
}  // namespace dsv4::engine
