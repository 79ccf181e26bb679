// TensorSource: the other side of a comparison. It hands out the tensors of a run piece by piece. Two runs of
// a large model are thereby compared without keeping either in memory.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::diag {

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Names are those of model/graph/observer.h; layer -1 lies outside of the layers.
  virtual bool Has(int layer, std::string_view name) const = 0;

  // Rows [first_row, first_row + num_rows) as fp32, [num_rows, width]. Asked in the order of the graph, every
  // row once, and only of tensors it has. InvalidArgument when the other run has fewer rows, or rows of
  // another size; errors of the run.
  virtual Result<std::vector<float>> Rows(int layer, std::string_view name, int64_t first_row,
                                          int64_t num_rows, int64_t width) = 0;

  // Whether the run rounded to bf16: then its numbers are no nearer than that.
  virtual bool rounds_to_bf16() const = 0;
};

}  // namespace dsv4::diag
