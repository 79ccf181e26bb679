// Unavoidable cost of an op: the bytes of weights and cached rows it has to read once, and its multiply-adds.
// Divided by what the machine can do they bound its time from below. Activations are not counted: they are
// small, or stay in the caches.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "ops/op_table.h"

namespace dsv4::diag {

struct OpCost {
  double weight_bytes = 0;   // As stored; of experts those that at least one token chose, once.
  double cache_bytes = 0;    // Distinct rows of rings and pages that the op has to look at.
  double multiply_adds = 0;  // Multiply-adds of GEMMs, attention, index scores and mixing matrices.

  OpCost& operator+=(const OpCost& other);
  OpCost operator*(double factor) const;
  double bytes() const { return weight_bytes + cache_bytes; }
};

// Bytes that a weight occupies as it is stored or prepared.
int64_t StoredBytes(const Weight& weight);
// Cost of a GEMM of `num_rows` activations.
OpCost GemmCost(const Weight& weight, int64_t num_rows);

// The parts of DetailOf, joined by commas.
class CallDetail {
 public:
  void AddWeight(const Weight& weight);
  void AddExperts(std::span<const ops::ExpertWeights> experts);
  void AddRatio(int64_t ratio);
  void AddShard(const EntryShard& shard);
  const std::string& text() const { return text_; }

 private:
  void Add(const std::string& part);
  std::string text_;
};

// The cost of one call, by its arguments, before the call or after it. RoutedExperts, ExpertTerms, Attention
// and AttentionPart need indices that have been computed. Errors are those of reading these back from the
// device.
Result<OpCost> CostOf(ops::OpContext& context, const ops::EmbedArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::HcPreArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::HcHeadArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::RoutedExpertsArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::ExpertTermsArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::AttentionArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::AttentionPartArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::IndexerSelectArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::IndexerCandidatesArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::GatherRowsArgs& args);
Result<OpCost> CostOf(ops::OpContext& context, const ops::CompressorPoolArgs& args);
// Every other op by its operands: each weight is read once, and multiplied by each row of the first tensor.
// Without a weight, nothing: activations, small vectors and rows of tables.
template <typename Args>
Result<OpCost> CostOf(ops::OpContext&, const Args& args) {
  OpCost cost;
  int64_t num_rows = -1;
  ops::VisitOperands(args, [&](const auto& operand) {
    using Operand = std::remove_cvref_t<decltype(operand)>;
    if constexpr (std::is_same_v<Operand, TensorView>) {
      if (num_rows < 0 && operand.shape.rank() > 0) num_rows = operand.shape[0];
    } else if constexpr (std::is_same_v<Operand, const Weight*>) {
      cost += GemmCost(*operand, num_rows);
    }
  });
  return cost;
}

// Detail that tells the calls of one op apart: "nvfp4 [16384, 512]", "ratio 4". Empty where there is nothing
// to tell.
template <typename Args>
std::string DetailOf(const Args& args) {
  CallDetail detail;
  ops::VisitOperands(args, [&](const auto& operand) {
    using Operand = std::remove_cvref_t<decltype(operand)>;
    if constexpr (std::is_same_v<Operand, const Weight*>) detail.AddWeight(*operand);
    if constexpr (std::is_same_v<Operand, std::span<const ops::ExpertWeights>>) detail.AddExperts(operand);
  });
  if constexpr (requires { args.ratio; }) detail.AddRatio(args.ratio);
  if constexpr (requires { args.shard; }) detail.AddShard(args.shard);
  return detail.text();
}

}  // namespace dsv4::diag
