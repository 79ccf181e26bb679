// Staging: small host arrays on their way to kernels. Each array gets an offset in pinned memory and the same
// offset in device memory at once. The bytes travel when they are taken, all in one copy.
//
// Memory comes in two halves that are filled in turn. Offsets are given out from the beginning again after
// Rewind, so that the same work done twice finds its arrays at the same addresses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dsv4::backend::cuda {

class Staging {
 public:
  // The page tables of a step of 64 sequences of 131072 tokens, two for each of 21 layers, are 11 MB.
  static constexpr size_t kHalfBytes = size_t{16} << 20;
  // The same of ops between steps, of which one chooses tokens: masks of 128 rows are 2 MB.
  static constexpr size_t kHalfBytesBetween = size_t{4} << 20;
  // The largest array that is taken; bigger ones get an allocation of their own, and steps with them are always walked.
  static constexpr size_t kMaxArrayBytes = size_t{2} << 20;

  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Before anything else. `half_bytes`: of each half.
  cudaError_t Allocate(size_t half_bytes);

  bool Fits(size_t num_bytes) const { return used_ + Rounded(num_bytes) <= half_bytes_; }
  // Copies num_bytes and zeros up to `capacity`, which fits, and says where they will be. After AwaitHalf.
  void* Put(const void* source, size_t num_bytes, size_t capacity);
  void* Put(const void* source, size_t num_bytes) { return Put(source, num_bytes, num_bytes); }
  // Bytes put since the last call: its taker queues the copy. Multiples of 256 bytes.
  struct Bytes {
    const void* host = nullptr;
    void* device = nullptr;
    size_t num_bytes = 0;
  };
  Bytes TakeNew();
  // Position at which Put goes on.
  struct Position {
    int half = 0;
    size_t used = 0;
    friend bool operator==(const Position& a, const Position& b) = default;
  };
  Position position() const { return {half_, used_}; }
  // Bytes of this half, in host memory: for a caller that puts everything where it lay before, and then goes
  // on from there.
  std::byte* HostBytes(size_t offset) { return halves_[half_].host + offset; }
  void GoOnFrom(size_t used) { used_ = taken_ = used; }
  // Bytes that an array takes.
  static size_t Rounded(size_t num_bytes) { return (num_bytes + kAlignment - 1) / kAlignment * kAlignment; }
  // Whether there is any.
  bool HasNew() const { return used_ != taken_; }
  // Goes on in the other half, unless nothing was put into this one. Everything put has been taken.
  cudaError_t SwitchHalf(cudaStream_t stream);
  // Until the device has read what this half held before.
  cudaError_t AwaitHalf();
  // Starts over: the device has read everything, and no writer waits for an array to be read.
  void Rewind();

 private:
  static constexpr size_t kAlignment = 256;
  struct Half {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    cudaEvent_t read = nullptr;
  };
  Half halves_[2];
  size_t half_bytes_ = 0;
  int half_ = 0;
  size_t used_ = 0;
  size_t taken_ = 0;
  bool awaited_ = true;
};

}  // namespace dsv4::backend::cuda
