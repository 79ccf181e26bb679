// ngram: are the rows that layers with an n-gram table (Engram) mix in those of the tokens' n-grams? Rows are found anew here, from the ids of
// the whole text by the release's formula, and read from the file one by one. The graph finds them by chunks, from a sequence's history.
#pragma once

#include <cstdint>
#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

// In one pass and token by token. A finding for a row that is not the formula's, and for tables of which most rows that are read are zero.
// Not applicable to a model without tables. `weights`: the same checkpoint's, with all layers that run. Errors: those of Model::Step.
Result<CheckReport> CheckNgramRows(const Subject& subject, std::span<const int32_t> tokens,
                                   const model::ModelWeights& weights);

}  // namespace dsv4::diag
