// What an op cannot avoid: the bytes of weights and cached rows it has to read once, and its multiply-adds. Divided by what
// the machine can do they bound its time from below. Activations are not counted: they are small, or stay in the caches.
#pragma once

#include <cstdint>
#include <string>

#include "ops/op_table.h"

namespace dsv4::diag {

struct OpCost {
  double weight_bytes = 0;   // As stored; of experts those that at least one token chose, once.
  double cache_bytes = 0;    // Distinct rows of rings and pages that the op has to look at.
  double multiply_adds = 0;  // Of GEMMs, attention, index scores and mixing matrices.

  OpCost& operator+=(const OpCost& other);
  OpCost operator*(double factor) const;
  double bytes() const { return weight_bytes + cache_bytes; }
};

// Bytes that a weight occupies as it is stored or prepared.
int64_t StoredBytes(const Weight& weight);

// The cost of one call, by its arguments: before the call or after it, but for RoutedExperts, ExpertTerms, Attention and
// AttentionPart, whose indices must have been computed. Errors are those of reading these back from the device.
#define DSV4_DECLARE_COST(name, Args) Result<OpCost> CostOf(ops::OpContext& context, const ops::Args& args);
DSV4_FOR_EACH_OP(DSV4_DECLARE_COST)
DSV4_FOR_EACH_SHARD_OP(DSV4_DECLARE_COST)
#undef DSV4_DECLARE_COST

// What tells the calls of one op apart: "nvfp4 [16384, 512]", "ratio 4". Empty where there is nothing to tell.
#define DSV4_DECLARE_DETAIL(name, Args) std::string DetailOf(const ops::Args& args);
DSV4_FOR_EACH_OP(DSV4_DECLARE_DETAIL)
DSV4_FOR_EACH_SHARD_OP(DSV4_DECLARE_DETAIL)
#undef DSV4_DECLARE_DETAIL

}  // namespace dsv4::diag
