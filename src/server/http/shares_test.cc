// Shares of owners: rooms, paces, threads, and the codings of bodies.
#include "server/http/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/body_decoder.h"
#include "server/http/fair_pool.h"

namespace dsv4::server {
namespace {

using std::chrono::seconds;

TEST(Owners, AreAddressesAndNetworks) {
  EXPECT_EQ(OwnerOfAddress(""), 0U);
  EXPECT_NE(OwnerOfAddress("10.0.0.1"), OwnerOfAddress("10.0.0.2"));
  EXPECT_EQ(OwnerOfAddress("::ffff:10.0.0.1"), OwnerOfAddress("10.0.0.1"));
  // A /56 has 256 networks.
  EXPECT_EQ(OwnerOfAddress("2001:db8:1:ab01::1"), OwnerOfAddress("2001:db8:1:abff:1:2:3:4"));
  EXPECT_NE(OwnerOfAddress("2001:db8:1:ab01::1"), OwnerOfAddress("2001:db8:1:ac01::1"));
  EXPECT_EQ(OwnerOfAddress("fe80::1%eth0"), OwnerOfAddress("fe80::2%eth0"));
}

TEST(SharedRoom, EveryOwnerFindsAsMuchLeftAsTheLastOneGot) {
  constexpr uint64_t kSize = 96'000;
  SharedRoom room(kSize);
  uint64_t before = 0;
  for (uint64_t owner = 1; owner <= 6; ++owner) {
    uint64_t got = 0;
    while (room.Take(owner, 1)) ++got;
    if (owner == 1) {
      EXPECT_EQ(got, kSize * 2 / 3);
    } else {
      EXPECT_NEAR(static_cast<double>(got), static_cast<double>(before) / 3, 2);
    }
    before = got;
  }
  EXPECT_FALSE(room.Take(1, 1));
  const uint64_t taken = room.taken();
  room.Return(1, 64'000);
  EXPECT_EQ(room.taken(), taken - 64'000);
  EXPECT_TRUE(room.Take(1, 1));
  EXPECT_FALSE(room.Take(7, kSize));
  EXPECT_FALSE(room.Take(7, UINT64_MAX));
}

TEST(Pace, IsNoBankOfSeconds) {
  Pace pace(seconds(30));
  pace.Moved(size_t{64} << 20, seconds(10));  // Eighteen hours, were they saved.
  EXPECT_EQ(pace.left(), seconds(30));
  pace.Moved(0, seconds(25));
  EXPECT_EQ(pace.left(), seconds(5));
  for (int i = 0; i < 100; ++i) pace.Moved(1024, seconds(1));  // A KiB a second is served for ever.
  EXPECT_EQ(pace.left(), seconds(5));
  pace.Moved(512, seconds(11));
  EXPECT_EQ(pace.left(), seconds(0));
}

TEST(FairPool, NoOwnerKeepsAllThreads) {
  FairPool pool({.num_threads = 2});
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  int waiting = 0;
  std::vector<uint64_t> done;
  const auto post = [&](uint64_t owner, bool waits) {
    pool.Post(owner, 0, [&, owner, waits] {
      std::unique_lock lock(mutex);
      if (waits) {
        ++waiting;
        changed.notify_all();
        changed.wait(lock, [&] { return open; });
      }
      done.push_back(owner);
      changed.notify_all();
    });
  };
  for (int i = 0; i < 4; ++i) post(1, true);
  post(2, false);
  post(3, false);
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, seconds(60), [&] { return done.size() == 2 && waiting == 1; }));
    EXPECT_THAT(done, ::testing::UnorderedElementsAre(2, 3));
    open = true;
  }
  changed.notify_all();
  pool.Join();
  EXPECT_EQ(done.size(), 6U);
}

TEST(FairPool, HeavyWorkWaitsAndLightWorkPasses) {
  FairPool pool({.num_threads = 4, .max_weight = 10});
  std::atomic<int> heavy = 0;
  std::atomic<int> most = 0;
  std::atomic<int> light = 0;
  for (uint64_t owner = 0; owner < 6; ++owner) {
    pool.Post(owner, 9, [&] {
      most = std::max(most.load(), ++heavy);
      for (int i = 0; i < 1000 && light == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      --heavy;
    });
  }
  pool.Post(9, 1, [&] { ++light; });
  pool.Join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(light, 1);
}

std::string Deflated(const std::string& text, int window_bits) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(BodyDecoder, DeflateHasAHeadOrNone) {
  for (const std::string& text :
       {std::string(), std::string("x"), std::string(5000, 'y'), std::string("hello")}) {
    for (const int window_bits : {15, 9, -15, -9}) {
      const std::string sent = Deflated(text, window_bits);
      for (const size_t at_once : {size_t{1}, size_t{2}, sent.size()}) {
        const auto decoder = *BodyDecoder::Make("deflate");
        std::string out;
        for (size_t at = 0; at < sent.size(); at += at_once) {
          EXPECT_FALSE(decoder->whole());
          std::string_view piece = std::string_view(sent).substr(at, at_once);
          while (!piece.empty()) ASSERT_TRUE(decoder->Decode(piece, out).ok());
        }
        EXPECT_TRUE(decoder->whole());
        EXPECT_EQ(out, text);
      }
    }
  }
  const auto decoder = *BodyDecoder::Make("deflate");
  std::string out;
  std::string_view damaged = "\x78\x9c\xff\xff\xff";
  EXPECT_FALSE(decoder->Decode(damaged, out).ok());
}

}  // namespace
}  // namespace dsv4::server
