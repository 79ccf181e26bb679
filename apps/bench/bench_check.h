// Whether the model that `dsv4 bench` is about to time computes the right numbers. Its first layers run once
// on its backend and once on the reference backend, over the same weights.
#pragma once

#include <cstdint>

#include "apps/bench/bench_report.h"
#include "apps/shared/model_source.h"
#include "ops/op_table.h"

namespace dsv4::apps {

// Compares a short prefill op by op, with shared inputs (diag/compare_check.h), and the logits of decode
// steps of two sequences of `depth` random rows (kv/random_rows.h). Internal error when an op or the logits
// are past their bounds.
Result<BenchCheck> CheckAgainstReference(const ModelSource& source, const ModelFlags& flags,
                                         const ops::Backend& backend, int64_t depth);

}  // namespace dsv4::apps
