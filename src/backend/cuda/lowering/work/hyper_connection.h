// Work of hyper-connections and of the ops around them, as ops record it and as kernels get it. Ops are
// moe_combine, the sum over ranks, hc_post, hc_pre, and the norm of its result.
#pragma once

#include <cstdint>

#include "backend/cuda/collectives/peer_links.h"
#include "backend/cuda/lowering/select/hyper_connection.h"
#include "backend/cuda/lowering/select/rows.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// moe_combine: y = routed + shared, `count` elements each.
struct CombineWork {
  const float* routed;
  const void* shared;  // Null: 0. May be y.
  void* y;
  int64_t count;
  DType dtype;  // Type of y, and of shared.
  ElementsPath path;
};

// The sum over all ranks of what each has, `routed` and, if it is not null, `added`: the LL exchange of up to
// kMaxLlSumBytes.
struct RankSumWork {
  PeerLinks links;
  const float* routed;
  const float* added;
  float* sum;  // May be one of them.
  int64_t count;
};

// hc_post of four streams.
struct HcPostWork {
  const void* y;         // [num_tokens, dim]
  const void* residual;  // [num_tokens, 4, dim], as is
  void* out;             // this, which may be the same.
  const float* post;
  const float* comb;
  int64_t num_tokens;
  int64_t dim;
  DType dtype;
};

// hc_pre. dots: [num_tokens, rows of fn + 1, num_parts], of each row and of the streams themselves with the
// streams.
struct HcPreParams {
  const float* dots;
  const float* scale;
  const float* base;
  float* post;
  float* comb;
  const float* given;  // Weights of the streams in u; null: those that this hc_pre makes,
  float* pre;          // which go here. Null: nowhere.
  int num_parts;
  int mult;
  int64_t dim;
  float norm_eps;
  float hc_eps;
  int sinkhorn_iters;
};
struct HcPreWork {
  const void* streams;
  const float* fn;
  void* u;
  HcPreParams params;
  float* dots;  // Address to which params.dots points.
  int num_tokens;
  HcPrePath path;  // kCluster or kTokenTiles.
};

// post and comb of so many tokens; none: nothing is to be done.
struct HcMixWork {
  HcPreParams params;
  int num_tokens;
};

// rms_norm of contiguous rows, in place.
struct NormWork {
  const void* x;
  DType dtype;
  Shape shape;
  const float* weight;
  float eps;
};

// Work of a kernel of hc_pre on the ops in front of it. These are hc_post, and moe_combine (routed is not
// null) or the sum over ranks (links.size is not 0).
struct HcPostBefore {
  void* y;
  const float* routed;
  const void* shared;  // F32 where it is added before a sum over ranks.
  const void* residual;
  void* out;  // Null: the streams are there.
  const float* post;
  const float* comb;
  int64_t num_tokens;
  int64_t dim;
  PeerLinks links;
  float* sum;
};

}  // namespace dsv4::backend::cuda
