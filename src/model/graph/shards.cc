// Gathers, scatters and sums of rows and columns between the shards of a stage.
#include "model/graph/shards.h"

#include "model/graph/step_context.h"

namespace dsv4::model {
namespace {

// Bytes of a sum up to which every shard adds up everything: one wait instead of two.
constexpr int64_t kMaxSummedByAll = int64_t{512} << 10;

std::vector<int64_t> RowBytes(const ColumnSplit& split, DType dtype, int num_shards) {
  std::vector<int64_t> row_bytes;
  for (int shard = 0; shard < num_shards; ++shard)
    row_bytes.push_back(split.Of(shard).size() * ElementBytes(dtype));
  return row_bytes;
}

// Every shard adds up its rows of num_rows, and rounds them.
Status SumOwnRows(const LayerStep& step, std::string_view name, const TensorView& part,
                  std::span<const int64_t> num_rows, const TensorView& y) {
  const Arena::Scope scope(step.context().arena);
  std::vector<int64_t> counts;
  for (const int64_t rows : num_rows) counts.push_back(rows * part.shape[1]);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView sum, step.NewTensor(DType::kF32, y.shape));
  DSV4_RETURN_IF_ERROR(step.context().shards.group->ReduceScatterSum(
      {part.as<const float>(), static_cast<size_t>(part.num_elements())}, counts,
      {sum.as<float>(), static_cast<size_t>(sum.num_elements())}));
  return step.Run(name, step.ops().moe_combine, {.routed = sum, .shared = {}, .y = y});
}

// Many numbers: every shard adds up some rows, and all get what is rounded.
Status SumInPieces(const LayerStep& step, std::string_view name, const TensorView& part,
                   const TensorView& y) {
  const Arena::Scope scope(step.context().arena);
  comm::Communicator& group = *step.context().shards.group;
  const std::vector<int64_t> num_rows = EvenRows(part.shape[0], group.size());
  std::vector<int64_t> piece_bytes;
  for (const int64_t rows : num_rows) piece_bytes.push_back(rows * part.shape[1] * ElementBytes(y.dtype));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const TensorView mine,
      step.NewTensor(y.dtype, {num_rows[static_cast<size_t>(group.rank())], part.shape[1]}));
  DSV4_RETURN_IF_ERROR(SumOwnRows(step, name, part, num_rows, mine));
  return group.AllGather(Bytes(mine), 1, piece_bytes, Bytes(y));
}

}  // namespace

Result<TensorView> GatherColumns(const LayerStep& step, std::string_view name, const TensorView& mine,
                                 const ColumnSplit& split) {
  const Shards& shards = step.context().shards;
  if (shards.alone()) return mine;
  DSV4_ASSIGN_OR_RETURN(const TensorView all, step.NewTensor(mine.dtype, {mine.shape[0], split.total()}));
  DSV4_TRY(shards.group->AllGather(Bytes(mine), mine.shape[0],
                                   RowBytes(split, mine.dtype, shards.group->size()), Bytes(all)));
  step.Observe(name, all);
  return all;
}

Result<TensorView> GatherRows(const LayerStep& step, const TensorView& mine,
                              std::span<const int64_t> num_rows) {
  int64_t total = 0;
  std::vector<int64_t> piece_bytes;
  for (const int64_t rows : num_rows) {
    total += rows;
    piece_bytes.push_back(rows * mine.shape[1] * ElementBytes(mine.dtype));
  }
  DSV4_ASSIGN_OR_RETURN(const TensorView all, step.NewTensor(mine.dtype, {total, mine.shape[1]}));
  DSV4_TRY(step.context().shards.group->AllGather(Bytes(mine), 1, piece_bytes, Bytes(all)));
  return all;
}

Status ScatterColumns(const LayerStep& step, const TensorView& all, const ColumnSplit& split,
                      const TensorView& parts) {
  comm::Communicator& group = *step.context().shards.group;
  return group.AllToAll(Bytes(all), all.shape[0], RowBytes(split, all.dtype, group.size()), Bytes(parts));
}

Result<TensorView> PartOfSum(const LayerStep& step, std::string_view name, const TensorView& x,
                             const Weight& weight, int64_t width) {
  DSV4_ASSIGN_OR_RETURN(const TensorView part, step.NewTensor(DType::kF32, {x.shape[0], width}));
  if (weight.rows > 0) {
    DSV4_TRY(step.Run(name, step.ops().linear, {.x = x, .weight = &weight, .y = part}));
  } else {
    DSV4_TRY(step.Clear(part));
  }
  return part;
}

Status SumShards(const LayerStep& step, std::string_view name, const TensorView& part, const TensorView& y) {
  const StepContext& context = step.context();
  if (context.divide_streams()) {
    DSV4_RETURN_IF_ERROR(SumOwnRows(step, name, part, context.stream_rows, y));
  } else if (part.num_bytes() > kMaxSummedByAll) {
    DSV4_RETURN_IF_ERROR(SumInPieces(step, name, part, y));
  } else {
    DSV4_RETURN_IF_ERROR(
        context.shards.group->AllReduceSum({part.as<float>(), static_cast<size_t>(part.num_elements())}));
    DSV4_RETURN_IF_ERROR(step.Run(name, step.ops().moe_combine, {.routed = part, .shared = {}, .y = y}));
  }
  step.Observe(name, y);
  return {};
}

}  // namespace dsv4::model
