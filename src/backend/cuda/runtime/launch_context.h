// LaunchContext: what the host's part of a kernel asks of the context of its op (cuda_context.h). Every .cu reads this header, several times
// over (device code, host code, each architecture), so it stays light.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cuda/device/numeric/device_array.h"
#include "backend/cuda/lowering/device_limits.h"
#include "backend/cuda/runtime/launch_arguments.h"
#include "backend/cuda/runtime/memory_range.h"
#include "base/status.h"

namespace dsv4::backend::cuda {

struct Fault;
struct GridBarrier;
struct PackedTokensWork;

class LaunchContext {
 public:
  LaunchContext(const LaunchContext&) = delete;
  LaunchContext& operator=(const LaunchContext&) = delete;

  // Adds a launch of the op that runs now (DeviceQueue::AddLaunch).
  template <typename... Params, typename... Args>
  void Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, const Args&... args) {
    static_assert(sizeof...(Params) == sizeof...(Args));
    PassArguments<Params...>(
        [&](std::span<const LaunchArgument> arguments) {
          AddLaunch(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, arguments);
        },
        args...);
  }

  // Limits that choose kernels.
  virtual const DeviceLimits& limits() const = 0;
  // Record in which kernels report wrong data; device memory.
  virtual Fault* fault() const = 0;
  // Room of the device, as DeviceQueue's functions of these names.
  virtual int MostClusters(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) = 0;
  virtual bool RunsAtOnce(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) = 0;
  bool HasCluster(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes) {
    return MostClusters(kernel, blocks, threads, shared_bytes) > 0;
  }

  // Memory for the op that runs now, or as long as this lives for what launches an op that ran before;
  // contents unspecified.
  virtual Result<void*> ScratchBytes(size_t num_bytes) = 0;
  template <typename T>
  Result<T*> Scratch(int64_t count) {
    DSV4_ASSIGN_OR_RETURN(void* data, ScratchBytes(static_cast<size_t>(count) * sizeof(T)));
    return static_cast<T*>(data);
  }
  // kNumGridBarriers barriers for the blocks of the launch that is added next.
  virtual Result<GridBarrier*> GridBarriers() = 0;

  // A device copy of `values` for launches of the op that runs now; the source is free at return. A step with
  // such an array is always walked.
  template <typename T>
  Result<DeviceArray<T>> Stage(std::span<const T> values) {
    DSV4_ASSIGN_OR_RETURN(const void* data, StageBytes(values.data(), values.size_bytes()));
    return DeviceArray<T>{static_cast<const T*>(data), static_cast<int64_t>(values.size())};
  }

  // Whether the launch in front left these tokens packed where this says, so that none is needed.
  virtual bool FindsPacked(const PackedTokensWork& tokens) = 0;
  // The launch before this call read the tokens at `x` as they are packed there, and wrote `y`.
  virtual void NotePacked(const PackedTokensWork& tokens, const MemoryRange& x, const MemoryRange& y) = 0;

 protected:
  LaunchContext() = default;
  ~LaunchContext() = default;

 private:
  virtual void AddLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                         std::span<const LaunchArgument> arguments) = 0;
  virtual Result<const void*> StageBytes(const void* source, size_t num_bytes) = 0;
};

}  // namespace dsv4::backend::cuda
