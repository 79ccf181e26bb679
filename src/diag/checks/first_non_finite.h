// FirstNonFinite: an observer that notes where a run's numbers first are NaN or infinite.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "diag/report/report.h"
#include "model/graph/observer.h"
#include "model/runtime/model.h"
#include "ops/op_context.h"

namespace dsv4::diag {

class FirstNonFinite final : public model::Observer {
 public:
  // `context` of the backend the model runs on; outlives this object. For runs of one sequence.
  explicit FirstNonFinite(ops::OpContext& context) : context_(context) {}

  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override;

  // Absent while everything is finite.
  const std::optional<Location>& location() const { return location_; }
  // The first thing that went wrong while copying.
  const Status& status() const { return status_; }

 private:
  ops::OpContext& context_;
  std::vector<float> positions_;  // The pass's.
  std::optional<Location> location_;
  Status status_;
};

// Computes `tokens` of a new sequence in one step and says where it goes wrong: "layer 2, ffn.routed (op
// routed_experts), position 3". Empty when all that is computed is finite.
Result<std::string> WhereNotFinite(model::Model& model, ops::OpContext& context,
                                   std::span<const int32_t> tokens);

}  // namespace dsv4::diag
