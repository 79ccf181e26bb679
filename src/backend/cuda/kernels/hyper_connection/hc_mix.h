// What hc_pre's kernels are told, and the part of its work that another launch may take over (hc_mix.cuh).
#pragma once

#include <cstdint>
#include <optional>

#include "backend/cuda/kernels/rows/rows.h"
#include "backend/cuda/lowering/select/hyper_connection.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/hyper_connection.h"
#include "ops/rms_norm.h"

namespace dsv4::backend::cuda {

// dots: [num_tokens, rows of fn + 1, num_parts], of each row and of the streams themselves with the streams.
struct HcPreParams {
  const double* dots;
  const float* scale;
  const float* base;
  float* post;
  float* comb;
  int num_parts;
  int mult;
  int64_t dim;
  float norm_eps;
  float hc_eps;
  int sinkhorn_iters;
};

HcPreShape ShapeOf(const TensorView& streams, const TensorView& fn, const void* u);

HcPreParams ParamsOf(const ops::HcPreArgs& args, const double* dots, int num_parts);

// post and comb of so many tokens.
struct HcMixWork {
  HcPreParams params;
  int num_tokens;
};

// Whether the norm has become part of hc_pre's launch, which is the last and a cluster's (hc_cluster.h).
bool NormJoinsHcPre(CudaContext& context, const ops::RmsNormArgs& args);

// Takes post and comb out of hc_pre's launch, if that is the last and a norm has joined it: the caller's next launch does them.
std::optional<HcMixWork> TakeHcMix(CudaContext& context);

}  // namespace dsv4::backend::cuda
