// sum_rows, whose rows of a target are listed.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/device_array.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

class LaunchContext;

// Rows order[begins[t]] .. order[begins[t + 1] - 1] of `rows` [num_rows, dim] are summed in row t of `out`; both fp32.
void LaunchSumRows(LaunchContext& context, const DeviceArray<int32_t>& begins,
                   const DeviceArray<int32_t>& order, const TensorView& rows, const TensorView& out);

}  // namespace dsv4::backend::cuda
