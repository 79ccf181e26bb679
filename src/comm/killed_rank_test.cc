// Ranks as processes, one of which is killed at a random moment. The others end with an error that names it,
// long before the deadline. No process stays behind.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "comm/collectives.h"
#include "comm/ranks_testing.h"

namespace dsv4::comm {
namespace {

using testing::Network;
using Clock = std::chrono::steady_clock;

constexpr int kNamed = 10;  // Exit codes of a rank: the error names the victim,
constexpr int kOther = 11;  // or it does not.

// Time limit of the group, and the much shorter limit for noticing a death. A rank that is not kept from the
// core notices it in a fraction of a second.
constexpr std::chrono::seconds kDeadline(600);
constexpr std::chrono::seconds kSoon(60);

// Works without end: every collective in turn, in sizes of one and of several chunks.
Status Work(Communicator& group) {
  std::mt19937 random(7);  // The same calls on every rank.
  for (;;) {
    const size_t count = 1 + random() % 100000;
    std::vector<float> values(count, 1.0F);
    std::vector<std::byte> bytes(count);
    switch (random() % 6) {
      case 0:
        DSV4_RETURN_IF_ERROR(group.AllReduceSum(values));
        break;
      case 1: {
        const int root = static_cast<int>(random() % static_cast<uint32_t>(group.size()));
        DSV4_RETURN_IF_ERROR(group.Broadcast(bytes, root, Wait::kForever));
        break;
      }
      case 2: {
        const std::vector<int64_t> sizes(static_cast<size_t>(group.size()), static_cast<int64_t>(count));
        std::vector<std::byte> all(count * sizes.size());
        DSV4_RETURN_IF_ERROR(group.AllGather(bytes, 1, sizes, all));
        break;
      }
      case 3: {
        const std::vector<int64_t> sizes(static_cast<size_t>(group.size()), 3);
        const auto rows = static_cast<int64_t>(count / 100);
        std::vector<std::byte> all(static_cast<size_t>(rows * 3 * group.size()));
        std::vector<std::byte> parts(all.size());
        DSV4_RETURN_IF_ERROR(group.AllToAll(all, rows, sizes, parts));
        break;
      }
      case 4:
        if (group.rank() == 0) {
          DSV4_RETURN_IF_ERROR(group.Send(bytes, 1));
        } else if (group.rank() == 1) {
          DSV4_RETURN_IF_ERROR(group.Recv(bytes, 0));
        }
        break;
      default:
        DSV4_RETURN_IF_ERROR(group.Barrier());
    }
  }
}

// Says on `joined` when it is in the group.
[[noreturn]] void RunRank(testing::Meeting& meeting, int rank, int size, int victim, int joined) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // Also where the test fails before it kills a rank.
  meeting.CloseAllBut(rank);
  const auto group = meeting.Join(rank, kDeadline);
  if (char byte = 0; group == nullptr || ::write(joined, &byte, 1) != 1) ::_exit(kOther);
  const Status status = Work(*group);
  const bool named = status.code() == StatusCode::kUnavailable &&
                     status.message().starts_with(fmt::format("rank {} of {}", victim, size));
  if (!named) fmt::print(stderr, "rank {} heard: {}\n", rank, status.ToString());
  ::_exit(named ? kNamed : kOther);
}

class KilledRank : public ::testing::TestWithParam<Network> {};
INSTANTIATE_TEST_SUITE_P(Networks, KilledRank, ::testing::ValuesIn(testing::kNetworks));

TEST_P(KilledRank, EndsTheGroupWithItsName) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 20; ++round) {
    const int size = 2 + round % 3;
    const int victim = static_cast<int>(random() % static_cast<uint32_t>(size));
    testing::Meeting meeting(size, GetParam());
    std::array<int, 2> joined = {};
    ASSERT_EQ(::pipe(joined.data()), 0);
    std::vector<pid_t> processes;
    for (int rank = 0; rank < size; ++rank) {
      const pid_t process = ::fork();
      ASSERT_GE(process, 0);
      if (process == 0) RunRank(meeting, rank, size, victim, joined[1]);
      processes.push_back(process);
    }
    meeting.CloseAllBut(-1);
    // A rank that is killed before it has come is another story: the others wait for it until the deadline.
    char byte = 0;
    for (int rank = 0; rank < size; ++rank) ASSERT_EQ(::read(joined[0], &byte, 1), 1);
    ::close(joined[0]);
    ::close(joined[1]);
    ::usleep(static_cast<useconds_t>(random() % 60000));
    ASSERT_EQ(::kill(processes[static_cast<size_t>(victim)], SIGKILL), 0);
    const Clock::time_point killed = Clock::now();
    for (int rank = 0; rank < size; ++rank) {
      int state = 0;
      ASSERT_EQ(::waitpid(processes[static_cast<size_t>(rank)], &state, 0),
                processes[static_cast<size_t>(rank)]);
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(state));
      } else {
        EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == kNamed) << "rank " << rank << ": " << state;
      }
    }
    EXPECT_LT(Clock::now() - killed, kSoon);
  }
}

// Whether two ranks meet when both are stopped for longer than their deadline while one waits for the other.
// Rank 0 wakes first, when rank 1 cannot have come.
bool MeetAfterAStop(Network network, std::chrono::milliseconds deadline) {
  testing::Meeting meeting(2, network);
  std::array<int, 2> joined = {};
  std::array<int, 2> go = {};
  if (::pipe(joined.data()) != 0 || ::pipe(go.data()) != 0) return false;
  std::array<pid_t, 2> processes = {};
  for (int rank = 0; rank < 2; ++rank) {
    processes[static_cast<size_t>(rank)] = ::fork();
    if (processes[static_cast<size_t>(rank)] != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // Stopped ones too.
    meeting.CloseAllBut(rank);
    const auto group = meeting.Join(rank, deadline);
    char byte = 0;
    if (group == nullptr || ::write(joined[1], &byte, 1) != 1) ::_exit(kOther);
    if (rank == 1 && ::read(go[0], &byte, 1) != 1) ::_exit(kOther);
    const Status met = group->Barrier();
    ::_exit(met.ok() ? kNamed : kOther);
  }
  meeting.CloseAllBut(-1);
  ::close(joined[1]);
  char byte = 0;
  bool good = true;
  for (int rank = 0; rank < 2; ++rank) good &= ::read(joined[0], &byte, 1) == 1;
  ::usleep(100000);  // Rank 0 waits.
  for (const pid_t process : processes) ::kill(process, SIGSTOP);
  std::this_thread::sleep_for(deadline + std::chrono::milliseconds(500));
  good &= ::write(go[1], &byte, 1) == 1;
  ::kill(processes[0], SIGCONT);
  ::usleep(100000);
  ::kill(processes[1], SIGCONT);
  for (const pid_t process : processes) {
    int state = 0;
    good &= ::waitpid(process, &state, 0) == process && WIFEXITED(state) && WEXITSTATUS(state) == kNamed;
  }
  for (const int fd : {joined[0], go[0], go[1]}) ::close(fd);
  return good;
}

// A machine that is suspended, or a container that is frozen, goes on where it was. A rank that has slept
// through the deadline itself has not waited for it. On a busy machine the waits around the stop may
// themselves take the shorter deadlines. A rank that counts the stop fails with every one.
TEST_P(KilledRank, NobodyIsBlamedForAStop) {
  EXPECT_TRUE(MeetAfterAStop(GetParam(), std::chrono::seconds(2)) ||
              MeetAfterAStop(GetParam(), std::chrono::seconds(8)) ||
              MeetAfterAStop(GetParam(), std::chrono::seconds(32)));
}

}  // namespace
}  // namespace dsv4::comm
