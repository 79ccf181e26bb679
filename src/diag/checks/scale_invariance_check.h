// scale-invariance: is a large residual the cause of bad logits? A final RMSNorm makes them blind to its
// scale, so the logits of X and of X / 100 must agree. Field lesson F1.
#pragma once

#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

// Runs `tokens` twice, the second time with the residual streams in front of hc_head divided by 100, through
// the model's own head. A finding when the final norm is not applied or the logits' direction moves. Errors:
// the model's.
Result<CheckReport> CheckScaleInvariance(const Subject& subject, std::span<const int32_t> tokens);

}  // namespace dsv4::diag
