// What tests say to the runtime of no device (null_runtime.cc).
#pragma once

#include <atomic>
#include <cstddef>

namespace dsv4::null_runtime {

// Copies and fills of more bytes do nothing: they are of weights, which nobody looks at and of which there may be more than memory.
extern std::atomic<size_t> max_touched_bytes;

}  // namespace dsv4::null_runtime
