// Common phrases of a pass: linear, norm, rotation, and stores of rows.
#include "model/graph/step_context.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/check.h"

namespace dsv4::model {

const PassEntries& PassPlan::EntriesOf(int64_t ratio) const {
  for (const PassEntries& planned : entries) {
    if (planned.ratio == ratio) return planned;
  }
  DSV4_CHECK(false) << "ratio " << ratio << " was not planned";
  std::abort();
}

Status LayerStep::WithPlace(std::string_view name, const Status& status) const {
  return status.WithContext(layer_.is_layer() ? fmt::format("layer {}, {}", layer_.number, name)
                                              : std::string(name));
}

Status LayerStep::Clear(const TensorView& tensor) const {
  const std::vector<std::byte> zeros(static_cast<size_t>(tensor.num_bytes()));
  ops::OpContext& context = *context_.backend.context;
  return context.memory().CopyFromHost(tensor.data, zeros.data(), zeros.size(), context.stream());
}

Result<TensorView> LayerStep::Linear(std::string_view name, const TensorView& x, const Weight& weight,
                                     DType out) const {
  DSV4_ASSIGN_OR_RETURN(const TensorView y, NewTensor(out, {x.shape[0], weight.rows}));
  if (weight.rows == 0) return y;  // Another shard has them all.
  DSV4_TRY(Run(name, ops().linear, {.x = x, .weight = &weight, .y = y}));
  Observe(name, y);
  return y;
}

Status LayerStep::RmsNorm(std::string_view name, const TensorView& x, const TensorView& weight) const {
  const auto eps = static_cast<float>(config().rms_norm_eps);
  DSV4_RETURN_IF_ERROR(Run(name, ops().rms_norm, {.x = x, .weight = weight, .y = x, .eps = eps}));
  Observe(name, x);
  return {};
}

Status LayerStep::Rope(std::string_view name, const TensorView& x, const TensorView& positions,
                       bool inverse) const {
  const TensorView& frequencies =
      layer_plan().rope == RopeKind::kCompressed ? context_.rope.compress : context_.rope.plain;
  return Run(name, ops().rope,
             {.x = x, .positions = positions, .frequencies = frequencies, .inverse = inverse});
}

Status LayerStep::StoreRows(std::string_view name, const TensorView& source,
                            std::span<const RowRun> runs) const {
  return Run(name, ops().store_rows, {.source = source, .runs = runs});
}

Status LayerStep::StoreCacheRows(std::string_view name, const TensorView& source,
                                 std::span<const RowRun> runs, const CacheFormat& format) const {
  if (!format.packed()) return StoreRows(name, source, runs);
  return Run(name, ops().store_rows, {.source = source, .runs = runs, .pack = format});
}

}  // namespace dsv4::model
