// A CUDA runtime of no device, instead of NVIDIA's: memory is the host's, copies copy, and kernels do
// nothing. The host's work for a step can so be counted without a GPU: its launches, and how many of them are
// replayed.
#include "tests/cuda/null_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

std::atomic<size_t> dsv4::null_runtime::max_touched_bytes = size_t{64} << 10;
dsv4::null_runtime::DeviceSaid dsv4::null_runtime::device;
std::atomic<int64_t> dsv4::null_runtime::overlapped_launches = 0;
std::atomic<int64_t> dsv4::null_runtime::copied_to_device = 0;
std::atomic<size_t> dsv4::null_runtime::max_pinned_bytes = SIZE_MAX;
std::atomic<int> dsv4::null_runtime::registrations_left = INT_MAX;
std::atomic<int> dsv4::null_runtime::registered = 0;
std::atomic<int> dsv4::null_runtime::registration_ms = 0;
std::atomic<size_t> dsv4::null_runtime::max_device_bytes = SIZE_MAX;
std::atomic<uint64_t> dsv4::null_runtime::idle_pool_bytes = 0;

namespace {

constexpr size_t kDeviceBytes = size_t{64} << 30;
constexpr size_t kAlignment = 512;

// Each its own; nothing is behind them.
template <typename Handle>
cudaError_t Make(Handle* handle) {
  static std::atomic<uintptr_t> last = 0;
  *handle = reinterpret_cast<Handle>(last += 16);
  return cudaSuccess;
}

using dsv4::null_runtime::StreamCall;
std::mutex calls_mutex;
bool watching = false;
std::vector<StreamCall> calls;

cudaError_t Note(const StreamCall& call) {
  const std::lock_guard lock(calls_mutex);
  if (watching) calls.push_back(call);
  return cudaSuccess;
}

// Pages that nobody touches cost nothing.
cudaError_t Allocate(void** data, size_t num_bytes) {
  if (num_bytes > kDeviceBytes) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(kAlignment, (num_bytes / kAlignment + 1) * kAlignment);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t Free(void* data) {
  std::free(data);
  return cudaSuccess;
}

thread_local int current_device = 0;

// Dynamic shared memory of a block that a kernel's launches may have on a device: what was said last, up or
// down.
class SharedLimits {
 public:
  void Set(const void* kernel, int num_bytes) {
    const std::lock_guard lock(mutex_);
    limits_[{current_device, kernel}] = static_cast<size_t>(num_bytes);
  }
  size_t Of(const void* kernel) {
    constexpr size_t kAlwaysAllowed = size_t{48} << 10;
    const std::lock_guard lock(mutex_);
    const auto found = limits_.find({current_device, kernel});
    return found == limits_.end() ? kAlwaysAllowed : std::max(kAlwaysAllowed, found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, const void*>, size_t> limits_;
};
SharedLimits shared_limits;

}  // namespace

void dsv4::null_runtime::WatchStreams() {
  const std::lock_guard lock(calls_mutex);
  watching = true;
  calls.clear();
}
std::vector<StreamCall> dsv4::null_runtime::TakeStreamCalls() {
  const std::lock_guard lock(calls_mutex);
  watching = false;
  return std::exchange(calls, {});
}

// Functions that nvcc's code calls: kernels are known by their address alone.
extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*);
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);

void** __cudaRegisterFatBinary(void*) {
  static void* none = nullptr;
  return &none;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) { return Make(kernel); }
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 8;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "null");
  properties->major = dsv4::null_runtime::device.capability / 10;
  properties->minor = dsv4::null_runtime::device.capability % 10;
  properties->totalGlobalMem = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = dsv4::null_runtime::device.num_sms;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = dsv4::null_runtime::device.shared_bytes;
      break;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      *value = 1;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = dsv4::null_runtime::device.capability / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = dsv4::null_runtime::device.capability % 10;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = dsv4::null_runtime::device.code;
  attributes->binaryVersion = dsv4::null_runtime::device.capability;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<size_t>(length), "none:%d", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of no device"; }

cudaError_t cudaMalloc(void** data, size_t num_bytes) { return Allocate(data, num_bytes); }
cudaError_t cudaMallocFromPoolAsync(void** data, size_t num_bytes, cudaMemPool_t, cudaStream_t) {
  if (num_bytes > dsv4::null_runtime::max_device_bytes) return cudaErrorMemoryAllocation;
  return Allocate(data, num_bytes);
}
cudaError_t cudaMallocHost(void** data, size_t num_bytes) {
  if (num_bytes > dsv4::null_runtime::max_pinned_bytes) return cudaErrorMemoryAllocation;
  return Allocate(data, num_bytes);
}
cudaError_t cudaHostRegister(void*, size_t num_bytes, unsigned) {
  if (num_bytes > dsv4::null_runtime::max_pinned_bytes || --dsv4::null_runtime::registrations_left < 0)
    return cudaErrorMemoryAllocation;
  std::this_thread::sleep_for(std::chrono::milliseconds(dsv4::null_runtime::registration_ms.load()));
  ++dsv4::null_runtime::registered;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void*) {
  --dsv4::null_runtime::registered;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t num_bytes, unsigned) { return Allocate(data, num_bytes); }
cudaError_t cudaFree(void* data) { return Free(data); }
cudaError_t cudaFreeAsync(void* data, cudaStream_t) { return Free(data); }
cudaError_t cudaFreeHost(void* data) { return Free(data); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) { return Make(pool); }
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  const bool reserved = attribute == cudaMemPoolAttrReservedMemCurrent;
  *static_cast<uint64_t*>(value) = reserved ? dsv4::null_runtime::idle_pool_bytes.load() : 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  dsv4::null_runtime::idle_pool_bytes = 0;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice && num_bytes > dsv4::null_runtime::kCountedCopy) {
    dsv4::null_runtime::copied_to_device += static_cast<int64_t>(num_bytes);
    Note({.kind = StreamCall::Kind::kCopyToDevice,
          .stream = stream,
          .event = nullptr,
          .num_bytes = num_bytes});
  }
  if (num_bytes <= dsv4::null_runtime::max_touched_bytes) std::memcpy(to, from, num_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t num_bytes, cudaStream_t) {
  if (num_bytes <= dsv4::null_runtime::max_touched_bytes) std::memset(data, value, num_bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int value, size_t num_bytes) {
  return cudaMemsetAsync(data, value, num_bytes, nullptr);
}
// Ranks are threads here, and memory is everybody's.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  std::memcpy(handle, &data, sizeof(data));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned) {
  std::memcpy(data, &handle, sizeof(*data));
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return Make(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Note({.kind = StreamCall::Kind::kSynchronize, .stream = stream, .event = nullptr});
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Note({.kind = StreamCall::Kind::kWait, .stream = stream, .event = event});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return Make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Note({.kind = StreamCall::Kind::kRecord, .stream = stream, .event = event});
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Note({.kind = StreamCall::Kind::kSynchronize, .stream = nullptr, .event = event});
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > dsv4::null_runtime::device.shared_bytes) return cudaErrorInvalidValue;
  shared_limits.Set(kernel, value);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t* config) {
  constexpr int kGroups = 8;  // Groups of SMs that a cluster does not leave.
  constexpr int kProcessors = 16;
  *count = kGroups * (kProcessors / static_cast<int>(config->gridDim.x));
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  if (config->numAttrs > 0) ++dsv4::null_runtime::overlapped_launches;
  Note({.kind = StreamCall::Kind::kLaunch, .stream = config->stream, .event = nullptr});
  return config->dynamicSmemBytes > shared_limits.Of(kernel) ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) { return Make(graph); }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
  return Make(executable);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
