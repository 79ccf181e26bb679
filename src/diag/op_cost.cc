// Bytes and multiply-adds that a call of each op cannot avoid.
#include "diag/op_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/text.h"

namespace dsv4::diag {
namespace {

double Number(int64_t value) { return static_cast<double>(value); }

Result<std::vector<int32_t>> ToHost(ops::OpContext& context, const TensorView& indices) {
  std::vector<int32_t> values(static_cast<size_t>(indices.num_elements()));
  DSV4_TRY(context.memory().CopyToHost(values.data(), indices.data, values.size() * sizeof(int32_t),
                                       context.stream()));
  return values;
}

// The mixing matrices of hyper-connections are F32 tensors, not weights.
OpCost MixCost(const TensorView& fn, const TensorView& streams) {
  const int64_t num_tokens = streams.shape[0];
  return {.weight_bytes = Number(fn.num_bytes()), .multiply_adds = Number(num_tokens * fn.num_elements())};
}

int64_t ExpertElements(const ops::ExpertWeights& expert) {
  return expert.w1.rows * expert.w1.cols + expert.w2.rows * expert.w2.cols + expert.w3.rows * expert.w3.cols;
}

// Rows of the window and entries that the query at `position` sees.
int64_t VisibleWindow(int64_t position, int64_t window_size) { return std::min(position + 1, window_size); }

// Cost of attention to the entries that lie on one shard.
template <typename Args>
Result<OpCost> AttentionCost(ops::OpContext& context, const Args& args, const EntryShard& shard) {
  const int64_t num_heads = args.q.shape[1];
  const int64_t head_dim = args.q.shape[2];
  std::vector<int32_t> selected;
  if (!args.selected.is_null()) {
    DSV4_ASSIGN_OR_RETURN(selected, ToHost(context, args.selected));
  }
  int64_t rows_read = 0;
  int64_t rows_met = 0;  // By all queries together.
  for (const ops::AttentionSequence& sequence : args.sequences) {
    const int64_t end = sequence.first_position + sequence.num_tokens;
    if (args.window_size > 0) rows_read += std::min(end, args.window_size - 1 + sequence.num_tokens);
    std::unordered_set<int32_t> entries;
    for (int64_t t = 0; t < sequence.num_tokens; ++t) {
      const int64_t position = sequence.first_position + t;
      rows_met += VisibleWindow(position, args.window_size);
      if (args.ratio == 0) continue;
      if (args.selected.is_null()) {
        rows_met += shard.NumRows((position + 1) / args.ratio);
        continue;
      }
      const int64_t top_k = args.selected.shape[1];
      for (int64_t k = 0; k < top_k; ++k) {
        const int32_t entry = selected[static_cast<size_t>((sequence.token_begin + t) * top_k + k)];
        if (entry < 0 || !shard.Has(entry)) continue;
        entries.insert(entry);
        ++rows_met;
      }
    }
    if (args.ratio > 0) {
      rows_read +=
          args.selected.is_null() ? shard.NumRows(end / args.ratio) : static_cast<int64_t>(entries.size());
    }
  }
  return OpCost{.cache_bytes = Number(rows_read * head_dim * ElementBytes(args.q.dtype)),
                .multiply_adds = Number(2 * rows_met * num_heads * head_dim)};
}

// Cost of the keys that lie on one shard.
template <typename Args>
OpCost IndexerCost(const Args& args, int64_t top_k, const EntryShard& shard) {
  const int64_t num_heads = args.q.shape[1];
  const int64_t width = args.q.shape[2];
  int64_t keys_read = 0;
  int64_t keys_met = 0;
  for (const ops::IndexerSequence& sequence : args.sequences) {
    int64_t most = 0;
    for (int64_t t = 0; t < sequence.num_tokens; ++t) {
      const int64_t visible = (sequence.first_position + t + 1) / args.ratio;
      if (visible <= top_k) continue;  // All are chosen without a look.
      keys_met += shard.NumRows(visible);
      most = std::max(most, shard.NumRows(visible));
    }
    keys_read += most;
  }
  return {.cache_bytes = Number(keys_read * width * ElementBytes(args.q.dtype)),
          .multiply_adds = Number(keys_met * num_heads * width)};
}

// Cost of experts with the ids from first_expert on; assignments of others cost nothing here.
Result<OpCost> ExpertsCost(ops::OpContext& context, const TensorView& indices,
                           std::span<const ops::ExpertWeights> experts, int64_t first_expert) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> chosen, ToHost(context, indices));
  OpCost cost;
  std::vector<bool> read(experts.size(), false);
  for (const int32_t index : chosen) {
    const int64_t here = index - first_expert;
    if (here < 0 || here >= static_cast<int64_t>(experts.size())) continue;
    const auto e = static_cast<size_t>(here);
    const ops::ExpertWeights& expert = experts[e];
    cost.multiply_adds += Number(ExpertElements(expert));
    if (read[e]) continue;
    read[e] = true;
    cost.weight_bytes += Number(StoredBytes(expert.w1) + StoredBytes(expert.w2) + StoredBytes(expert.w3));
  }
  return cost;
}

}  // namespace

OpCost& OpCost::operator+=(const OpCost& other) {
  weight_bytes += other.weight_bytes;
  cache_bytes += other.cache_bytes;
  multiply_adds += other.multiply_adds;
  return *this;
}

OpCost OpCost::operator*(double factor) const {
  return {.weight_bytes = weight_bytes * factor,
          .cache_bytes = cache_bytes * factor,
          .multiply_adds = multiply_adds * factor};
}

int64_t StoredBytes(const Weight& weight) {
  return weight.data.num_bytes() + (weight.scale.is_null() ? 0 : weight.scale.num_bytes());
}

OpCost GemmCost(const Weight& weight, int64_t num_rows) {
  return {.weight_bytes = Number(StoredBytes(weight)),
          .multiply_adds = Number(num_rows * weight.rows * weight.cols)};
}

Result<OpCost> CostOf(ops::OpContext&, const ops::EmbedArgs& args) {
  const int64_t num_tokens = args.token_ids.shape[0];
  return OpCost{.weight_bytes = Number(num_tokens * args.table.shape[1] * ElementBytes(args.table.dtype))};
}

Result<OpCost> CostOf(ops::OpContext&, const ops::HcPreArgs& args) { return MixCost(args.fn, args.streams); }
Result<OpCost> CostOf(ops::OpContext&, const ops::HcHeadArgs& args) { return MixCost(args.fn, args.streams); }

Result<OpCost> CostOf(ops::OpContext& context, const ops::RoutedExpertsArgs& args) {
  return ExpertsCost(context, args.indices, args.experts, 0);
}
Result<OpCost> CostOf(ops::OpContext& context, const ops::ExpertTermsArgs& args) {
  return ExpertsCost(context, args.indices, args.experts, args.first_expert);
}

Result<OpCost> CostOf(ops::OpContext& context, const ops::AttentionArgs& args) {
  return AttentionCost(context, args, {});
}
Result<OpCost> CostOf(ops::OpContext& context, const ops::AttentionPartArgs& args) {
  return AttentionCost(context, args, args.shard);
}
Result<OpCost> CostOf(ops::OpContext&, const ops::IndexerSelectArgs& args) {
  return IndexerCost(args, args.selected.shape[1], {});
}
Result<OpCost> CostOf(ops::OpContext&, const ops::IndexerCandidatesArgs& args) {
  return IndexerCost(args, args.candidates.shape[1], args.shard);
}
Result<OpCost> CostOf(ops::OpContext&, const ops::GatherRowsArgs& args) {
  return OpCost{.cache_bytes = Number(args.rows.num_bytes())};
}

Result<OpCost> CostOf(ops::OpContext&, const ops::CompressorPoolArgs& args) {
  const int64_t blocks = args.overlap ? 2 : 1;
  int64_t rows = 0;
  for (const ops::CompressorSequence& sequence : args.sequences) {
    const int64_t completed =
        ops::NumCompletedEntries(sequence.first_position, sequence.num_tokens, args.ratio);
    if (completed == 0) continue;
    // Rows of earlier tokens from the first block that is pooled on.
    const int64_t first_entry = sequence.first_position / args.ratio;
    const int64_t first_row = std::max<int64_t>(0, first_entry - (blocks - 1)) * args.ratio;
    rows += sequence.first_position - first_row;
  }
  return OpCost{.cache_bytes = Number(2 * rows * args.values.shape[1] * ElementBytes(DType::kF32))};
}

void CallDetail::Add(const std::string& part) {
  if (!text_.empty()) text_ += ", ";
  text_ += part;
}

void CallDetail::AddWeight(const Weight& weight) {
  const std::string name = weight.format == WeightFormat::kPlain
                               ? std::string(DTypeName(weight.data.dtype))
                               : std::string(WeightFormatName(weight.format));
  Add(fmt::format("{} [{}, {}]", name, weight.rows, weight.cols));
}

void CallDetail::AddExperts(std::span<const ops::ExpertWeights> experts) {
  if (experts.empty()) return;
  AddWeight(experts.front().w1);
  Add(Counted(experts.size(), "expert"));
}

void CallDetail::AddRatio(int64_t ratio) { Add(ratio == 0 ? "window" : fmt::format("ratio {}", ratio)); }

void CallDetail::AddShard(const EntryShard& shard) {
  if (shard.count > 1) Add(fmt::format("entries of shard {}", shard.index));
}

}  // namespace dsv4::diag
