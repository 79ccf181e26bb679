// The group over NCCL, its order and its failures, with a library that stands for NCCL and host memory that
// stands for devices.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <thread>

#include "tests/ranks/nccl_testing.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;

template <typename T>
std::span<std::byte> Bytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}
// Numbers that no two ranks and places share.
std::vector<float> Numbers(int64_t count, int rank) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i)
    numbers.push_back(static_cast<float>(rank + 1) * 0.1F + static_cast<float>(i));
  return numbers;
}
// Waits until `ready`, for as long as a machine that is busy may need.
bool WaitFor(const std::function<bool()>& ready) {
  for (int i = 0; i < 60000 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ready();
}

// Every collective gives the same here as on host memory: the shared-memory group is the judge.
class Both {
 public:
  Both(comm::Communicator& hosts, comm::Communicator& nccl, FakeDevice& device)
      : hosts_(hosts), nccl_(nccl), device_(device) {}

  template <typename Call>
  void Expect(size_t num_bytes, std::vector<float> in_place, const char* what, const Call& call) {
    std::vector<std::byte> want(num_bytes, std::byte{1});
    std::vector<std::byte> got(num_bytes, std::byte{2});
    std::vector<float> want_in_place = in_place;
    EXPECT_TRUE(call(hosts_, want, want_in_place).ok()) << what;
    const Status status = call(nccl_, got, in_place);
    EXPECT_TRUE(status.ok()) << what << ": " << status.ToString();
    device_.stream().Wait();
    EXPECT_EQ(got, want) << what << ", rank " << hosts_.rank() << " of " << hosts_.size();
    EXPECT_EQ(in_place, want_in_place) << what << ", rank " << hosts_.rank() << " of " << hosts_.size();
  }

 private:
  comm::Communicator& hosts_;
  comm::Communicator& nccl_;
  FakeDevice& device_;
};

void ExpectAll(comm::Communicator& hosts, comm::Communicator& nccl, FakeDevice& device) {
  Both both(hosts, nccl, device);
  const int size = hosts.size();
  const int rank = hosts.rank();
  for (const bool even : {true, false}) {
    for (const int64_t rows : {1, 3}) {
      // In the uneven case rank 0 has nothing.
      std::vector<int64_t> counts;
      for (int r = 0; r < size; ++r) counts.push_back(even ? 5 : r * 3);
      const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      const int64_t mine = counts[static_cast<size_t>(rank)];
      std::vector<int64_t> row_bytes;
      for (const int64_t count : counts) row_bytes.push_back(count * 4);
      both.Expect(static_cast<size_t>(all * rows * 4), Numbers(mine * rows, rank), "all-gather",
                  [&](comm::Communicator& group, std::vector<std::byte>& out, std::vector<float>& values) {
                    return group.AllGather(Bytes(values), rows, row_bytes, out);
                  });
      both.Expect(static_cast<size_t>(size * mine * rows * 4), Numbers(all * rows, rank), "all-to-all",
                  [&](comm::Communicator& group, std::vector<std::byte>& out, std::vector<float>& values) {
                    return group.AllToAll(Bytes(values), rows, row_bytes, out);
                  });
      both.Expect(static_cast<size_t>(mine * 4), Numbers(all, rank), "reduce-scatter",
                  [&](comm::Communicator& group, std::vector<std::byte>& out, std::vector<float>& values) {
                    return group.ReduceScatterSum(
                        values, counts, {reinterpret_cast<float*>(out.data()), static_cast<size_t>(mine)});
                  });
    }
  }
  // Few numbers, and so many that every rank adds up a piece.
  for (const int64_t count : {0, 1, 1000, 16384, 16385, 50001}) {
    both.Expect(0, Numbers(count, rank), "all-reduce",
                [&](comm::Communicator& group, std::vector<std::byte>&, std::vector<float>& values) {
                  return group.AllReduceSum(values);
                });
  }
  for (int root = 0; root < size; ++root) {
    both.Expect(0, Numbers(70, rank), "broadcast",
                [&](comm::Communicator& group, std::vector<std::byte>&, std::vector<float>& values) {
                  return group.Broadcast(Bytes(values), root, comm::Wait::kDeadline);
                });
  }
  both.Expect(0, Numbers(33, rank), "send and receive",
              [&](comm::Communicator& group, std::vector<std::byte>&, std::vector<float>& values) {
                if (rank > 0) {
                  const Status status = group.Recv(Bytes(values), rank - 1);
                  if (!status.ok()) return status;
                }
                return rank + 1 < size ? group.Send(Bytes(values), rank + 1) : Status();
              });
}

// With hosts that have met in shared memory, or over TCP as on several machines.
class NcclGroup : public ::testing::TestWithParam<comm::testing::Network> {
 protected:
  static void RunHosts(int size, const std::function<void(comm::Communicator&)>& work) {
    comm::testing::RunRanks(size, work, std::chrono::seconds(120), GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Hosts, NcclGroup, ::testing::ValuesIn(comm::testing::kNetworks));

TEST_P(NcclGroup, EveryExchangeIsThatOfTheHosts) {
  for (const int size : {2, 3, 4}) {
    RunHosts(size, [&](comm::Communicator& hosts) {
      FakeDevice device;
      auto group = comm::JoinNccl(hosts, device, OpenFakeNccl(), {});
      ASSERT_TRUE(group.has_value()) << group.error().ToString();
      EXPECT_EQ((*group)->rank(), hosts.rank());
      EXPECT_EQ((*group)->size(), size);
      ExpectAll(hosts, **group, device);
      EXPECT_TRUE((*group)->Barrier().ok());
    });
  }
}

TEST_P(NcclGroup, PartsOfAGroup) {
  RunHosts(4, [&](comm::Communicator& hosts) {
    FakeDevice device;
    auto group = comm::JoinNccl(hosts, device, OpenFakeNccl(), {});
    ASSERT_TRUE(group.has_value()) << group.error().ToString();
    auto host_part = hosts.Split(hosts.rank() % 2);
    ASSERT_TRUE(host_part.has_value());
    auto part = (*group)->Split(hosts.rank() % 2);
    ASSERT_TRUE(part.has_value()) << part.error().ToString();
    EXPECT_EQ((*part)->size(), 2);
    ExpectAll(**host_part, **part, device);
    EXPECT_TRUE(hosts.Barrier().ok());
  });
}

// Nobody waits in a call: many exchanges are queued before the first is looked at.
TEST_P(NcclGroup, ExchangesAreQueuedInOrder) {
  RunNcclRanks(
      3,
      [](comm::Communicator& group, FakeDevice& device) {
        std::vector<std::vector<float>> sums;
        for (int i = 0; i < 50; ++i) sums.push_back(Numbers(20000, i * 10 + group.rank()));
        for (std::vector<float>& values : sums) EXPECT_TRUE(group.AllReduceSum(values).ok());
        device.stream().Wait();
        for (int i = 0; i < 50; ++i) {
          const auto part = [&](int r) { return Numbers(20000, i * 10 + r); };
          std::vector<float> want = part(0);
          for (int r = 1; r < 3; ++r) {
            const std::vector<float> more = part(r);
            for (size_t k = 0; k < want.size(); ++k) want[k] += more[k];
          }
          EXPECT_EQ(sums[static_cast<size_t>(i)], want) << i;
        }
        EXPECT_TRUE(group.Check().ok());
        EXPECT_TRUE(group.Barrier().ok());
      },
      std::chrono::seconds(60), /*waits=*/false, GetParam());
}

// The others' streams wait for a rank that has ended: they are let go, and all name it.
TEST_P(NcclGroup, ARankThatEndsIsNamed) {
  RunHosts(3, [&](comm::Communicator& hosts) {
    FakeDevice device;
    std::vector<float> values = Numbers(100, hosts.rank());
    auto part = hosts.Split(0);  // Its end is that of the rank.
    ASSERT_TRUE(part.has_value());
    auto group = comm::JoinNccl(**part, device, OpenFakeNccl(), {});
    ASSERT_TRUE(group.has_value()) << group.error().ToString();
    if (hosts.rank() == 1) {
      hosts.Fail(Internal("no more"));
      return;
    }
    (void)(*group)->AllReduceSum(values);  // Queued before or refused after: both are right.
    device.stream().Wait();                // Comes back only because the exchange is aborted.
    EXPECT_TRUE(WaitFor([&] { return !(*group)->Check().ok(); }));
    EXPECT_THAT((*group)->Check().message(), HasSubstr("rank 1: no more"));
    EXPECT_THAT((*group)->AllReduceSum(values).message(), HasSubstr("rank 1: no more"));
  });
}

TEST_P(NcclGroup, ARankThatIsLateEndsTheGroup) {
  RunNcclRanks(
      3,
      [](comm::Communicator& group, FakeDevice& device) {
        std::vector<float> values = Numbers(100, group.rank());
        if (group.rank() != 1) {
          EXPECT_TRUE(group.AllReduceSum(values).ok());
          device.stream().Wait();
        }
        EXPECT_TRUE(WaitFor([&] { return !group.Check().ok(); }));
        EXPECT_EQ(group.Check().code(), StatusCode::kDeadlineExceeded);
        EXPECT_THAT(group.Check().message(), HasSubstr("an exchange by NCCL is not done within 0.2 s"));
        EXPECT_EQ(group.AllReduceSum(values).code(), StatusCode::kDeadlineExceeded);
      },
      std::chrono::milliseconds(200), /*waits=*/false, GetParam());
}

// An error of NCCL's on one rank is everybody's, with the call, its words and the rank.
TEST_P(NcclGroup, AnErrorOfNcclEndsTheGroup) {
  const auto library = OpenFakeNccl();
  ASSERT_TRUE(library.has_value()) << library.error().ToString();
  void* const handle = ::dlopen(DSV4_FAKE_NCCL, RTLD_NOW);
  ASSERT_NE(handle, nullptr);
  const auto refuse = reinterpret_cast<void (*)(int)>(::dlsym(handle, "FakeNcclRefuse"));
  ASSERT_NE(refuse, nullptr);
  RunNcclRanks(
      2,
      [&](comm::Communicator& group, FakeDevice& device) {
        std::vector<std::byte> data(10);
        if (group.rank() == 1) {
          refuse(1);
          EXPECT_EQ(group.Send(data, 0).code(), StatusCode::kInternal);
        } else {
          (void)group.Recv(data, 1);
          device.stream().Wait();
        }
        EXPECT_TRUE(WaitFor([&] { return !group.Check().ok(); }));
        EXPECT_THAT(group.Check().message(),
                    HasSubstr("rank 1: ncclSend: internal error: as the test wanted"));
      },
      std::chrono::seconds(60), /*waits=*/false, GetParam());
}

// If one rank has no NCCL, all hear it and its number; no rank waits for the others.
TEST_P(NcclGroup, ALibraryThatIsNotThere) {
  RunHosts(3, [](comm::Communicator& hosts) {
    FakeDevice device;
    const auto library =
        hosts.rank() == 2 ? comm::NcclLibrary::Open("/nowhere/libnccl.so.2") : OpenFakeNccl();
    const auto group = comm::JoinNccl(hosts, device, library, {});
    ASSERT_FALSE(group.has_value());
    EXPECT_EQ(group.error().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        group.error().message(),
        HasSubstr(
            "rank 2: NCCL, which GPUs that are no peers and stages of a pipeline need, cannot be opened"));
    EXPECT_TRUE(hosts.Check().ok());
  });
}

TEST(NcclLibrary, SaysWhatIsWrongWithAFile) {
  EXPECT_THAT(comm::NcclLibrary::Open("libc.so.6").error().message(),
              HasSubstr("libc.so.6 has no ncclGetVersion; is it NCCL 2.18 or later?"));
  ASSERT_EQ(::setenv("DSV4_NCCL_LIBRARY", "/nowhere/from-outside.so", 1), 0);
  const auto missing = comm::NcclLibrary::Open();
  ASSERT_EQ(::setenv("DSV4_NCCL_LIBRARY", DSV4_FAKE_NCCL, 1), 0);
  const auto found = comm::NcclLibrary::Open();
  ASSERT_EQ(::unsetenv("DSV4_NCCL_LIBRARY"), 0);
  EXPECT_THAT(missing.error().message(), HasSubstr("/nowhere/from-outside.so"));
  EXPECT_THAT(missing.error().message(), HasSubstr("DSV4_NCCL_LIBRARY"));
  ASSERT_TRUE(found.has_value()) << found.error().ToString();
  EXPECT_EQ(found->version, 22809);
}

}  // namespace
}  // namespace dsv4::testing
