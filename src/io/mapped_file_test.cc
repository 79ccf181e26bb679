// Tests of mapped files: the file behind an address, and pages that are gone.
#include "io/mapped_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/temporary_directory_testing.h"
#include "io/output_file.h"

namespace dsv4::io {
namespace {

TEST(MappedFile, HandlersFindTheFileBehindAnAddress) {
  const TemporaryDirectory directory;
  const std::string path = directory / "weights";
  ASSERT_TRUE(WriteTextFile(path, "12345").ok());
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.has_value());
  const std::byte* begin = file->bytes().data();
  MappedFile moved = std::move(*file);
  EXPECT_STREQ(MappedFileAt(begin), path.c_str());
  EXPECT_STREQ(MappedFileAt(begin + 4), path.c_str());
  EXPECT_EQ(MappedFileAt(begin + 5), nullptr);
  EXPECT_EQ(MappedFileAt(&path), nullptr);
  { const MappedFile gone = std::move(moved); }
  EXPECT_EQ(MappedFileAt(begin), nullptr);
}

}  // namespace
}  // namespace dsv4::io
