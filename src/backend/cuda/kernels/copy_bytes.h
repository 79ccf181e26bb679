// Bytes of staging memory to where a step wants them.
#pragma once

#include <cstddef>

namespace dsv4::backend::cuda {

class DeviceQueue;

void LaunchCopyBytes(DeviceQueue& queue, void* destination, const void* source, size_t num_bytes);

}  // namespace dsv4::backend::cuda
