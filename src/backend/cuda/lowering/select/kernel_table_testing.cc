// List of every op's kernel rules, from which the page of kernels and --explain are made.
#include "backend/cuda/lowering/select/kernel_table_testing.h"

#include <fmt/format.h>

#include <string_view>

#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/lowering/select/hyper_connection.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/lowering/select/linear.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/lowering/select/sampling.h"

namespace dsv4::backend::cuda {

std::vector<KernelRow> KernelTable() {
  std::vector<KernelRow> table;
  const auto add = [&](const char* op, auto rules) {
    for (const auto& rule : rules) table.push_back({op, rule.file, rule.when, rule.kind});
  };
  add("linear, grouped_linear", LinearRules());
  add("routed_experts, expert_terms", ExpertsRules());
  add("attention", AttentionRules());
  add("attention_part", AttentionPartRules());
  add("indexer_select", IndexerRules());
  add("indexer_select: top-k", TopKRules());
  add("hc_pre", HcPreRules());
  add("hc_pre, hc_head: dot products", HcDotsRules());
  add("hc_pre: mix", HcMixRules());
  add("hc_post", HcPostRules());
  add("head_rms_norm", HeadNormRules());
  add("rope", RopeRules());
  add("scale", ScaleRules());
  add("compressor_pool", PoolRules());
  add("store_rows", StoreRules());
  add("steps on rows", RowsRules());
  add("hadamard_fp4 without rotation", RoundRules());
  add("swiglu", SwigluRules());
  add("moe_combine", MoeCombineRules());
  add("sample", SampleRules());
  return table;
}

std::string KernelTableMarkdown() {
  std::string text = "| Op | Kernel | When |\n|---|---|---|\n";
  std::string_view before;
  for (const KernelRow& row : KernelTable()) {
    text += fmt::format("| {} | `{}` | {} |\n", row.op == before ? "" : row.op, row.file, row.when);
    before = row.op;
  }
  return text;
}

}  // namespace dsv4::backend::cuda
