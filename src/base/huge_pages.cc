// Mapping of anonymous memory on huge-page borders, with advice to the kernel.
#include "base/huge_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace dsv4 {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

Result<HugePages> HugePages::Map(std::string_view what, size_t num_bytes) {
  const auto failed = [&] {
    return Error(ResourceExhausted(
        fmt::format("{}: cannot get {}: {}", what, Counted(num_bytes, "byte"), std::strerror(errno))));
  };
  if (num_bytes == 0 || num_bytes > SIZE_MAX - 2 * kBytes) {
    errno = EINVAL;
    return failed();
  }
  const size_t used = (num_bytes + kPage - 1) / kPage * kPage;
  void* const mapped = ::mmap(nullptr, used + kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return failed();
  auto* const all = static_cast<std::byte*>(mapped);
  const size_t before = (kBytes - reinterpret_cast<uintptr_t>(mapped) % kBytes) % kBytes;
  if (before > 0) ::munmap(all, before);
  ::munmap(all + before + used, kBytes - before);
  ::madvise(all + before, num_bytes, MADV_HUGEPAGE);  // Speed only: without them pages are small.
  return HugePages({all + before, num_bytes});
}

HugePages::HugePages(HugePages&& other) noexcept : bytes_(other.Release()) {}

HugePages& HugePages::operator=(HugePages&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

HugePages::~HugePages() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

std::span<std::byte> HugePages::Release() { return std::exchange(bytes_, {}); }

}  // namespace dsv4
