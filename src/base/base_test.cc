// Tests of status, check, log, JSON, stopwatch, thread pool and other small parts of base.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/stopwatch.h"
#include "base/temporary_directory_testing.h"
#include "base/text.h"

namespace dsv4 {
namespace {

using ::testing::HasSubstr;

Result<int> Half(int x) {
  if (x % 2 != 0) return Error(InvalidArgument("half of an odd number"));
  return x / 2;
}
Result<int> Quarter(int x) {
  DSV4_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}
Status CheckQuarter(int x) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const int quarter, Quarter(x));
  return quarter > 0 ? Status() : OutOfRange("quarter is not positive");
}

TEST(Stopwatch, SecondsOfALifeAreAdded) {
  constexpr std::chrono::milliseconds kLife(3);
  double sum = 10;
  const Stopwatch outer;
  {
    const AddsSeconds adds(sum);
    std::this_thread::sleep_for(kLife);
    EXPECT_EQ(sum, 10);
  }
  EXPECT_GE(sum, 10 + std::chrono::duration<double>(kLife).count());
  EXPECT_LE(sum, 10 + outer.seconds());
}

TEST(Status, ErrorsPassThroughTheMacros) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).error().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckQuarter(4).ok());
  EXPECT_EQ(CheckQuarter(0).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(CheckQuarter(2).ToString(), "INVALID_ARGUMENT: half of an odd number");
}

TEST(Status, ContextGoesInFrontAndOkStaysOk) {
  EXPECT_EQ(DataLoss("short").WithContext("model.safetensors").message(), "model.safetensors: short");
  EXPECT_TRUE(Status().WithContext("x").ok());
}

TEST(CheckDeathTest, PrintsConditionAndValues) {
  const int pages = 3;
  EXPECT_DEATH(DSV4_CHECK(pages == 4) << "pages " << pages, "pages == 4 pages 3");
}

TEST(ThreadPool, CoversEveryIndexOnceForAnyThreadCount) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (const int64_t count : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      pool.ParallelFor(count, 3, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (const auto& hit : hits) EXPECT_EQ(hit, 1);
    }
  }
}

TEST(ThreadPool, ThrowsWhatTheBodyThrewAndGoesOn) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (int64_t bad = 0; bad < 100; bad += 9) {
      const auto fail = [&](int64_t begin, int64_t end) {
        if (begin <= bad && bad < end) throw std::bad_alloc();
      };
      EXPECT_THROW(pool.ParallelFor(100, 1, fail), std::bad_alloc);
      std::atomic<int64_t> sum = 0;
      pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      EXPECT_EQ(sum, 100);
    }
  }
}

TEST(ThreadPool, LoopsFollowEachOtherAtOnce) {
  // Workers come late, when the loop that called them is over and others run. They may spin or sleep, on a
  // core of their own or not.
  for (const int spin : {0, 20, 1000}) {
    ThreadPool pool(
        ThreadPoolOptions{.num_threads = 6, .spin = std::chrono::microseconds(spin), .cpus_of_nodes = {}});
    std::vector<int64_t> sums(64);  // Not atomic: one range writes an element, and the next loop sees it.
    for (int64_t loop = 1; loop <= 2000; ++loop) {
      const auto count = loop % static_cast<int64_t>(sums.size()) + 1;
      pool.ParallelFor(count, 1, [&sums, loop](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(i)] += loop;
      });
    }
    int64_t total = 0;
    for (const int64_t sum : sums) total += sum;
    int64_t expected = 0;
    for (int64_t loop = 1; loop <= 2000; ++loop) expected += loop * (loop % 64 + 1);
    EXPECT_EQ(total, expected) << spin;
  }
}

TEST(Counted, HasOneOfManyAndNone) {
  EXPECT_EQ(Counted(1, "request") + " to finish", "1 request to finish");
  EXPECT_EQ(Counted(0, "request"), "0 requests");
  EXPECT_EQ(Counted(2, "more option"), "2 more options");
  EXPECT_EQ(Counted(-1, "token"), "-1 tokens");
  EXPECT_EQ(Counted(3, "entry"), "3 entries");
  EXPECT_EQ(Counted(1, "entry"), "1 entry");
  EXPECT_EQ(Counted(2, "key"), "2 keys");
  EXPECT_EQ(Counted(2, "class"), "2 classes");
  EXPECT_EQ(Counted(2, "prefix"), "2 prefixes");
  EXPECT_EQ(Counted(1, "connection is", "connections are"), "1 connection is");
  EXPECT_EQ(Counted(5, "connection is", "connections are"), "5 connections are");
}

TEST(ParseJson, KeepsKeyOrderAndReportsFaults) {
  EXPECT_EQ(ParseJson(R"({"b":1,"a":2})", "doc")->dump(), R"({"b":1,"a":2})");
  EXPECT_THAT(ParseJson("{", "config.json").error().message(), HasSubstr("config.json: not valid JSON"));
  EXPECT_FALSE(ParseJson("\"\xff\"", "doc").has_value());
  for (const std::string_view text :
       {std::string_view("{}\0", 3), std::string_view("{}\0{}", 5), std::string_view("1 \0\0x", 5)})
    EXPECT_THAT(ParseJson(text, "doc").error().message(),
                HasSubstr("doc: not valid JSON: a zero byte at byte 2"));
}

TEST(ParseJson, RefusesDeepNestingButNotBracketsInStrings) {
  const std::string deep(200, '[');
  EXPECT_THAT(ParseJson(deep, "doc").error().message(), HasSubstr("nested deeper than 128"));
  EXPECT_TRUE(ParseJson('"' + deep + '"', "doc").has_value());
}

TEST(ReadFile, ReadsAllBytesAndNamesWhatItCannotRead) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  for (const std::string& text : {std::string(), std::string("a\0b", 3), std::string(200000, 'x')}) {
    std::ofstream(path, std::ios::binary) << text;
    EXPECT_EQ(*ReadFile(path), text);
  }
  EXPECT_THAT(ReadFile(path, FileKind::kRegular, 100).error().message(), HasSubstr("longer than 100 bytes"));
  std::filesystem::resize_file(path, uintmax_t{1} << 40);
  EXPECT_THAT(ReadFile(path).error().message(), HasSubstr("longer than 1073741824 bytes"));
  std::filesystem::remove(path);
  EXPECT_EQ(ReadFile(path).error().code(), StatusCode::kNotFound);
  EXPECT_THAT(ReadFile(directory / ".").error().message(), HasSubstr("a directory"));
  EXPECT_THAT(ReadFile("/dev/null").error().message(), HasSubstr("not a regular file"));
  EXPECT_EQ(*ReadFile("/dev/null", FileKind::kAny), "");
  EXPECT_THAT(ReadFile("/dev/null/file").error().message(), HasSubstr("cannot open: Not a directory"));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // It has no writer: opening it must not wait.
  EXPECT_THAT(ReadFile(path).error().message(), HasSubstr("not a regular file"));
  // A regular file to fstat, but reading it waits for the kernel's next message; without the right to, it is
  // not opened.
  EXPECT_FALSE(ReadFile("/proc/kmsg").has_value());
}

}  // namespace
}  // namespace dsv4
