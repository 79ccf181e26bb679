// routed_experts where an expert has some hundred tokens: FP4 weights are widened into shared memory once for up to 256 of them.
#pragma once

#include "backend/cuda/cuda_context.h"

namespace dsv4::backend::cuda {

// So many tokens, and experts that are stored alike in FP4.
bool HasExpertsWide(const ExpertTable& table, const ops::RoutedExpertsArgs& args);

// What down gives for every assignment, token * top_k + slot: rows [num_assignments, dim] of bf16.
Status ExpertsWide(CudaContext& context, const ExpertTable& table, const ops::RoutedExpertsArgs& args,
                   uint16_t* rows);

}  // namespace dsv4::backend::cuda
