#include "backend/cuda/runtime/pinned_memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsv4::backend::cuda {

Result<Buffer> AllocatePinned(DeviceQueue& queue, size_t num_bytes) {
  void* data = nullptr;
  DSV4_TRY(queue.CallOnStream(
      fmt::format("pinning {} bytes of the host's memory", num_bytes),
      [&](cudaStream_t) { return cudaMallocHost(&data, std::max<size_t>(num_bytes, 1)); }));
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
