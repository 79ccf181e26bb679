// For tests whose ranks are streams of one device, with kernels that wait for each other. Each stream has a
// channel to it, since the second of two on one channel waits for the first. No code is loaded while one
// runs. Set before anything asks for the device.
#pragma once

#include <cstdlib>

namespace dsv4::testing {

inline const bool kRanksHaveChannels =
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0 && ::setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0;

}  // namespace dsv4::testing
