// Measurement of the link's rate from pinned memory to the device.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/runtime/pinned_memory.h"

namespace dsv4::backend {

Result<double> HostToDeviceRate(const ops::Backend& backend) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr int kCopies = 4;  // A pass's.
  constexpr int kPasses = 5;
  auto& context = static_cast<cuda::CudaContext&>(*backend.context);
  DSV4_ASSIGN_OR_RETURN(const Buffer from, cuda::AllocatePinned(context.queue(), kBytes));
  DSV4_ASSIGN_OR_RETURN(const Buffer to, context.memory().Allocate(kBytes));
  std::memset(from.data(), 0, kBytes);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    double seconds = 0;
    DSV4_TRY(context.queue().CallOnStream("the rate of copies to the device", [&](cudaStream_t stream) {
      cudaError_t error = cudaStreamSynchronize(stream);
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCopies && error == cudaSuccess; ++i)
        error = cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyHostToDevice, stream);
      if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      return error;
    }));
    best = std::max(best, static_cast<double>(kBytes * kCopies) / seconds);
  }
  return best;
}

}  // namespace dsv4::backend
