// Two halves of pinned memory through which small host arrays reach kernels while a step is in flight.
#include "backend/cuda/runtime/staging.h"

#include <cstring>

#include "base/check.h"

namespace dsv4::backend::cuda {

Staging::~Staging() {
  for (const Half& half : halves_) {
    if (half.host != nullptr) cudaFreeHost(half.host);
    if (half.device != nullptr) cudaFree(half.device);
    if (half.read != nullptr) cudaEventDestroy(half.read);
  }
}

cudaError_t Staging::Allocate(size_t half_bytes) {
  half_bytes_ = half_bytes;
  for (Half& half : halves_) {
    cudaError_t error = cudaMallocHost(reinterpret_cast<void**>(&half.host), half_bytes);
    if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&half.device), half_bytes);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&half.read, cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

void* Staging::Put(const void* source, size_t num_bytes, size_t capacity) {
  const Half& half = halves_[half_];
  const size_t rounded = Rounded(capacity);
  if (num_bytes > 0) std::memcpy(half.host + used_, source, num_bytes);
  std::memset(half.host + used_ + num_bytes, 0, rounded - num_bytes);
  void* const place = half.device + used_;
  used_ += rounded;
  return place;
}

Staging::Bytes Staging::TakeNew() {
  const Half& half = halves_[half_];
  const Bytes bytes = {half.host + taken_, half.device + taken_, used_ - taken_};
  taken_ = used_;
  return bytes;
}

cudaError_t Staging::SwitchHalf(cudaStream_t stream) {
  DSV4_CHECK(!HasNew()) << used_ - taken_ << " bytes have not been taken";
  if (used_ == 0) return cudaSuccess;
  const cudaError_t error = cudaEventRecord(halves_[half_].read, stream);
  if (error != cudaSuccess) return error;
  half_ ^= 1;
  used_ = taken_ = 0;
  awaited_ = false;
  return cudaSuccess;
}

cudaError_t Staging::AwaitHalf() {
  if (awaited_) return cudaSuccess;
  awaited_ = true;
  return cudaEventSynchronize(halves_[half_].read);
}

void Staging::Rewind() {
  half_ = 0;
  used_ = taken_ = 0;
  awaited_ = true;
}

}  // namespace dsv4::backend::cuda
