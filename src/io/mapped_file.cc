// Read-only file mappings, advice to the kernel, and the register by which a fault's address leads to its
// file.
#include "io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/huge_pages.h"
#include "base/text.h"

namespace dsv4::io {
namespace {

// Entry that a signal handler can look up: no lock, no memory taken while it looks.
struct Mapping {
  std::atomic<bool> taken = false;
  std::atomic<const std::byte*> begin = nullptr;  // Null while the rest is not valid.
  std::atomic<const std::byte*> end = nullptr;
  std::atomic<char*> path = nullptr;
};
std::array<Mapping, 4096> g_mappings;

void Register(std::span<const std::byte> bytes, const std::string& path) {
  for (Mapping& mapping : g_mappings) {
    if (mapping.taken.load(std::memory_order_relaxed) || mapping.taken.exchange(true)) continue;
    mapping.path = ::strdup(path.c_str());
    mapping.end = bytes.data() + bytes.size();
    mapping.begin = bytes.data();
    return;
  }
}

void Unregister(std::span<const std::byte> bytes) {
  for (Mapping& mapping : g_mappings) {
    if (mapping.begin.load() != bytes.data()) continue;
    mapping.begin = nullptr;
    std::free(mapping.path.exchange(nullptr));
    mapping.taken = false;
    return;
  }
}

const Mapping* MappingAt(const void* address) {
  for (const Mapping& mapping : g_mappings) {
    const std::byte* begin = mapping.begin.load();
    if (begin != nullptr && address >= begin && address < mapping.end.load()) return &mapping;
  }
  return nullptr;
}

// The first file that was lost. Its name is written once, by a signal handler, before the state says so.
enum LostState : int { kNone, kBeingWritten, kKnown };
std::atomic<int> g_lost_state = kNone;
std::array<char, 4096> g_lost_path;

void RememberLost(const char* path) {
  int none = kNone;
  if (!g_lost_state.compare_exchange_strong(none, kBeingWritten)) return;
  for (size_t i = 0; i + 1 < g_lost_path.size() && path[i] != '\0'; ++i) g_lost_path[i] = path[i];
  g_lost_state.store(kKnown);
}

}  // namespace

const char* MappedFileAt(const void* address) {
  const Mapping* mapping = MappingAt(address);
  return mapping == nullptr ? nullptr : mapping->path.load();
}

bool StandInForLostPages(const void* address) {
  const Mapping* mapping = MappingAt(address);
  if (mapping == nullptr) return false;
  // Before the zeros are there: what reads them can know of it.
  RememberLost(mapping->path.load());
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(address) / page * page;
  return ::mmap(reinterpret_cast<void*>(first), reinterpret_cast<uintptr_t>(mapping->end.load()) - first,
                PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

Status LostFile() {
  if (g_lost_state.load() == kNone) return {};
  while (g_lost_state.load() != kKnown) continue;
  return DataLoss(fmt::format("{}: {}", g_lost_path.data(), kLostFileText));
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file, InputFile::Open(path));
  const auto size = static_cast<size_t>(file->stamp().size);
  if (size == 0) return MappedFile(path, {}, std::move(file));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file->descriptor(), 0);
  if (data == MAP_FAILED) {
    return Error(ResourceExhausted(
        fmt::format("{}: cannot map {}: {}", path, Counted(size, "byte"), std::strerror(errno))));
  }
  // Weights are read from end to end for every token: with small pages, looking up addresses can cost as much
  // as reading. Speed only: what is in the page cache already stays in the pages it is in, and a file system
  // may have small ones only.
  ::madvise(data, size, MADV_HUGEPAGE);
  Register({static_cast<const std::byte*>(data), size}, path);
  return MappedFile(path, {static_cast<const std::byte*>(data), size}, std::move(file));
}

Result<MappedFile> MappedFile::InMemory(const std::string& name, size_t num_bytes,
                                        std::span<std::byte>& writable) {
  writable = {};
  if (num_bytes == 0) return MappedFile(name, {}, nullptr);
  DSV4_ASSIGN_OR_RETURN(HugePages pages, HugePages::Map(name, num_bytes));
  writable = pages.Release();
  return MappedFile(name, writable, nullptr);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})), file_(std::move(other.file_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(file_, other.file_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  Unregister(bytes_);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void AdviseWillNeed(std::span<const std::byte> range) {
  if (range.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(range.data());
  const uintptr_t aligned = begin - begin % page;
  ::madvise(reinterpret_cast<void*>(aligned), range.size() + (begin - aligned), MADV_WILLNEED);
}

void AdviseScattered(std::span<const std::byte> range) {
  if (!range.empty()) ::madvise(const_cast<std::byte*>(range.data()), range.size(), MADV_NOHUGEPAGE);
}

void AdviseRandom(std::span<const std::byte> range) {
  if (range.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  if (begin >= end) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM);
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_NOHUGEPAGE);
}

void AdviseDontNeed(std::span<const std::byte> range) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  DSV4_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > max_bytes) {
    return Error(InvalidArgument(
        fmt::format("{}: {}, at most {} are read", path, Counted(file.bytes().size(), "byte"), max_bytes)));
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace dsv4::io
