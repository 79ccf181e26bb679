// Every collective against its contract, for groups of 1 to 4, through shared memory and over TCP. Sizes lie
// around those of the chunks that travel.
#include "comm/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "comm/ranks_testing.h"

namespace dsv4::comm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunkFloats = kChunkBytes / 4;

// The same numbers for the same seed, of sizes so different that the order of a sum shows.
std::vector<float> Numbers(int64_t count, int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(static_cast<int32_t>(random())) * (random() % 2 == 0 ? 1e-9F : 1e-3F);
  }
  return values;
}

std::vector<float> SumInRankOrder(int size, int64_t count) {
  std::vector<float> sum = Numbers(count, 0);
  for (int r = 1; r < size; ++r) {
    const std::vector<float> more = Numbers(count, r);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  return sum;
}

using testing::Network;

class Ranks : public ::testing::TestWithParam<std::tuple<int, Network>> {
 protected:
  static int Size() { return std::get<int>(GetParam()); }
  static void Run(const std::function<void(Communicator&)>& work) {
    testing::RunRanks(Size(), work, std::chrono::seconds(120), std::get<Network>(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, Ranks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(testing::kNetworks)));

// Groups of a fixed number of ranks.
class Some : public ::testing::TestWithParam<Network> {
 protected:
  static void Run(int size, const std::function<void(Communicator&)>& work,
                  std::chrono::milliseconds timeout = std::chrono::seconds(120)) {
    testing::RunRanks(size, work, timeout, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Networks, Some, ::testing::ValuesIn(testing::kNetworks));

TEST_P(Ranks, AllReduceSumsInRankOrder) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, kChunkFloats, 2 * kChunkFloats + 1}) {
    const std::vector<float> want = SumInRankOrder(Size(), count);
    Run([&](Communicator& group) {
      std::vector<float> values = Numbers(count, group.rank());
      ASSERT_TRUE(group.AllReduceSum(values).ok());
      EXPECT_EQ(values, want) << count;
    });
  }
}

TEST_P(Ranks, ReduceScatterGivesEachItsPart) {
  const int64_t count = kChunkFloats + 1000;
  const std::vector<float> want = SumInRankOrder(Size(), count);
  Run([&](Communicator& group) {
    // The last has none, unless alone.
    std::vector<int64_t> counts(static_cast<size_t>(group.size()), 0);
    for (int64_t i = 0; i < count; ++i) ++counts[static_cast<size_t>(i % std::max(1, group.size() - 1))];
    int64_t begin = 0;
    for (int r = 0; r < group.rank(); ++r) begin += counts[static_cast<size_t>(r)];
    std::vector<float> mine(static_cast<size_t>(counts[static_cast<size_t>(group.rank())]));
    ASSERT_TRUE(group.ReduceScatterSum(Numbers(count, group.rank()), counts, mine).ok());
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), want.begin() + begin));
  });
}

TEST_P(Ranks, AllGatherPutsRowsSideBySide) {
  for (const int64_t num_rows : {1, 3, 4000}) {
    Run([&](Communicator& group) {
      // Rank r's rows are 7 + 50 r bytes, those of rank 1 none.
      std::vector<int64_t> row_bytes;
      for (int r = 0; r < group.size(); ++r) row_bytes.push_back(r == 1 ? 0 : 7 + 50 * r);
      const auto value = [](int r, int64_t row, int64_t column) {
        return static_cast<std::byte>(r * 31 + row * 7 + column);
      };
      std::vector<std::byte> mine;
      for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t c = 0; c < row_bytes[static_cast<size_t>(group.rank())]; ++c)
          mine.push_back(value(group.rank(), row, c));
      }
      std::vector<std::byte> want;
      for (int64_t row = 0; row < num_rows; ++row) {
        for (int r = 0; r < group.size(); ++r) {
          for (int64_t c = 0; c < row_bytes[static_cast<size_t>(r)]; ++c) want.push_back(value(r, row, c));
        }
      }
      std::vector<std::byte> all(want.size());
      ASSERT_TRUE(group.AllGather(mine, num_rows, row_bytes, all).ok());
      EXPECT_TRUE(all == want) << num_rows;
    });
  }
}

TEST_P(Ranks, AllToAllGivesEachItsColumns) {
  for (const int64_t num_rows : {0, 1, 3, 4000}) {
    Run([&](Communicator& group) {
      // Rank r's columns are 7 + 50 r bytes, those of rank 1 none.
      std::vector<int64_t> row_bytes;
      int64_t all_bytes = 0;
      for (int r = 0; r < group.size(); ++r) all_bytes += row_bytes.emplace_back(r == 1 ? 0 : 7 + 50 * r);
      int64_t first = 0;
      for (int r = 0; r < group.rank(); ++r) first += row_bytes[static_cast<size_t>(r)];
      const auto value = [](int r, int64_t row, int64_t column) {
        return static_cast<std::byte>(r * 31 + row * 7 + column);
      };
      std::vector<std::byte> mine;
      std::vector<std::byte> want;
      for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t c = 0; c < all_bytes; ++c) mine.push_back(value(group.rank(), row, c));
      }
      for (int r = 0; r < group.size(); ++r) {
        for (int64_t row = 0; row < num_rows; ++row) {
          for (int64_t c = 0; c < row_bytes[static_cast<size_t>(group.rank())]; ++c)
            want.push_back(value(r, row, first + c));
        }
      }
      std::vector<std::byte> parts(want.size());
      ASSERT_TRUE(group.AllToAll(mine, num_rows, row_bytes, parts).ok());
      EXPECT_TRUE(parts == want) << num_rows;
    });
  }
}

TEST_P(Ranks, BroadcastFromEveryRoot) {
  Run([&](Communicator& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const int64_t size : {int64_t{0}, int64_t{1}, kChunkBytes, 3 * kChunkBytes + 5}) {
        std::vector<std::byte> want(static_cast<size_t>(size), static_cast<std::byte>(root + 1));
        std::vector<std::byte> data;
        if (group.rank() == root) data = want;
        ASSERT_TRUE(BroadcastBytes(group, data, root).ok());
        EXPECT_TRUE(data == want) << root << ", " << size;
      }
    }
  });
}

TEST_P(Ranks, SendAndReceiveInARing) {
  if (Size() == 1) return;
  Run([&](Communicator& group) {
    // Longer than a mailbox, handed on from rank to rank, with every rank's own mark.
    std::vector<int32_t> data(kMailboxBytes, 0);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(data));
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    if (group.rank() > 0) {
      ASSERT_TRUE(group.Recv(bytes, previous).ok());
    }
    for (size_t i = 0; i < data.size(); ++i) data[i] += static_cast<int32_t>(i);
    ASSERT_TRUE(group.Send(bytes, next).ok());
    if (group.rank() > 0) return;
    ASSERT_TRUE(group.Recv(bytes, previous).ok());
    for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], group.size() * static_cast<int32_t>(i));
  });
}

TEST_P(Ranks, BarrierHoldsEverybody) {
  std::atomic<int> here = 0;
  Run([&](Communicator& group) {
    for (int round = 1; round <= 50; ++round) {
      ++here;
      ASSERT_TRUE(group.Barrier().ok());
      EXPECT_GE(here.load(), round * group.size());
      ASSERT_TRUE(group.Barrier().ok());
    }
  });
}

TEST_P(Ranks, ListsOfAnyLengths) {
  const auto list_of = [](int rank) {  // Rank 0's is empty.
    std::vector<int32_t> list;
    for (int i = 0; i < 7 * rank; ++i) list.push_back(rank * 1000 + i);
    return list;
  };
  Run([&](Communicator& group) {
    const auto lists = GatherLists(group, list_of(group.rank()));
    ASSERT_TRUE(lists.has_value()) << lists.error().ToString();
    ASSERT_EQ(static_cast<int>(lists->size()), group.size());
    for (int r = 0; r < group.size(); ++r) EXPECT_EQ((*lists)[static_cast<size_t>(r)], list_of(r)) << r;
  });
}

TEST_P(Ranks, AllAgreeOnTheFirstError) {
  Run([&](Communicator& group) {
    EXPECT_TRUE(Agree(group, {}).ok());
    const int last = group.size() - 1;
    const Status status =
        Agree(group, group.rank() == last ? ResourceExhausted("no room for a page") : Status());
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), "rank " + std::to_string(last) + ": no room for a page");
    EXPECT_TRUE(Agree(group, {}).ok());  // The group goes on.
  });
}

TEST_P(Some, PartsWorkByThemselves) {
  Run(4, [&](Communicator& group) {
    const auto part = group.Split(group.rank() % 3);  // {0, 3}, {1}, {2}
    ASSERT_TRUE(part.has_value()) << part.error().ToString();
    ASSERT_EQ((*part)->size(), group.rank() % 3 == 0 ? 2 : 1);
    EXPECT_EQ((*part)->rank(), group.rank() == 3 ? 1 : 0);
    std::vector<float> values = {static_cast<float>(group.rank() + 1)};
    ASSERT_TRUE((*part)->AllReduceSum(values).ok());
    EXPECT_EQ(values[0], group.rank() % 3 == 0 ? 5.0F : static_cast<float>(group.rank() + 1));
    ASSERT_TRUE(group.Barrier().ok());
  });
}

TEST_P(Some, ALateRankIsNamed) {
  Run(
      3,
      [&](Communicator& group) {
        while (group.rank() == 1 && group.Check().ok()) ::usleep(1000);  // As late as can be.
        const Status status = group.Barrier();
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_THAT(status.message(), HasSubstr("rank 1 (process"));
        EXPECT_THAT(status.message(), HasSubstr("not there within 0.3 s"));
        EXPECT_EQ(group.Check(), status);  // It stays so.
      },
      std::chrono::milliseconds(300));
}

TEST_P(Some, ForeverIsLongerThanTheDeadline) {
  Run(
      2,
      [&](Communicator& group) {
        if (group.rank() == 1) ::usleep(400000);
        EXPECT_TRUE(group.Barrier(Wait::kForever).ok());
      },
      std::chrono::milliseconds(100));
}

TEST_P(Some, WhoCannotGoOnTellsTheOthers) {
  Run(3, [&](Communicator& group) {
    auto part = group.Split(group.rank() == 0 ? 0 : 1);
    ASSERT_TRUE(part.has_value());
    if (group.rank() == 2) (*part)->Fail(DataLoss("layer 3: broken"));
    const Status status = group.rank() == 1 ? (*part)->Barrier() : group.Barrier(Wait::kForever);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "rank 2: layer 3: broken");
  });
}

TEST_P(Some, WhoLeavesIsMissed) {
  testing::Meeting meeting(2, GetParam());
  std::thread other([&] { ASSERT_NE(meeting.Join(1, std::chrono::seconds(120)), nullptr); });
  const auto group = meeting.Join(0, std::chrono::seconds(120));
  ASSERT_NE(group, nullptr);
  other.join();
  const Status status = group->Barrier(Wait::kForever);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 of 2"));
  EXPECT_THAT(status.message(), HasSubstr("left the group"));
}

TEST(Join, MissingRanksAreNamed) {
  const auto memory = SharedMemory::Create(3);
  ASSERT_TRUE(memory.has_value());
  const auto group = JoinSharedMemory(*memory, 1, 3, std::chrono::milliseconds(50));
  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(group.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(group.error().message(), HasSubstr("ranks 0, 2 did not join"));
}

}  // namespace
}  // namespace dsv4::comm
