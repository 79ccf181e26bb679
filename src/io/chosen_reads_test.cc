// Tests of chosen reads: nothing before the start, each range once, the rest left alone.
#include "io/chosen_reads.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_directory_testing.h"
#include "io/mapped_file.h"

namespace dsv4::io {
namespace {

TEST(ChosenReads, AsksForNothingUntilItIsStarted) {
  const std::vector<std::byte> bytes(1000);
  const std::span<const std::byte> ranges[] = {std::span(bytes).first(10), bytes};
  ChosenReads reads;
  EXPECT_FALSE(reads.started());
  reads.Ask(ranges);
  EXPECT_EQ(reads.num_bytes(), 0);
  reads.Start();
  reads.Ask(ranges);
  EXPECT_EQ(reads.num_bytes(), 1010);
}

TEST(ChosenReads, WhatWasAskedForAheadIsCountedOnce) {
  const std::vector<std::byte> bytes(1000);
  const std::span<const std::byte> all = bytes;
  const std::span<const std::byte> early[] = {all.first(100), all.subspan(200, 50)};
  const std::span<const std::byte> others[] = {all.first(100), all.subspan(500, 7)};
  ChosenReads reads;
  reads.AskAhead(early);
  EXPECT_EQ(reads.num_bytes(), 0);
  reads.Start();
  reads.AskAhead(early);
  EXPECT_EQ(reads.num_bytes(), 0);
  reads.Ask(early);
  EXPECT_EQ(reads.num_bytes(), 150);
  reads.Ask(others);
  EXPECT_EQ(reads.num_bytes(), 257);
}

// Pages of the range that are in memory; -1 where the kernel does not say.
int64_t PagesInMemory(std::span<const std::byte> range) {
  constexpr size_t kPage = 4096;
  std::vector<unsigned char> pages((range.size() + kPage - 1) / kPage);
  if (::mincore(const_cast<std::byte*>(range.data()), range.size(), pages.data()) != 0) return -1;
  int64_t count = 0;
  for (const unsigned char page : pages) count += page & 1;
  return count;
}

// Puts a file's pages out of memory.
void LetGo(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

TEST(ChosenReads, BringsWhatWasAskedForAndNotTheRest) {
  constexpr size_t kBytes = size_t{8} << 20;
  const TemporaryDirectory directory;
  std::ofstream(directory / "f") << std::string(kBytes, 'x');
  const MappedFile file = *MappedFile::Open(directory / "f");
  AdviseScattered(file.bytes());
  const std::span<const std::byte> wanted = file.bytes().subspan(kBytes / 2, size_t{1} << 20);
  LetGo(directory / "f");
  const int64_t before = PagesInMemory(file.bytes());
  if (before != 0) GTEST_SKIP() << "this file system keeps " << before << " pages";
  ChosenReads reads;
  reads.Start();
  reads.Ask(std::span(&wanted, 1));
  const auto begin = std::chrono::steady_clock::now();
  while (PagesInMemory(wanted) < 256 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(PagesInMemory(wanted), 256);
  EXPECT_EQ(PagesInMemory(file.bytes()), 256);
}

TEST(ChosenReads, WhatWasAskedForAheadIsNotReadAgain) {
  constexpr size_t kBytes = size_t{1} << 20;
  const TemporaryDirectory directory;
  std::ofstream(directory / "f") << std::string(kBytes, 'x');
  const MappedFile file = *MappedFile::Open(directory / "f");
  const std::span<const std::byte> all = file.bytes();
  AdviseScattered(all);
  LetGo(directory / "f");
  if (PagesInMemory(all) != 0) GTEST_SKIP() << "this file system keeps pages";
  const auto wait = [&] {
    const auto begin = std::chrono::steady_clock::now();
    while (PagesInMemory(all) < 256 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  ChosenReads reads;
  reads.Start();
  reads.AskAhead(std::span(&all, 1));
  wait();
  ASSERT_EQ(PagesInMemory(all), 256);
  LetGo(directory / "f");
  reads.Ask(std::span(&all, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(PagesInMemory(all), 0);
  reads.Ask(std::span(&all, 1));  // AskAhead was for one step.
  wait();
  EXPECT_EQ(PagesInMemory(all), 256);
}

}  // namespace
}  // namespace dsv4::io
