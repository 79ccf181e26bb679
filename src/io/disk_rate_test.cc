// Tests of the disk rate: measured on the files, none without pieces, missing files are errors.
#include "io/disk_rate.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/temporary_directory_testing.h"

namespace dsv4::io {
namespace {

std::vector<MappedFile> TwoFiles(const TemporaryDirectory& directory, size_t num_bytes) {
  std::vector<MappedFile> files;
  for (const char* name : {"a", "b"}) {
    std::ofstream(directory / name) << std::string(num_bytes, 'x');
    files.push_back(*MappedFile::Open(directory / name));
  }
  return files;
}

TEST(DiskRate, IsMeasuredOnTheFilesThemselves) {
  const TemporaryDirectory directory;
  const std::vector<MappedFile> files = TwoFiles(directory, size_t{3} << 20);
  const Result<DiskRate> rate = MeasureDiskRate(files, (size_t{1} << 20) + 100);
  ASSERT_TRUE(rate.has_value()) << rate.error().message();
  EXPECT_GT(rate->bytes_per_second, 1e6);
  EXPECT_LT(rate->bytes_per_second, 1e12);
}

TEST(DiskRate, WithoutAPieceThereIsNone) {
  const TemporaryDirectory directory;
  const std::vector<MappedFile> files = TwoFiles(directory, 5000);
  EXPECT_EQ(MeasureDiskRate(files, size_t{1} << 20).error().code(), StatusCode::kNotFound);
  EXPECT_EQ(MeasureDiskRate({}, 4096).error().code(), StatusCode::kNotFound);
}

TEST(DiskRate, AFileThatIsGoneIsAnError) {
  const TemporaryDirectory directory;
  const std::vector<MappedFile> files = TwoFiles(directory, size_t{1} << 20);
  std::filesystem::remove(directory / "b");
  const Result<DiskRate> rate = MeasureDiskRate(files, 65536);
  ASSERT_FALSE(rate.has_value());
  EXPECT_NE(rate.error().message().find("/b"), std::string::npos) << rate.error().message();
}

}  // namespace
}  // namespace dsv4::io
