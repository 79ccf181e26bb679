// Faults that only a tensor's stored bytes show: values that are no numbers, wherever they lie, and matrices that repeat another's.
#pragma once

#include <vector>

#include "diag/checks/tensors/holes.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

// NaN and infinities in the tensors that `weights` reads. Past 1 GiB of a tensor, 4 of every 64 KiB are looked at.
std::vector<Hole> LookForNonNumbers(const model::ModelWeights& weights,
                                    const model::ResolvedCheckpoint& resolved);

// Matrices, tables and vectors whose bytes are those of another one, as a merge leaves that takes the wrong layer. Embeddings and heads may be
// alike. 64 MiB of a pair are compared.
std::vector<Hole> LookForCopies(const model::ModelWeights& weights,
                                const model::ResolvedCheckpoint& resolved);

}  // namespace dsv4::diag
