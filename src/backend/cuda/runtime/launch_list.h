// LaunchList: kernel launches that have not been handed to the device yet, as bytes: what is launched, how
// widely, with which arguments. Two lists with equal bytes do the same work, which is how a list is found
// again in a GraphCache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/cuda/runtime/launch_arguments.h"

namespace dsv4::backend::cuda {

class LaunchList {
 public:
  // Adds a launch; its arguments follow in order. `overlaps`: it may start while the launch before it still
  // runs, because the kernel itself waits before it reads what that one wrote (programmatic_launch.cuh).
  void BeginLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, bool overlaps);

  template <typename T>
  void AddArgument(T value) {
    ClearPadding(value);
    AddArgument(LaunchArgument{&value, sizeof(T)});
  }
  // Padding is cleared.
  void AddArgument(const LaunchArgument& argument);

  // Writes over argument `index` of the first launch.
  template <typename T>
  void SetArgument(size_t index, T value) {
    static_assert(std::has_unique_object_representations_v<T>);
    std::memcpy(bytes_.data() + arguments_[index], &value, sizeof(T));
  }
  // The first launch is not made; its arguments, which stay among bytes(), say so.
  void SkipFirst();

  size_t size() const { return launches_.size(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  void Clear();

  // Launches everything on `stream`. On an error *failed is the number of the launch that was refused.
  cudaError_t Enqueue(cudaStream_t stream, size_t* failed) const;

 private:
  struct Header {
    const void* kernel;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    unsigned overlaps;
  };
  static_assert(std::has_unique_object_representations_v<Header>);
  struct Place {
    size_t header = 0;          // In bytes_.
    size_t first_argument = 0;  // In arguments_.
  };

  size_t Append(size_t num_bytes);

  std::vector<std::byte> bytes_;
  std::vector<Place> launches_;
  std::vector<size_t> arguments_;  // Offset of each in bytes_.
};

}  // namespace dsv4::backend::cuda
