#include "backend/cuda/runtime/pinned_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dsv4::backend::cuda {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::string What(size_t num_bytes) { return fmt::format("pinning {} bytes of the host's memory", num_bytes); }

// Memory of this process; the device does not know it yet.
class HostPages {
 public:
  static Result<HostPages> Map(size_t num_bytes) {
    HostPages pages;
    pages.mapped_bytes_ = (num_bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
    void* const mapped = ::mmap(nullptr, pages.mapped_bytes_, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
      return Error(ResourceExhausted(fmt::format("{}: {}", What(num_bytes), std::strerror(errno))));
    pages.mapped_ = mapped;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(mapped) + kHugePage - 1) / kHugePage * kHugePage;
    pages.begin_ = reinterpret_cast<std::byte*>(begin);
    ::madvise(pages.begin_, num_bytes, MADV_HUGEPAGE);  // Speed only.
    return pages;
  }
  HostPages(HostPages&& other) noexcept
      : mapped_(std::exchange(other.mapped_, nullptr)),
        mapped_bytes_(other.mapped_bytes_),
        begin_(other.begin_) {}
  HostPages& operator=(HostPages&&) = delete;
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  ~HostPages() {
    if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  }

  std::byte* begin() const { return begin_; }
  void Touch(size_t num_bytes, ThreadPool& threads) const {
    constexpr int64_t kPage = 4096;
    const auto num_pages = (static_cast<int64_t>(num_bytes) + kPage - 1) / kPage;
    threads.ParallelFor(num_pages, static_cast<int64_t>(kHugePage) / kPage, [&](int64_t first, int64_t last) {
      for (int64_t page = first; page < last; ++page) *(begin_ + page * kPage) = std::byte{0};
    });
  }

 private:
  HostPages() = default;

  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* begin_ = nullptr;
};

}  // namespace

Result<Buffer> AllocatePinned(DeviceQueue& queue, size_t num_bytes, ThreadPool& threads) {
  int same_address = 0;
  DSV4_TRY(queue.CallOnStream(What(num_bytes), [&](cudaStream_t) {
    return cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                  queue.device().index);
  }));
  if (same_address == 0) return AllocatePinned(queue, num_bytes);
  DSV4_ASSIGN_OR_RETURN(HostPages mapped, HostPages::Map(num_bytes));
  mapped.Touch(num_bytes, threads);
  DSV4_TRY(queue.CallOnStream(What(num_bytes), [&](cudaStream_t) {
    return cudaHostRegister(mapped.begin(), num_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  }));
  auto pages = std::make_shared<HostPages>(std::move(mapped));
  std::byte* const begin = pages->begin();
  return Buffer(
      std::shared_ptr<void>(begin,
                            [keeps = queue.shared_from_this(), pages = std::move(pages)](void* memory) {
                              // The device may still read it.
                              (void)keeps->CallOnStream("freeing pinned memory", [&](cudaStream_t stream) {
                                cudaStreamSynchronize(stream);
                                return cudaHostUnregister(memory);
                              });
                            }),
      num_bytes, Device{});
}

Result<Buffer> AllocatePinned(DeviceQueue& queue, size_t num_bytes) {
  void* data = nullptr;
  DSV4_TRY(queue.CallOnStream(
      What(num_bytes), [&](cudaStream_t) { return cudaMallocHost(&data, std::max<size_t>(num_bytes, 1)); }));
  return Buffer(std::shared_ptr<void>(data,
                                      [keeps = queue.shared_from_this()](void* memory) {
                                        // The device may still read it.
                                        (void)keeps->CallOnStream("freeing pinned memory",
                                                                  [&](cudaStream_t stream) {
                                                                    cudaStreamSynchronize(stream);
                                                                    return cudaFreeHost(memory);
                                                                  });
                                      }),
                num_bytes, Device{});
}

}  // namespace dsv4::backend::cuda
