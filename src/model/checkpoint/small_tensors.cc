// Loaders of vectors as fp32 and of expert-id tables, with range checks.
#include "model/checkpoint/small_tensors.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "formats/weight.h"

namespace dsv4::model {

Result<TensorView> LoadVector(const io::StoredTensor& tensor, Shape shape, std::vector<Buffer>& copies) {
  DSV4_ASSIGN_OR_RETURN(io::AlignedTensor aligned, io::AlignTensor(tensor.bytes, *tensor.dtype, shape));
  if (*tensor.dtype != DType::kF32) {
    // As a matrix of one row, the plain weight knows how to become fp32.
    Weight row;
    row.rows = 1;
    row.cols = shape.num_elements();
    row.data = aligned.view.Reshaped({1, row.cols});
    // `aligned.copy` may hold the source (a misaligned tensor), so it is replaced only after the conversion.
    DSV4_ASSIGN_OR_RETURN(Buffer converted,
                          HostMemory().Allocate(static_cast<size_t>(row.cols) * sizeof(float)));
    DequantizeRow(row, 0, static_cast<float*>(converted.data()));
    aligned.copy = std::move(converted);
    aligned.view = TensorView::Contiguous(aligned.copy.data(), DType::kF32, shape);
  }
  if (aligned.copy) copies.push_back(aligned.copy);
  const float* values = aligned.view.as<const float>();
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    if (std::isnan(values[i])) {
      return Error(DataLoss(fmt::format("tensor {}: element {} is NaN, want numbers", tensor.name, i)));
    }
  }
  return aligned.view;
}

Result<TensorView> LoadExpertIds(const io::StoredTensor& tensor, const ModelConfig& config,
                                 std::vector<Buffer>& copies) {
  const Shape shape = {config.vocab_size, config.num_experts_per_tok};
  const int64_t count = shape.num_elements();
  DSV4_ASSIGN_OR_RETURN(const Buffer ids,
                        HostMemory().Allocate(static_cast<size_t>(count) * sizeof(int32_t)));
  const size_t element_bytes = static_cast<size_t>(ElementBytes(*tensor.dtype));
  for (int64_t i = 0; i < count; ++i) {
    // Little-endian, as the format and every host this builds on; memcpy since the tensor may lie anywhere.
    int64_t id = 0;
    if (*tensor.dtype == DType::kI32) {
      int32_t narrow;
      std::memcpy(&narrow, tensor.bytes.data() + static_cast<size_t>(i) * element_bytes, sizeof(narrow));
      id = narrow;
    } else {
      std::memcpy(&id, tensor.bytes.data() + static_cast<size_t>(i) * element_bytes, sizeof(id));
    }
    if (id < 0 || id >= config.n_routed_experts) {
      return Error(DataLoss(fmt::format("tensor {}: token {} names expert {}, wanted 0 to {}", tensor.name,
                                        i / config.num_experts_per_tok, id, config.n_routed_experts - 1)));
    }
    static_cast<int32_t*>(ids.data())[i] = static_cast<int32_t>(id);
  }
  copies.push_back(ids);
  return TensorView::Contiguous(ids.data(), DType::kI32, shape);
}

}  // namespace dsv4::model
