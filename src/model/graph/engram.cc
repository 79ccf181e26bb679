// Rows of n-gram tables in a pass.
#include "model/graph/engram.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dsv4::model {
namespace {

// A token's rows of one table; `which` counts the tokens of all tables.
void EngramWords(const PassPlan& plan, const PassArrays::Of& of, std::vector<int32_t>* out) {
  const std::vector<int32_t>& words = plan.engram_words[static_cast<size_t>(of.which / plan.num_tokens)];
  const auto count = std::ssize(words) / plan.num_tokens;
  const auto begin = words.begin() + of.which % plan.num_tokens * count;
  out->assign(begin, begin + count);
}

// The values of this layer's rows for the tokens whose streams are here, [n, row_dim] of `rows`, in the backend's memory.
Status BringRows(const LayerStep& step, const TensorView& rows) {
  ops::OpContext& context = *step.context().backend.context;
  const EngramLookup& lookup = *step.context().engram;
  const int place = step.layer_plan().engram;
  const int table = place - lookup.first_table;
  const PassPlan& plan = step.plan();
  const Range here = step.context().own_rows();
  if (plan.engram_words.empty()) {
    std::vector<std::byte> values(static_cast<size_t>(rows.num_bytes()));
    const int64_t each = lookup.hash.rows_per_token();
    const auto wanted =
        std::span(plan.engram_rows[static_cast<size_t>(place)])
            .subspan(static_cast<size_t>(here.begin * each), static_cast<size_t>(here.size() * each));
    DSV4_RETURN_IF_ERROR(lookup.tables->Read(table, wanted, context.threads(), step.dtype(), values));
    return context.memory().CopyFromHost(rows.data, values.data(), values.size(), context.stream());
  }
  for (int64_t i = 0; i < here.size(); ++i) {
    const std::span<const int32_t> words = step.Make(EngramWords, table * plan.num_tokens + here.begin + i);
    DSV4_RETURN_IF_ERROR(context.memory().CopyFromHost(rows.Rows(i, i + 1).data, words.data(),
                                                       words.size_bytes(), context.stream()));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<EngramLookup>> MakeEngramLookup(const ModelConfig& config, const ModelWeights& weights,
                                                       std::span<const int32_t> classes) {
  const int32_t num_classes = classes.empty() ? 0 : *std::ranges::max_element(classes) + 1;
  DSV4_ASSIGN_OR_RETURN(
      EngramHash hash,
      EngramHash::Create(*config.engram, std::vector<int32_t>(classes.begin(), classes.end()), num_classes));
  std::vector<EngramTable> tables;
  int first_table = 0;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    if (!weights.layers[i].engram.has_value()) continue;
    const LayerPlan& plan = config.layers[static_cast<size_t>(weights.place.layers.begin) + i];
    if (tables.empty()) first_table = plan.engram;
    tables.push_back({.name = fmt::format("layers.{}.engram.embed", plan.number),
                      .rows = weights.layers[i].engram->table});
  }
  const auto num_tables = static_cast<int>(tables.size());
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<EngramTables> reader,
                        EngramTables::Create(weights.checkpoint, std::move(tables)));
  return std::make_unique<EngramLookup>(
      EngramLookup{std::move(hash), std::move(reader), first_table, num_tables});
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
    lookup.tables->Ask(table, plan.engram_rows[static_cast<size_t>(lookup.first_table + table)]);
  return {};
}

Status ReadEngram(const EngramLookup& lookup, ThreadPool& threads, DType dtype, PassPlan& plan) {
  plan.engram_words.resize(static_cast<size_t>(lookup.num_tables));
  for (int table = 0; table < lookup.num_tables; ++table) {
    const std::vector<int64_t>& rows = plan.engram_rows[static_cast<size_t>(lookup.first_table + table)];
    std::vector<int32_t>& words = plan.engram_words[static_cast<size_t>(table)];
    words.resize(rows.size() * static_cast<size_t>(lookup.tables->width() * ElementBytes(dtype)) /
                 sizeof(int32_t));
    DSV4_RETURN_IF_ERROR(
        lookup.tables->Read(table, rows, threads, dtype, std::as_writable_bytes(std::span(words))));
  }
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
  if (!step.policy().sizes_only) DSV4_RETURN_IF_ERROR(BringRows(step, rows));
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
