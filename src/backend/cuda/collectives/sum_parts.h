// Kernels that a group on device memory computes and speaks with between exchanges; launched directly on the
// stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dsv4::backend::cuda {

// sum[i] = ((parts[0][i] + parts[1][i]) + ...); parts [num_parts, count].
cudaError_t LaunchSumParts(cudaStream_t stream, const float* parts, int num_parts, int64_t count, float* sum);
// *word = number, in mapped host memory.
cudaError_t LaunchMark(cudaStream_t stream, uint64_t* word, uint64_t number);

}  // namespace dsv4::backend::cuda
