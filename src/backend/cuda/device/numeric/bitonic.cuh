// Sorts a list in shared memory by one block.
#pragma once

namespace dsv4::backend::cuda {

// `padded` values, a power of two from 2 on; kDescending: the largest first. The block has met before, and
// after, the list is sorted for all.
template <bool kDescending, typename T>
__device__ void BitonicSort(T* list, int padded) {
  for (int size = 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < padded / 2; i += static_cast<int>(blockDim.x)) {
        const int low = i / stride * 2 * stride + i % stride;
        const int high = low + stride;
        const bool ascending = ((low & size) == 0) != kDescending;
        if ((list[low] > list[high]) == ascending && list[low] != list[high]) {
          const T swapped = list[low];
          list[low] = list[high];
          list[high] = swapped;
        }
      }
      __syncthreads();
    }
  }
}

// The smallest size that BitonicSort takes for `count` values.
inline int BitonicSize(int64_t count) {
  int padded = 2;
  while (padded < count) padded *= 2;
  return padded;
}

}  // namespace dsv4::backend::cuda
