// Hashes of checkpoints: every byte counts, and a change under them is found.
#include "io/content_digest.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>

#include "base/temporary_directory_testing.h"
#include "io/safetensors_writer.h"

namespace dsv4::io {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kForever = ContentDigest::kForever;

class ContentDigestTest : public ::testing::Test {
 protected:
  ContentDigestTest() { Write(directory_ / "model.safetensors"); }

  // Three tensors, one of several pieces.
  static void Write(const std::string& path) {
    std::mt19937 random(1);
    auto writer = SafetensorsWriter::Create(
        path, {{"a", DType::kU8, {5}}, {"b", DType::kU8, {kLarge}}, {"c", DType::kU8, {3}}});
    ASSERT_TRUE(writer.has_value()) << writer.error().ToString();
    for (const TensorSpec& spec : writer->specs()) {
      std::vector<std::byte> bytes(static_cast<size_t>(spec.num_bytes()));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      ASSERT_TRUE(writer->Append(bytes).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
  }
  std::shared_ptr<const Checkpoint> Open() const {
    auto checkpoint = Checkpoint::Open(directory_.path());
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().ToString();
    return *checkpoint;
  }
  void Flip(size_t offset) const {
    std::fstream file(directory_ / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  size_t FileBytes() const { return std::filesystem::file_size(directory_ / "model.safetensors"); }
  // As if nothing had been written.
  void KeepTimes(const std::function<void()>& change) const {
    struct stat before = {};
    ASSERT_EQ(::stat((directory_ / "model.safetensors").c_str(), &before), 0);
    change();
    const timespec times[2] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, (directory_ / "model.safetensors").c_str(), times, 0), 0);
  }

  static constexpr int64_t kLarge = (int64_t{17} << 20) + 5;
  const TemporaryDirectory directory_;
};

TEST_F(ContentDigestTest, IsAFunctionOfTheBytesHoweverTheyAreRead) {
  const uint64_t digest = *ContentDigest(Open()).Wait(kForever);
  EXPECT_EQ(*ContentDigest(Open(), /*past_cache=*/true).Wait(kForever), digest);
  const auto checkpoint = Open();
  ContentDigest followed(checkpoint);
  for (const char* name : {"c", "b", "a"}) {
    const std::vector<std::span<const std::byte>> ranges = {checkpoint->Find(name)->bytes, {}};
    followed.Follow(ranges);
  }
  EXPECT_EQ(*followed.Wait(kForever), digest);
  // In memory, as one that exists only in this process.
  std::span<std::byte> writable;
  auto copy = MappedFile::InMemory("copy", FileBytes(), writable);
  std::ifstream(directory_ / "model.safetensors", std::ios::binary)
      .read(reinterpret_cast<char*>(writable.data()), static_cast<std::streamsize>(writable.size()));
  std::vector<MappedFile> files;
  files.push_back(std::move(*copy));
  ContentDigest in_memory(*Checkpoint::FromFiles("memory", std::move(files)));
  EXPECT_EQ(*in_memory.Wait(kForever), digest);
}

TEST_F(ContentDigestTest, EveryByteCounts) {
  std::set<uint64_t> seen = {*ContentDigest(Open()).Wait(kForever)};
  std::mt19937 random(2);
  const size_t data = FileBytes() - static_cast<size_t>(kLarge) - 8;
  std::vector<size_t> offsets = {data, data + 5, FileBytes() - 1, FileBytes() - 3, FileBytes() - 4};
  for (size_t mib = 8; mib <= 16; mib += 8)
    for (const size_t at : {mib << 20, (mib << 20) - 1}) offsets.push_back(at);
  for (int i = 0; i < 20; ++i) offsets.push_back(data + random() % (FileBytes() - data));
  for (const size_t offset : offsets) {
    KeepTimes([&] { Flip(offset); });
    EXPECT_TRUE(seen.insert(*ContentDigest(Open()).Wait(kForever)).second) << offset;
    KeepTimes([&] { Flip(offset); });
  }
  EXPECT_TRUE(seen.contains(*ContentDigest(Open()).Wait(kForever)));
}

TEST_F(ContentDigestTest, AChangeAfterTheFileWasOpenedIsFoundWheneverItComes) {
  const auto expect_lost = [&](ContentDigest& digest) {
    const auto found = digest.Wait(kForever);
    ASSERT_FALSE(found.has_value());
    EXPECT_EQ(found.error().code(), StatusCode::kDataLoss);
    EXPECT_THAT(found.error().message(), HasSubstr("model.safetensors: was changed after it was opened"));
  };
  const auto wait_a_tick = [] {
    std::this_thread::sleep_for(milliseconds(20));
  };  // A file system's clock has ticks.
  wait_a_tick();
  ContentDigest early(Open());
  KeepTimes([&] { Flip(FileBytes() - 1); });  // Before it is hashed,
  expect_lost(early);
  wait_a_tick();
  ContentDigest late(Open());
  EXPECT_TRUE(late.Wait(kForever).has_value());
  EXPECT_TRUE(late.Wait(milliseconds(0)).has_value());
  KeepTimes([&] { Flip(FileBytes() - 1); });  // and after.
  expect_lost(late);
  KeepTimes([&] { Flip(FileBytes() - 1); });
  expect_lost(late);  // For good.
  // A file that replaces it is no change: what was opened is still there.
  ContentDigest replaced(Open());
  const uint64_t digest = *replaced.Wait(kForever);
  Write(directory_ / "new");
  std::filesystem::rename(directory_ / "new", directory_ / "model.safetensors");
  EXPECT_EQ(*replaced.Wait(kForever), digest);
  std::filesystem::resize_file(directory_ / "model.safetensors", 100);
  EXPECT_EQ(*replaced.Wait(kForever), digest);
}

TEST_F(ContentDigestTest, AFileThatIsCutShortIsFound) {
  const auto checkpoint = Open();
  std::this_thread::sleep_for(milliseconds(20));
  std::filesystem::resize_file(directory_ / "model.safetensors", size_t{9} << 20);
  EXPECT_EQ(ContentDigest(checkpoint).Wait(kForever).error().code(), StatusCode::kDataLoss);
}

TEST_F(ContentDigestTest, AnEndDoesNotWaitForWhatIsLeft) {
  for (int round = 0; round < 20; ++round) {
    ContentDigest digest(Open());
    digest.Start();
    const auto found = digest.Wait(milliseconds(0));
    if (!found) {
      EXPECT_EQ(found.error().code(), StatusCode::kUnavailable);
    }
  }
}

TEST_F(ContentDigestTest, PlacesAreEqualForTheVerySameFilesOnly) {
  const auto place = Open()->place();
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(Open()->place(), place);
  const auto stamp = Open()->stamp();
  std::filesystem::create_directory(directory_ / "copy");
  std::filesystem::copy_file(directory_ / "model.safetensors", directory_ / "copy/model.safetensors");
  EXPECT_NE((*Checkpoint::Open(directory_ / "copy"))->place(), place);
  std::this_thread::sleep_for(milliseconds(20));
  KeepTimes([&] { Flip(FileBytes() - 1); });
  EXPECT_NE(Open()->place(), place);
  EXPECT_NE(Open()->stamp(), stamp);
}

}  // namespace
}  // namespace dsv4::io
