// sum_terms: some elements, of up to kMaxTopK choices (gemv_experts.h).
#pragma once

#include "ops/sum_terms.h"

namespace dsv4::backend::cuda {

class LaunchContext;

void LaunchSumTerms(LaunchContext& context, const ops::SumTermsArgs& args);

}  // namespace dsv4::backend::cuda
