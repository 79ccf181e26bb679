// Task of the experts' kernels: terms, which expert_terms leaves and routed_experts sums.
#pragma once

#include "backend/cuda/device/sync/fault.h"
#include "ops/expert_terms.h"

namespace dsv4::backend::cuda {

struct TermsWork {
  const ops::ExpertTermsArgs& args;  // Valid; some experts, some tokens.
  FaultKind wrong_index;             // Report of an index outside [0, num_experts).
};

}  // namespace dsv4::backend::cuda
