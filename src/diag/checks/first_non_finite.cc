// Observer that keeps the first tensor of a run with NaN or infinity.
#include "diag/checks/first_non_finite.h"

#include <fmt/format.h>

#include "diag/recording.h"
#include "diag/statistics.h"
#include "diag/subject.h"

namespace dsv4::diag {

void FirstNonFinite::OnTensor(int layer, std::string_view name, const TensorView& tensor) {
  if (location_ || !status_.ok() || (tensor.dtype == DType::kI32 && name != "pass.positions")) return;
  Result<std::vector<float>> values = ToHostFloats(context_, tensor);
  if (!values) {
    status_ = values.error().WithContext(fmt::format("layer {}, {}", layer, name));
    return;
  }
  if (name == "pass.positions") {
    positions_ = std::move(*values);
    return;
  }
  const int64_t num_rows = tensor.shape[0];
  const int64_t width = num_rows == 0 ? 0 : tensor.num_elements() / num_rows;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (AllFinite(std::span(*values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width)))) {
      continue;
    }
    // Entries of compressors are fewer than tokens: then the pass's first position has to do.
    const bool by_token = num_rows == static_cast<int64_t>(positions_.size());
    const size_t at = by_token ? static_cast<size_t>(row) : 0;
    location_ = Location{.layer = layer,
                         .tensor = std::string(name),
                         .op = std::string(OpBehind(name)),
                         .position = at < positions_.size() ? static_cast<int64_t>(positions_[at]) : row};
    return;
  }
}

Result<std::string> WhereNotFinite(model::Model& model, ops::OpContext& context,
                                   std::span<const int32_t> tokens) {
  FirstNonFinite first(context);
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, model.NewSequence());
  const model::SequenceChunk chunk = {.state = &state, .tokens = tokens, .logits = model::LogitsRows::kAll};
  DSV4_ASSIGN_OR_RETURN(const model::StepOutput output, model.Step(std::span(&chunk, 1), &first));
  static_cast<void>(output);
  DSV4_TRY(first.status());
  return first.location() ? first.location()->ToString() : std::string();
}

}  // namespace dsv4::diag
