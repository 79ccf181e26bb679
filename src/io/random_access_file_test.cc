// Tests of random-access files: read back after reopening, size brought to what is wanted, errors with names.
#include "io/random_access_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/temporary_directory_testing.h"

namespace dsv4::io {
namespace {

using ::testing::HasSubstr;

class RandomAccessFileTest : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
};

TEST_F(RandomAccessFileTest, WhatWasWrittenIsReadBackAfterOpeningAgain) {
  const std::string path = directory_ / "f";
  const std::string text = "middle";
  {
    auto file = RandomAccessFile::Open(path, 100);
    ASSERT_TRUE(file.has_value()) << file.error().message();
    EXPECT_TRUE(file->WriteAt(40, std::as_bytes(std::span(text))).ok());
    EXPECT_TRUE(file->Sync().ok());
  }
  EXPECT_EQ(std::filesystem::file_size(path), 100U);
  auto file = RandomAccessFile::Open(path, 100);
  ASSERT_TRUE(file.has_value());
  std::string read(8, 'x');
  ASSERT_TRUE(file->ReadAt(39, std::as_writable_bytes(std::span(read))).ok());
  EXPECT_EQ(read, std::string("\0middle\0", 8));
  const Status past = file->ReadAt(95, std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(past.code(), StatusCode::kDataLoss);
  EXPECT_THAT(past.message(), HasSubstr("ends at byte 100, 3 more"));
}

TEST_F(RandomAccessFileTest, AFileOfAnotherSizeIsBroughtToSize) {
  const std::string path = directory_ / "f";
  ASSERT_TRUE(RandomAccessFile::Open(path, 10).has_value());
  ASSERT_TRUE(RandomAccessFile::Open(path, 4).has_value());
  EXPECT_EQ(std::filesystem::file_size(path), 4U);
}

TEST_F(RandomAccessFileTest, NamesWhatCannotBeOpened) {
  EXPECT_THAT(RandomAccessFile::Open(directory_ / "no/f", 1).error().message(), HasSubstr("/no/f"));
  EXPECT_FALSE(RandomAccessFile::Open(directory_.path(), 1).has_value());
  const auto huge = RandomAccessFile::Open(directory_ / "f", int64_t{1} << 60);
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dsv4::io
