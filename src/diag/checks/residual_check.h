// residual: size of every residual stream behind every layer, prefill beside decode. Field lesson F2.
#pragma once

#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

// Compares the last positions of `tokens` (16, or all but one of fewer) computed by one prefill with the same
// positions computed one by one. A finding for a stream that is not finite or all zero, and where decode's
// RMS is off prefill's by more than 2 %. Growth alone is none: see scale-invariance. NotApplicable for a
// single token.
Result<CheckReport> CheckResidual(const Subject& subject, std::span<const int32_t> tokens);

}  // namespace dsv4::diag
