// Anonymous shared memory of a group: created by rank 0, opened by others through /proc.
#include "comm/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/text.h"
#include "comm/shared_memory_layout.h"

namespace dsv4::comm {
namespace {

Result<std::byte*> Map(int fd, size_t num_bytes) {
  void* const data = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return Error(ResourceExhausted(
        fmt::format("shared memory of {}: {}", Counted(num_bytes, "byte"), std::strerror(errno))));
  }
  return static_cast<std::byte*>(data);
}

Status CheckSize(int size) {
  if (1 <= size && size <= kMaxSharedMemoryRanks) return {};
  return InvalidArgument(fmt::format("ranks: got {}, want 1 to {}", size, kMaxSharedMemoryRanks));
}

}  // namespace

Result<std::shared_ptr<SharedMemory>> SharedMemory::Create(int size) {
  DSV4_TRY(CheckSize(size));
  const size_t num_bytes = Layout::NumBytes(size);
  const int fd = ::memfd_create("dsv4-ranks", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(num_bytes)) != 0) {
    const Status status = ResourceExhausted(
        fmt::format("shared memory of {}: {}", Counted(num_bytes, "byte"), std::strerror(errno)));
    if (fd >= 0) ::close(fd);
    return Error(status);
  }
  const Result<std::byte*> data = Map(fd, num_bytes);
  if (!data) {
    ::close(fd);
    return Error(data.error());
  }
  std::shared_ptr<SharedMemory> memory(new SharedMemory(fd, *data, num_bytes));
  // Buffers and mailboxes are left as the zeros they are: only pages that are used take memory.
  const Layout layout(*data, size);
  for (int rank = 0; rank < size; ++rank) new (&layout.control(rank)) RankControl();
  (new (&layout.header()) Header())->num_ranks = size;
  return memory;
}

Result<std::shared_ptr<SharedMemory>> SharedMemory::Open(pid_t creator, int fd, int size) {
  DSV4_TRY(CheckSize(size));
  const std::string path = fmt::format("/proc/{}/fd/{}", creator, fd);
  const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (mine < 0) {
    return Error(StatusCode::kUnavailable,
                 fmt::format("shared memory of process {}: {} (ranks of one machine want one user and one "
                             "process namespace)",
                             creator, std::strerror(errno)));
  }
  struct stat facts = {};
  const size_t num_bytes = Layout::NumBytes(size);
  if (::fstat(mine, &facts) != 0 || static_cast<size_t>(facts.st_size) != num_bytes) {
    ::close(mine);
    return Error(
        InvalidArgument(fmt::format("shared memory of process {}: got {}, want {} for {}", creator,
                                    Counted(facts.st_size, "byte"), num_bytes, Counted(size, "rank"))));
  }
  const Result<std::byte*> data = Map(mine, num_bytes);
  if (!data) {
    ::close(mine);
    return Error(data.error());
  }
  std::shared_ptr<SharedMemory> memory(new SharedMemory(mine, *data, num_bytes));
  const Header& header = Layout(*data, size).header();
  if (header.magic != kMagic || header.num_ranks != size) {
    return Error(InvalidArgument(fmt::format("shared memory of process {}: not that of {} of this version",
                                             creator, Counted(size, "rank"))));
  }
  return memory;
}

SharedMemory::~SharedMemory() {
  ::munmap(data_, num_bytes_);
  ::close(fd_);
}

}  // namespace dsv4::comm
