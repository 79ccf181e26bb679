// Lines for outputs that do not take them: the caller never waits, and is never told by an exception or a
// signal.
#include "base/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends.data()), 0); }
  ~Pipe() {
    for (const int end : ends)
      if (end >= 0) ::close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int TakeWriter() { return std::exchange(ends[1], -1); }
  void CloseReader() { ::close(std::exchange(ends[0], -1)); }
  std::string Read() const {
    std::array<char, 65536> room = {};
    const ssize_t got = ::read(ends[0], room.data(), room.size());
    return {room.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }
  std::array<int, 2> ends = {-1, -1};
};

void Fill(int writer) {
  ::fcntl(writer, F_SETFL, O_NONBLOCK);
  const std::string block(4096, 'x');
  while (::write(writer, block.data(), block.size()) > 0) continue;
  EXPECT_EQ(errno, EAGAIN);
  ::fcntl(writer, F_SETFL, 0);
}

TEST(LineWriter, WritesInOrderAndAllBeforeItsEnd) {
  Pipe pipe;
  std::string expected;
  {
    LineWriter writer(pipe.TakeWriter(), "log");
    for (int i = 0; i < 100; ++i) {
      const std::string line = std::to_string(i) + "\n";
      writer.Write(line);
      expected += line;
    }
  }
  std::string all;
  for (std::string some; !(some = pipe.Read()).empty();) all += some;
  EXPECT_EQ(all, expected);
}

TEST(LineWriter, AReaderThatDoesNotReadHoldsUpNothing) {
  Pipe pipe;
  Fill(pipe.ends[1]);
  const auto start = Clock::now();
  {
    LineWriter writer(pipe.TakeWriter(), "log");
    const std::string line(1000, 'y');
    for (int i = 0; i < 5000; ++i) writer.Write(line + "\n");
    EXPECT_GT(writer.num_lost(), 2800);  // Two MiB are held: one that is written, one that waits.
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

TEST(LineWriter, APipeWithoutReadersAndAFullDiskLoseLinesAndNothingElse) {
  Pipe pipe;
  pipe.CloseReader();
  for (const int descriptor : {pipe.TakeWriter(), ::open("/dev/full", O_WRONLY | O_CLOEXEC)}) {
    LineWriter writer(descriptor, "log");
    for (int i = 0; i < 10; ++i) writer.Write("line\n");
    for (int i = 0; i < 1000 && writer.num_lost() < 10; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(writer.num_lost(), 10);
  }
}

TEST(LineWriter, SaysHowManyWereLostWhenThereIsRoomAgain) {
  Pipe pipe;
  Fill(pipe.ends[1]);
  LineWriter writer(pipe.TakeWriter(), "log");
  const std::string line(1 << 16, 'y');
  for (int i = 0; i < 100; ++i) writer.Write(line + "\n");
  EXPECT_GT(writer.num_lost(), 0);
  std::string all;
  const auto read_until = [&](const std::string& what) {
    while (all.find(what) == std::string::npos) {
      const std::string some = pipe.Read();
      ASSERT_FALSE(some.empty());
      all += some;
    }
  };
  std::thread reader([&] { read_until("the last one\n"); });
  while (writer.num_lost() > 0) {  // The queue has room when it was read.
    const int64_t before = writer.num_lost();
    writer.Write("the last one\n");
    if (writer.num_lost() == before) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  reader.join();
  EXPECT_NE(all.find("lines before this one were lost\n"), std::string::npos);
}

TEST(WriteQuietly, NeitherSignalsNorWaitsLongerThanItIsTold) {
  Pipe pipe;
  Fill(pipe.ends[1]);
  const auto start = Clock::now();
  EXPECT_FALSE(WriteQuietly(pipe.ends[1], "text", 50));
  EXPECT_FALSE(WriteQuietly(pipe.ends[1], "text", 0));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  Pipe closed;
  closed.CloseReader();
  EXPECT_FALSE(WriteQuietly(closed.ends[1], "text", 50));
  EXPECT_FALSE(WriteQuietly(closed.ends[1], "text", -1));
  EXPECT_FALSE(WriteQuietly(-1, "text", 0));
  EXPECT_FALSE(WriteQuietly(-1, "text", -1));
}

}  // namespace
}  // namespace dsv4
