// Tests of NUMA: id lists, nodes from a made-up sysfs, plans, and policies that the kernel takes.
#include "base/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "base/parallel.h"

namespace dsv4 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SysfsTree : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "numa_test." + std::to_string(::getpid());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + "/devices/system/node/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  // Two sockets of unequal memory, and a node of memory alone (an expander).
  void WriteTwoSockets() const {
    Write("online", "0-2\n");
    Write("node0/cpulist", "0-3,8-11\n");
    Write("node0/meminfo", "Node 0 MemTotal:       1000 kB\nNode 0 MemFree:         400 kB\n");
    Write("node1/cpulist", "4-7\n");
    Write("node1/meminfo", "Node 1 MemTotal:       2000 kB\nNode 1 MemFree:         500 kB\n");
    Write("node2/cpulist", "\n");
    Write("node2/meminfo", "Node 2 MemTotal:       9000 kB\nNode 2 MemFree:        9000 kB\n");
  }

  std::string root_;
};

TEST(ParseIdList, ReadsWhatTheKernelWritesAndNothingElse) {
  EXPECT_THAT(*ParseIdList("0-2,5,7-8"), ElementsAre(0, 1, 2, 5, 7, 8));
  EXPECT_THAT(*ParseIdList(""), ElementsAre());
  for (const char* bad :
       {"x", "1-", "-1", "3-1", "1,1", "2,0", "1,", ",1", "1 2", "0-99999999", "99999999999"}) {
    EXPECT_FALSE(ParseIdList(bad).has_value()) << bad;
  }
}

TEST_F(SysfsTree, ReadsNodesWithTheirCpusAndMemory) {
  WriteTwoSockets();
  const auto nodes = ReadNumaNodes(root_);
  ASSERT_TRUE(nodes.has_value()) << nodes.error().ToString();
  ASSERT_EQ(nodes->size(), 3U);
  EXPECT_THAT((*nodes)[0].cpus, ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_EQ((*nodes)[1].id, 1);
  EXPECT_EQ((*nodes)[1].memory_bytes, 2000 * 1024);
  EXPECT_EQ((*nodes)[1].free_bytes, 500 * 1024);
  EXPECT_THAT((*nodes)[2].cpus, ElementsAre());
}

TEST_F(SysfsTree, AKernelWithoutNodesHasNone) { EXPECT_TRUE(ReadNumaNodes(root_)->empty()); }

TEST_F(SysfsTree, NamesTheFileThatIsWrong) {
  WriteTwoSockets();
  Write("node1/meminfo", "Node 1 MemTotal:       2000 kB\n");
  EXPECT_THAT(ReadNumaNodes(root_).error().message(), HasSubstr("node1/meminfo: no line \"MemFree: N kB\""));
  Write("node1/cpulist", "four\n");
  EXPECT_THAT(ReadNumaNodes(root_).error().message(), HasSubstr("node1/cpulist: \"four\""));
  Write("online", "0-1000000\n");
  EXPECT_THAT(ReadNumaNodes(root_).error().message(), HasSubstr("online"));
}

TEST_F(SysfsTree, InterleavesOverNodesWithCpusAndMemoryOfThisProcess) {
  WriteTwoSockets();
  const auto nodes = ReadNumaNodes(root_);
  const NumaPlan all = PlanNuma(*nodes, {});
  EXPECT_TRUE(all.interleave);
  ASSERT_EQ(all.nodes.size(), 2U);
  EXPECT_EQ(all.nodes[1].id, 1);
  EXPECT_THAT(all.reason, HasSubstr("2 nodes"));

  const NumaPlan some = PlanNuma(*nodes, {.cpus = {3, 4, 9}, .nodes = {0, 1, 2}});
  EXPECT_TRUE(some.interleave);
  EXPECT_THAT(some.nodes[0].cpus, ElementsAre(3, 9));

  EXPECT_FALSE(PlanNuma(*nodes, {.cpus = {0, 1}, .nodes = {}}).interleave);
  const NumaPlan one = PlanNuma(*nodes, {.cpus = {}, .nodes = {1}});
  EXPECT_FALSE(one.interleave);
  EXPECT_EQ(one.nodes.size(), 1U);
  EXPECT_THAT(one.reason, HasSubstr("one node only"));
  EXPECT_EQ(PlanNuma({}, {}).reason, "one node");
}

// The rest asks this machine's kernel, in threads of their own, which take policy and affinity with them when
// they end.
TEST(Numa, TheKernelTakesThePolicyAndThreadsInheritIt) {
  const NumaLimits limits = ProcessNumaLimits();
  ASSERT_FALSE(limits.cpus.empty());
  if (limits.nodes.empty()) GTEST_SKIP() << "this kernel or container has no NUMA policies";
  int mode = -1;
  Status status;
  std::thread([&] {
    status = InterleaveNewPages(limits.nodes);
    std::thread([&] { ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0); }).join();
  }).join();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(mode, MPOL_INTERLEAVE);
  std::thread([&] { status = InterleaveNewPages(std::vector<int>{8000}); }).join();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
}

TEST(Numa, PagesInMemoryAreFoundOnTheNodesOfThisProcess) {
  std::vector<std::byte> touched(size_t{1} << 20);
  int64_t total = 0;
  for (int i = 0; i < 1000 && total != 64; ++i) {  // A machine short of memory may take a page away at once.
    std::fill(touched.begin(), touched.end(), std::byte{1});
    total = 0;
    for (const auto& [node, count] : SamplePageNodes(touched, 64)) total += count;
    if (total == 0) GTEST_SKIP() << "this kernel or container does not tell";
  }
  EXPECT_EQ(total, 64);
  EXPECT_TRUE(SamplePageNodes({touched.data(), 10}, 64).empty());
}

TEST(Numa, ThreadsOfAPoolAreDealtOutByTheCpusOfTheNodes) {
  const std::vector<int> cpus = ProcessNumaLimits().cpus;
  if (cpus.size() < 2) GTEST_SKIP() << "one CPU";
  const std::vector<int> first(cpus.begin(), cpus.begin() + 1);
  const std::vector<int> rest(cpus.begin() + 1, cpus.end());
  // As many threads as CPUs: one belongs on the first node, and that is the caller, which is left alone.
  const int num_threads = static_cast<int>(cpus.size());
  ThreadPool pool(ThreadPoolOptions{.num_threads = num_threads, .spin = {}, .cpus_of_nodes = {first, rest}});
  std::mutex mutex;
  std::map<std::thread::id, std::vector<int>> seen;
  const auto caller = std::this_thread::get_id();
  while (seen.size() < 2) {
    pool.ParallelFor(4 * num_threads, 1, [&](int64_t, int64_t) {
      const std::vector<int> allowed = ProcessNumaLimits().cpus;
      const std::lock_guard lock(mutex);
      seen[std::this_thread::get_id()] = allowed;
    });
  }
  for (const auto& [thread, allowed] : seen) EXPECT_EQ(allowed, thread == caller ? cpus : rest);
}

}  // namespace
}  // namespace dsv4
