// What hc_pre's kernels are told, and the part of its work that another launch may take over (hc_mix.cuh).
#pragma once

#include <cstdint>
#include <optional>

#include "backend/cuda/kernels/rows/rows.h"
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

// The release's streams, and rows of fn for them: pre, post, comb.
inline constexpr int kHcMult = 4;
inline constexpr int kHcMixRows = (2 + kHcMult) * kHcMult;
inline constexpr int kHcRunColumns = 32;

// How dot products are cut for four streams of many widths (hyper_connection.cu): columns come in runs of 32, dealt out in turn to as
// many parts as the norm of such a row has warps.
inline int64_t HcParts(int64_t dim) {
  return (dim <= kMaxNarrowRow ? kNarrowRowThreads : kWideRowThreads) / 32;
}
// Whether the streams are so, and can be read in fours.
inline bool HasHcRuns(const TensorView& streams, const TensorView& fn) {
  const int64_t dim = streams.shape[2];
  return streams.shape[1] == kHcMult && dim % (kHcRunColumns * HcParts(dim)) == 0 &&
         (reinterpret_cast<uintptr_t>(streams.data) | reinterpret_cast<uintptr_t>(fn.data)) % 16 == 0;
}

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
