// Additions that a launch of hc_pre is told where it does more than hc_pre: hc_post in front of it, the norm
// behind it (hc_cluster.cu, hc_token_tiles.cu).
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/lowering/work/hyper_connection.h"

namespace dsv4::backend::cuda {

// Work on four bf16 streams in runs (HasHcRuns). What is null is not asked for.
struct HcStep {
  HcPostBefore before;  // out null: the streams are there.
  const Bf16* streams;
  const float* fn;
  float* dots;  // Address to which params.dots points.
  Bf16* u;
  const float* norm_weight;
  HcPreParams params;
  float norm_eps;
  int num_tokens;
  bool with_mix;  // post and comb.
};

// `norm`: null, or the norm of u.
inline HcStep MakeHcStep(const HcPostBefore& before, const HcPreWork& pre, const NormWork* norm,
                         bool with_mix) {
  return {.before = before,
          .streams = static_cast<const Bf16*>(pre.streams),
          .fn = pre.fn,
          .dots = pre.dots,
          .u = static_cast<Bf16*>(pre.u),
          .norm_weight = norm == nullptr ? nullptr : norm->weight,
          .params = pre.params,
          .norm_eps = norm == nullptr ? 0.0F : norm->eps,
          .num_tokens = pre.num_tokens,
          .with_mix = with_mix};
}

}  // namespace dsv4::backend::cuda
