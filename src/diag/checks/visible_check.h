// visible: which keys does each query really attend to? Measured on the attention op itself, not read off its arguments, and
// compared with the rule written out: window positions max(0, p - w + 1) .. p and, of the compressed entries, those
// [0, floor((p + 1) / ratio)) that the indexer chose (all of them without an indexer). Field lessons A2, A4 and A8.
//
// How it is measured: the op's own call is repeated with all queries zero, so that every key it sees weighs the same, and with
// keys (which are also the values) that are one-hot vectors. Element c of the output is then 1 / (N + exp(sink)) if key c was
// seen and 0 if not, where N counts the keys seen: the set, its size and the sink in a few calls.
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

// Runs one prefill of `tokens` (at most one pass of the model, ModelOptions::max_chunk_tokens). The indexer's choice is checked
// as well: its scores computed anew, its best top_k compared with what it chose. Errors: OutOfRange for a layer or position
// that does not exist, the model's.
Result<CheckReport> CheckVisible(const Subject& subject, std::span<const int32_t> tokens,
                                 const VisibleOptions& options);

}  // namespace dsv4::diag
