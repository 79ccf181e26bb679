// What hc_pre's launches are told where they do more than hc_pre: hc_post in front of it, the norm behind it; and the last such launch.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_mix.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/runtime/open_launches.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

// Of four bf16 streams in runs (HasHcRuns). What is null is not asked for.
struct HcStep {
  OpenHcPost before;  // out null: the streams are there.
  const Bf16* streams;
  const float* fn;
  double* dots;  // Where params.dots points.
  Bf16* u;
  const float* norm_weight;
  HcPreParams params;
  float norm_eps;
  int num_tokens;
  bool with_mix;  // post and comb.
};

// Launches `step`, or puts it in place of `before` unless that is 0: the launch's number, 0 if it is too late.
using LaunchHcStep = uint64_t(CudaContext& context, const HcStep& step, uint64_t before);

// The last launch of hc_pre, which may fuse with a norm of u.
struct OpenHcPre {
  uint64_t launch = 0;  // 0: nothing may.
  TensorView u;
  HcStep step;
  LaunchHcStep* relaunch = nullptr;
  Buffer dots;  // Of kMaxHcStepTokens: the launch that takes post and comb over belongs to another op.
};

// The step of hc_pre alone, which fuses with nothing before it has been launched.
Result<OpenHcPre*> NewOpenHcPre(CudaContext& context, const ops::HcPreArgs& args, int num_parts,
                                LaunchHcStep* relaunch);

// The hc_post that was launched last, if it made these streams and nothing that hc_pre writes is read by another block's part of it.
const OpenHcPost* PostBefore(CudaContext& context, const ops::HcPreArgs& args);

}  // namespace dsv4::backend::cuda
