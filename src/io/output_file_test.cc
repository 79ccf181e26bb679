// Tests of output files: whole or absent, modes kept, links, pipes, and kinds that take no text.
#include "io/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "base/read_file.h"
#include "base/temporary_directory_testing.h"

namespace dsv4::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OutputFileTest : public ::testing::Test {
 protected:
  size_t NumFiles() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator()));
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_ / "out";
};

TEST_F(OutputFileTest, AnOutputThatCannotBeIsKnownBefore) {
  const std::string input = directory_ / "in";
  ASSERT_TRUE(WriteTextFile(input, "data").ok());
  fs::create_symlink(input, path_);
  const std::string& other_name = path_;
  for (const std::string& same : {input, other_name})
    EXPECT_THAT(CheckOutputPath(same, input).message(), HasSubstr("itself, wanted a file of its own"));
  EXPECT_THAT(CheckOutputPath(directory_.path(), input).message(), HasSubstr("a directory, wanted a file"));
  EXPECT_THAT(CheckOutputPath(directory_ / "no/such", input).message(), HasSubstr("/no is no directory"));
  for (const std::string& fine :
       {std::string(directory_ / "new"), std::string("new"), std::string("/dev/null")})
    EXPECT_TRUE(CheckOutputPath(fine, input).ok()) << fine;
  EXPECT_TRUE(CheckOutputPath("/dev/null", "/dev/null").ok());
}

TEST_F(OutputFileTest, AppearsWholeAndKeepsItsMode) {
  ASSERT_TRUE(WriteTextFile(path_, "first").ok());
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  {
    auto file = OutputFile::Create(path_);
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Append(std::as_bytes(std::span("half", 4))).ok());
    EXPECT_EQ(*ReadFile(path_), "first");
  }  // Given up.
  EXPECT_EQ(*ReadFile(path_), "first");
  EXPECT_EQ(NumFiles(), 1U);
  ASSERT_TRUE(WriteTextFile(path_, "second").ok());
  EXPECT_EQ(*ReadFile(path_), "second");
  EXPECT_EQ(fs::status(path_).permissions(),
            fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  EXPECT_EQ(NumFiles(), 1U);
}

TEST_F(OutputFileTest, LinksStayAndLeadToWhatIsWritten) {
  const std::string target = directory_ / "target";
  fs::create_symlink(target, path_);
  for (const char* text : {"made by way of a link that led nowhere", "again"}) {
    ASSERT_TRUE(WriteTextFile(path_, text).ok());
    EXPECT_TRUE(fs::is_symlink(path_));
    EXPECT_EQ(*ReadFile(target), text);
  }
  const std::string second = directory_ / "second name";
  fs::create_hard_link(target, second);
  ASSERT_TRUE(WriteTextFile(second, "both").ok());
  EXPECT_EQ(*ReadFile(target), "both");
}

TEST_F(OutputFileTest, PipesAndDevicesStayWhatTheyAre) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = *ReadFile(path_, FileKind::kAny); });
  EXPECT_TRUE(WriteTextFile(path_, "through the pipe").ok());
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(path_));

  EXPECT_TRUE(WriteTextFile("/dev/null", "gone").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(WriteTextFile("/dev/full", "x").message(), HasSubstr("/dev/full: cannot write: No space left"));
  const std::string device = directory_ / "device";
  if (::mknod(device.c_str(), S_IFCHR | 0600, ::makedev(1, 3)) != 0)
    GTEST_SKIP() << "only root makes devices";
  EXPECT_TRUE(WriteTextFile(device, "gone").ok());
  EXPECT_TRUE(fs::is_character_file(device));
}

TEST_F(OutputFileTest, RefusesWhatTakesNoText) {
  EXPECT_THAT(WriteTextFile(directory_.path(), "x").message(), HasSubstr("a directory, wanted a file"));
  EXPECT_THAT(WriteTextFile(directory_ / "no/such", "x").message(),
              HasSubstr("no/such: cannot create: No such"));
}

}  // namespace
}  // namespace dsv4::io
