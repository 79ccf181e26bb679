// Rows of n-gram tables in a pass.
#include "model/graph/engram.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dsv4::model {

Result<std::unique_ptr<EngramLookup>> MakeEngramLookup(const ModelConfig& config, const ModelWeights& weights,
                                                       std::span<const int32_t> classes) {
  const int32_t num_classes = classes.empty() ? 0 : *std::ranges::max_element(classes) + 1;
  DSV4_ASSIGN_OR_RETURN(
      EngramHash hash,
      EngramHash::Create(*config.engram, std::vector<int32_t>(classes.begin(), classes.end()), num_classes));
  std::vector<EngramTable> tables;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    if (!weights.layers[i].engram.has_value()) continue;
    tables.push_back(
        {.name = fmt::format("layers.{}.engram.embed", i), .rows = weights.layers[i].engram->table});
  }
  const auto num_tables = static_cast<int>(tables.size());
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<EngramTables> reader,
                        EngramTables::Create(weights.checkpoint, std::move(tables)));
  return std::make_unique<EngramLookup>(EngramLookup{std::move(hash), std::move(reader), num_tables});
}

Status AskForEngram(EngramLookup& lookup, PassPlan& plan) {
  const EngramHash& hash = lookup.hash;
  plan.engram_rows.assign(static_cast<size_t>(hash.num_tables()),
                          std::vector<int64_t>(static_cast<size_t>(plan.num_tokens * hash.rows_per_token())));
  std::vector<int32_t> before(static_cast<size_t>(hash.look_back()));
  for (const PassSequence& sequence : plan.sequences) {
    const auto ids =
        std::span(plan.tokens)
            .subspan(static_cast<size_t>(sequence.token_begin), static_cast<size_t>(sequence.num_tokens));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int32_t> classes, hash.Classes(ids));
    sequence.state->SetClasses(classes);
    sequence.state->LookBack(before);
    for (int table = 0; table < hash.num_tables(); ++table) {
      const auto rows = std::span(plan.engram_rows[static_cast<size_t>(table)])
                            .subspan(static_cast<size_t>(sequence.token_begin * hash.rows_per_token()),
                                     static_cast<size_t>(sequence.num_tokens * hash.rows_per_token()));
      DSV4_RETURN_IF_ERROR(hash.Rows(table, before, classes, rows));
    }
  }
  for (int table = 0; table < lookup.num_tables; ++table)
    lookup.tables->Ask(table, plan.engram_rows[static_cast<size_t>(table)]);
  return {};
}

Status Engram(const LayerStep& step, const LayerWeights& weights, const TrunkState& state) {
  const EngramWeights& engram = *weights.engram;
  const ModelConfig& config = step.config();
  const int64_t n = state.streams.shape[0];
  if (n == 0) return {};
  const Arena::Scope scope(step.context().arena);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView rows,
                               step.NewTensor(step.dtype(), {n, config.engram->row_dim()}));
  if (!step.policy().sizes_only) {
    ops::OpContext& context = *step.context().backend.context;
    std::vector<std::byte> values(static_cast<size_t>(rows.num_bytes()));
    const int table = step.layer_plan().engram;
    DSV4_RETURN_IF_ERROR(step.context().engram->tables->Read(
        table, step.plan().engram_rows[static_cast<size_t>(table)], context.threads(), step.dtype(), values));
    DSV4_RETURN_IF_ERROR(
        context.memory().CopyFromHost(rows.data, values.data(), values.size(), context.stream()));
  }
  step.Observe("engram.rows", rows);
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView mixed,
                               step.Linear("engram.wkv", rows, engram.wkv, step.dtype()));
  DSV4_RETURN_IF_ERROR(step.Run("engram.streams", step.ops().engram_mix,
                                {.streams = state.streams,
                                 .mixed = mixed,
                                 .q_weight = engram.q_weight,
                                 .k_weight = engram.k_weight,
                                 .is_image = {},
                                 .out = state.streams,
                                 .eps = static_cast<float>(config.rms_norm_eps)}));
  step.Observe("engram.streams", state.streams);
  return {};
}

}  // namespace dsv4::model
