// Allocation of pinned host memory that kernels read and write at the same addresses.
#include "backend/cuda/runtime/pinned_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/huge_pages.h"
#include "base/text.h"

namespace dsv4::backend::cuda {
namespace {

std::string What(size_t num_bytes) {
  return fmt::format("pinning {} of the host's memory", Counted(num_bytes, "byte"));
}

// The driver gets pages that were never touched one after the other.
void Touch(std::span<std::byte> bytes, ThreadPool& threads) {
  constexpr int64_t kPage = 4096;
  const auto num_pages = (static_cast<int64_t>(bytes.size()) + kPage - 1) / kPage;
  threads.ParallelFor(num_pages, static_cast<int64_t>(HugePages::kBytes) / kPage,
                      [&](int64_t first, int64_t last) {
                        for (int64_t page = first; page < last; ++page)
                          bytes[static_cast<size_t>(page * kPage)] = std::byte{0};
                      });
}

}  // namespace

Result<Buffer> AllocatePinned(DeviceQueue& queue, size_t num_bytes, ThreadPool& threads) {
  int same_address = 0;
  DSV4_TRY(queue.CallOnStream(What(num_bytes), [&](cudaStream_t) {
    return cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                  queue.device().index);
  }));
  if (same_address == 0) return AllocatePinned(queue, num_bytes);
  DSV4_ASSIGN_OR_RETURN(HugePages mapped, HugePages::Map(What(num_bytes), num_bytes));
  Touch(mapped.bytes(), threads);
  DSV4_TRY(queue.CallOnStream(What(num_bytes), [&](cudaStream_t) {
    return cudaHostRegister(mapped.bytes().data(), num_bytes,
                            cudaHostRegisterPortable | cudaHostRegisterMapped);
  }));
  auto pages = std::make_shared<HugePages>(std::move(mapped));
  std::byte* const begin = pages->bytes().data();
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
