// Bytes between the host's pinned memory and the device's, by kernels: as launches of a list they cost TMA no
// turn.
#pragma once

#include <cstddef>

#include "backend/cuda/runtime/staging.h"

namespace dsv4::backend::cuda {

class DeviceQueue;
class LaunchList;
struct Fault;

// Copies of staging memory to where a step wants them.
void LaunchCopyBytes(DeviceQueue& queue, void* destination, const void* source, size_t num_bytes);

// Copies into staging memory, as a list's first launch. It is added before the bytes are known, and gets them
// behind the last launch.
void BeginUpload(LaunchList& list);
void SetUpload(LaunchList& list, const Staging::Bytes& staged);

// Copy that the host waits for: bytes, and the fault record beside them. `destination` and `host_fault` are
// pinned.
void LaunchCopyToHost(DeviceQueue& queue, void* destination, const void* source, size_t num_bytes,
                      Fault* host_fault);

}  // namespace dsv4::backend::cuda
