// The copy that puts NVFP4's codes in the device's order (weights/e2m1_order.h), at the rate of memory.
#pragma once

#include <cstddef>

namespace dsv4::backend::cuda {

// num_bytes is a multiple of 8. The two do not overlap.
void CopyInE2m1Order(std::byte* to, const std::byte* from, size_t num_bytes);

}  // namespace dsv4::backend::cuda
