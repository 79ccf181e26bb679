// decode-prefill: the same positions computed by one prefill, in chunks, and token by token must be the same
// numbers. Names the first layer and tensor where they are not. Field lesson A5.
#pragma once

#include <cstdint>
#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

struct DecodePrefillOptions {
  int64_t chunk = 7;       // Chunk of the chunked run; a number that divides no block shows the most.
  double tolerance = 0.0;  // Relative error of a row (statistics.h) that still passes; 0: bit for bit.
};

// NotApplicable for a single token. Errors: the model's.
Result<CheckReport> CheckDecodePrefill(const Subject& subject, std::span<const int32_t> tokens,
                                       const DecodePrefillOptions& options);

}  // namespace dsv4::diag
