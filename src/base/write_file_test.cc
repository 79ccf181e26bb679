// Tests of whole files: what a reader sees after errors and kills.
#include "base/write_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/read_file.h"
#include "base/temporary_directory_testing.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

int64_t NumFiles(const std::string& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

TEST(WriteFile, WritesReplacesAndLeavesNothingElse) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  for (const bool flush : {true, false}) {
    for (const std::string text : {"one", "", "two\n"}) {
      ASSERT_TRUE(WriteFile(path, text, {.flush = flush}).ok());
      EXPECT_EQ(*ReadFile(path), text);
    }
  }
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(NumFiles(directory.path()), 1);
}

TEST(WriteFile, TheFirstStaysWhereThatIsWanted) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFile(directory / "file", "first", {.keep_first = true}).ok());
  ASSERT_TRUE(WriteFile(directory / "file", "second", {.keep_first = true}).ok());
  EXPECT_EQ(*ReadFile(directory / "file"), "first");
  EXPECT_EQ(NumFiles(directory.path()), 1);
}

TEST(WriteFile, ALinkIsReplacedAndNotFollowed) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFile(directory / "target", "kept").ok());
  fs::create_symlink(directory / "target", directory / "link");
  ASSERT_TRUE(WriteFile(directory / "link", "new").ok());
  EXPECT_EQ(*ReadFile(directory / "target"), "kept");
  EXPECT_EQ(*ReadFile(directory / "link"), "new");
}

TEST(WriteFile, WhatCannotBeWrittenIsSaidAndTheOldFileStays) {
  const TemporaryDirectory directory;
  const Status missing = WriteFile(directory / "no/file", "text");
  EXPECT_EQ(missing.code(), StatusCode::kUnavailable);
  EXPECT_THAT(missing.message(), HasSubstr("No such file or directory"));
  fs::create_directories(directory / "folder/inner");
  EXPECT_THAT(WriteFile(directory / "folder", "text").message(), HasSubstr("folder: cannot rename to it"));

  ASSERT_TRUE(WriteFile(directory / "file", "old").ok());
  const rlimit small = {.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status full = WriteFile(directory / "file", std::string(5000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(full.code(), StatusCode::kUnavailable);
  EXPECT_THAT(full.message(), HasSubstr("cannot write, after 1000 of 5000 bytes: File too large"));
  EXPECT_EQ(*ReadFile(directory / "file"), "old");
  EXPECT_EQ(NumFiles(directory.path()), 2);
}

TEST(WriteFile, AFullDiskIsSaid) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const Status status = WriteAll(full, "some text", "answers.jsonl");
  ::close(full);
  EXPECT_EQ(status.message(), "answers.jsonl: cannot write, after 0 of 9 bytes: No space left on device");
}

// A reader sees one of the two texts, whenever the writer is killed.
TEST(WriteFile, AKillLeavesTheOldFileOrTheNewOne) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  const std::string texts[] = {std::string(100'000, 'a'), std::string(200'000, 'b')};
  ASSERT_TRUE(WriteFile(path, texts[0]).ok());
  for (int kill = 0; kill < 30; ++kill) {
    const pid_t writer = ::fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      for (int i = 1;; ++i) {
        if (!WriteFile(path, texts[i % 2], {.flush = false}).ok()) ::_exit(1);
      }
    }
    ::usleep(static_cast<useconds_t>(1000 + 137 * kill));
    ::kill(writer, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    const std::string text = *ReadFile(path);
    ASSERT_TRUE(text == texts[0] || text == texts[1]) << text.size();
  }
}

}  // namespace
}  // namespace dsv4
