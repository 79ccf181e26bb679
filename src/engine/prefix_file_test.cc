// Tests of the files of states.
#include "engine/prefix_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/temporary_directory_testing.h"

namespace dsv4::engine {
namespace {

namespace fs = std::filesystem;

class PrefixFileTest : public ::testing::Test {
 protected:
  Status WriteInto(const std::string& directory) const {
    const int64_t num_bytes =
        PrefixFileBytes(static_cast<int64_t>(key_.tokens.size()), static_cast<int64_t>(snapshot_.size()));
    Result<UnfinishedPrefixFile> file = UnfinishedPrefixFile::Create(directory, name_, num_bytes);
    if (!file) return file.error();
    DSV4_RETURN_IF_ERROR(file->Write(key_, snapshot_, 12'000'000'345));
    return file->Finish();
  }
  std::string Write() const {
    EXPECT_TRUE(WriteInto(directory_.path()).ok());
    return directory_ / name_;
  }
  std::vector<char> Bytes(const std::string& path) const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Put(const std::string& path, const std::vector<char>& bytes) const {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  StatusCode ReadCode(const std::string& path) const {
    const Result<PrefixContent> content = ReadPrefixFile(path);
    return content ? StatusCode::kOk : content.error().code();
  }

  TemporaryDirectory directory_;
  PrefixKey key_ = {.origin = 7, .salt = 8, .tokens = {1, 2, 3, 400'000}};
  std::vector<std::byte> snapshot_ = std::vector<std::byte>(1000, std::byte{0x5a});
  std::string name_ = PrefixFileName(key_.origin, key_.salt, key_.tokens);
};

TEST_F(PrefixFileTest, WhatIsWrittenIsRead) {
  const std::string path = Write();
  EXPECT_EQ(static_cast<int64_t>(fs::file_size(path)), PrefixFileBytes(4, 1000));
  const Result<PrefixContent> content = ReadPrefixFile(path);
  ASSERT_TRUE(content.has_value()) << content.error().ToString();
  EXPECT_EQ(content->key.tokens, key_.tokens);
  EXPECT_EQ(content->key.origin, 7U);
  EXPECT_EQ(content->key.salt, 8U);
  EXPECT_EQ(content->snapshot, snapshot_);
  const Result<PrefixFileHead> head = ReadPrefixFileHead(path);
  ASSERT_TRUE(head.has_value()) << head.error().ToString();
  EXPECT_EQ(head->name, name_);
  EXPECT_EQ(head->num_tokens, 4);
  EXPECT_EQ(head->num_bytes, PrefixFileBytes(4, 1000));
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, 12);
  EXPECT_EQ(status.st_mtim.tv_nsec, 345);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  Write();  // Again, over itself.
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 1);
}

TEST_F(PrefixFileTest, NamesAreTheContents) {
  EXPECT_TRUE(IsPrefixFileName(name_));
  EXPECT_NE(name_, PrefixFileName(6, 8, key_.tokens));
  EXPECT_NE(name_, PrefixFileName(7, 9, key_.tokens));
  EXPECT_NE(name_, PrefixFileName(7, 8, std::vector<int32_t>{1, 2, 3}));
  {
    const auto file = UnfinishedPrefixFile::Create(directory_.path(), name_, 100);
    const fs::path unfinished = fs::directory_iterator(directory_.path())->path();
    EXPECT_TRUE(IsUnfinishedName(unfinished.filename()));
    EXPECT_TRUE(IsUnfinishedNameOf(unfinished.filename(), name_));
    EXPECT_FALSE(IsPrefixFileName(unfinished.filename()));
    EXPECT_EQ(fs::file_size(unfinished), 100U);  // It takes its room at once.
    const int fd = ::open(unfinished.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_NE(::flock(fd, LOCK_EX | LOCK_NB), 0);  // Its writer lives.
    ::close(fd);
  }
  EXPECT_TRUE(fs::is_empty(directory_.path()));
  for (const char* other :
       {"", ".state", "notes.txt", "0123456789abcdef0123456789abcdeF.state", "../x.state"}) {
    EXPECT_FALSE(IsPrefixFileName(other)) << other;
    EXPECT_FALSE(IsUnfinishedName(other)) << other;
  }
}

TEST_F(PrefixFileTest, EveryTruncationAndEveryFlippedByteIsRefused) {
  const std::string path = Write();
  const std::vector<char> good = Bytes(path);
  for (size_t size = 0; size < good.size(); size += size < 170 ? 1 : 97) {
    Put(path, {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
    EXPECT_EQ(ReadCode(path), StatusCode::kDataLoss) << size;
  }
  std::vector<char> longer = good;
  longer.push_back(0);
  Put(path, longer);
  EXPECT_EQ(ReadCode(path), StatusCode::kDataLoss);
  for (size_t i = 0; i < 144 + 16; ++i) {  // The snapshot has its own hash.
    std::vector<char> damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    Put(path, damaged);
    const bool version = i >= 8 && i < 16;
    EXPECT_EQ(ReadCode(path), version ? StatusCode::kUnimplemented : StatusCode::kDataLoss) << i;
  }
}

TEST_F(PrefixFileTest, WhatIsNoFileIsRefusedWithoutWaiting) {
  const std::string path = Write();
  EXPECT_EQ(ReadCode(directory_ / "none"), StatusCode::kNotFound);
  fs::create_symlink(path, directory_ / "link");
  EXPECT_EQ(ReadCode(directory_ / "link"), StatusCode::kDataLoss);
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(ReadCode(directory_ / "pipe"), StatusCode::kDataLoss);
  EXPECT_EQ(ReadCode(directory_.path()), StatusCode::kDataLoss);
}

// As on a full disk: the write fails half-way.
TEST_F(PrefixFileTest, AFailedWriteLeavesNothing) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 500, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const Status status = WriteInto(directory_.path());
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(fs::is_empty(directory_.path())) << status.ToString();
  EXPECT_EQ(WriteInto(directory_ / "gone").code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace dsv4::engine
