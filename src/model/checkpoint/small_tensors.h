// Loading of what is no linear layer: vectors (norms, hyper-connections, sinks, biases) and tables of expert
// ids.
#pragma once

#include <vector>

#include "base/status.h"
#include "io/checkpoint.h"
#include "model/config/config.h"
#include "tensor/tensor.h"

namespace dsv4::model {

// The tensor as contiguous F32 of `shape`, which its element count must match. It is the file's bytes where
// they are aligned F32 already, else a copy, which `copies` then owns. DataLoss names an element that is NaN.
Result<TensorView> LoadVector(const io::StoredTensor& tensor, Shape shape, std::vector<Buffer>& copies);

// tid2eid as I32 [vocab_size, num_experts_per_tok], owned by `copies`. DataLoss names an id that is no
// expert's.
Result<TensorView> LoadExpertIds(const io::StoredTensor& tensor, const ModelConfig& config,
                                 std::vector<Buffer>& copies);

}  // namespace dsv4::model
