// Tests of machine memory on made-up /proc and cgroup trees, and once on this machine.
#include "base/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temporary_directory_testing.h"

namespace dsv4 {
namespace {

class MachineMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root() + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string root() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

TEST_F(MachineMemoryTest, ReadsTheKernelsFigures) {
  EXPECT_FALSE(ReadMachineMemory(root()).has_value());
  Write("/proc/meminfo", "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     600 kB\n");
  const Result<MachineMemory> memory = ReadMachineMemory(root());
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->total, 1000 * 1024);
  EXPECT_EQ(memory->available, 600 * 1024);
}

TEST_F(MachineMemoryTest, AControlGroupOrOneAroundItLimits) {
  Write("/proc/meminfo", "MemTotal:        1000 kB\nMemAvailable:     600 kB\n");
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(ReadMachineMemory(root())->total, 1000 * 1024);
  Write("/sys/fs/cgroup/a/memory.max", "102400\n");
  Write("/sys/fs/cgroup/a/memory.current", "52400\n");
  Write("/sys/fs/cgroup/a/memory.stat", "anon 10\nfile 50000\n");  // Copies of files give way.
  EXPECT_EQ(ReadMachineMemory(root())->total, 102400);
  EXPECT_EQ(ReadMachineMemory(root())->available, 100000);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(ReadMachineMemory(root())->total, 102400);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1096\n");
  EXPECT_EQ(ReadMachineMemory(root())->available, 3000);
}

TEST_F(MachineMemoryTest, AControlGroupOfTheFirstVersionLimitsByItsOwnName) {
  Write("/proc/meminfo", "MemTotal:        1000 kB\nMemAvailable:     600 kB\n");
  Write("/proc/self/cgroup", "8:pids:/\n4:memory:/a/b\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "102400\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "52400\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.stat", "cache 1\ntotal_cache 50000\n");
  EXPECT_EQ(ReadMachineMemory(root())->total, 102400);
  EXPECT_EQ(ReadMachineMemory(root())->available, 100000);
}

TEST(MachineMemory, OfThisMachine) {
  const Result<MachineMemory> memory = ReadMachineMemory();
  ASSERT_TRUE(memory.has_value()) << memory.error().message();
  EXPECT_GT(memory->available, 0);
  EXPECT_LE(memory->available, memory->total);
}

}  // namespace
}  // namespace dsv4
