// Recording: an observer that keeps the tensors of a run as fp32 on the host, in the order of the graph.
//
// It is made for runs of ONE sequence. The rows of later passes go behind those of earlier ones, however the
// tokens were cut. Row i of a token-wise tensor is position i of the run. Row j of an entry-wise tensor (the
// compressors') is the run's j-th entry. Integers up to 2^24 are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/graph/observer.h"
#include "ops/op_context.h"
#include "tensor/rows.h"

namespace dsv4::diag {

struct RecordedTensor {
  int layer = -1;
  std::string name;
  DType dtype = DType::kF32;      // As the model computed it.
  std::vector<int64_t> row_dims;  // One row's.
  int64_t width = 1;              // Their product.
  int64_t num_rows = 0;
  std::vector<float> values;  // [num_rows, width]

  std::span<const float> Row(int64_t row) const {
    return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
  }
  bool exact() const { return dtype == DType::kI32; }  // Choices, not measurements.
};

class Recording final : public model::Observer {
 public:
  // Which tensors to keep; empty: all.
  using Filter = std::function<bool(int layer, std::string_view name)>;
  // `context` of the backend the model runs on; outlives this object.
  explicit Recording(ops::OpContext& context, Filter filter = {});

  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override;

  // The first thing that went wrong while copying.
  const Status& status() const { return status_; }
  // In order of first appearance.
  const std::vector<RecordedTensor>& tensors() const { return tensors_; }
  // Null when it was not observed.
  const RecordedTensor* Find(int layer, std::string_view name) const;

 private:
  ops::OpContext* context_;
  Filter filter_;
  Status status_;
  std::vector<RecordedTensor> tensors_;
  std::map<std::pair<int, std::string>, size_t, std::less<>> index_;
};

// The bytes of a contiguous tensor, on the host.
Result<std::vector<std::byte>> ToHostBytes(ops::OpContext& context, const TensorView& tensor);
// The elements of a contiguous tensor of dtype F32, F16, BF16 or I32 as fp32 on the host. Unimplemented for
// another dtype.
Result<std::vector<float>> ToHostFloats(ops::OpContext& context, const TensorView& tensor);
// Rows [0, count) of paged rows, which lie on `device`, one behind the other.
Result<std::vector<float>> ReadPagedRows(ops::OpContext& context, const PagedRows& rows, int64_t count,
                                         Device device);
// ToHostFloats backwards, rounding to nearest; F32, BF16 and I32. InvalidArgument for values
// that I32 cannot hold.
Status FromHostFloats(ops::OpContext& context, std::span<const float> values, const TensorView& tensor);

}  // namespace dsv4::diag
