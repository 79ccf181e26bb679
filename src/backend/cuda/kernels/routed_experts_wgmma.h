// routed_experts for many tokens, on the matrix unit (matmul_wgmma.cuh): assignments are grouped by expert, their rows of x
// packed; gate, up and their activation are one launch, down is another.
#pragma once

#include "backend/cuda/cuda_context.h"

namespace dsv4::backend::cuda {

// Many tokens, and experts that are stored alike in a form the matrix unit takes.
bool HasExpertsWgmma(const ExpertTable& table, const ops::RoutedExpertsArgs& args);

// What down gives for every assignment, token * top_k + slot: rows [num_assignments, dim] of bf16.
Status ExpertsWgmma(CudaContext& context, const ExpertTable& table, const ops::RoutedExpertsArgs& args,
                    uint16_t* rows);

}  // namespace dsv4::backend::cuda
