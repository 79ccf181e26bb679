// visible: which keys does each query really attend to? It is measured on the attention op itself, not read
// off its arguments, and compared with the rule written out. The rule: window positions max(0, p - w + 1) ..
// p, and of the compressed entries [0, floor((p + 1) / ratio)) those that the indexer chose. Without an
// indexer it is all of them. Field lessons A2, A4 and A8.
//
// The op's own call is repeated with all queries zero, so that every key it sees weighs the same. The keys,
// which are also the values, are one-hot vectors. Element c of the output is then 1 / (N + exp(sink)) if key
// c was seen and 0 if not, where N counts the keys seen. A few calls tell the set, its size and the sink.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

struct VisibleOptions {
  std::optional<int> layer;         // Checked and shown; all without it.
  std::optional<int64_t> position;  // Shown; the last without it. All positions are checked in any case.
};

// Runs one prefill of `tokens` (at most one pass of the model, ModelOptions::max_chunk_tokens). The indexer's
// choice is checked as well: its scores computed anew, its best top_k compared with what it chose. Errors:
// OutOfRange for a layer or position that does not exist, the model's.
Result<CheckReport> CheckVisible(const Subject& subject, std::span<const int32_t> tokens,
                                 const VisibleOptions& options);

}  // namespace dsv4::diag
