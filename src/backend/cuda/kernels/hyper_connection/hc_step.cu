#include <memory>
#include <utility>

#include "backend/cuda/kernels/hyper_connection/hc_step.h"

namespace dsv4::backend::cuda {
namespace {

// [data, data + num_bytes) is what a block reads and writes of its own columns, or no other block's.
bool SameOrApart(const TensorView& written, const void* read, int64_t read_bytes) {
  return written.data == read || !BytesOverlap(written.data, written.num_bytes(), read, read_bytes);
}
bool Apart(const TensorView& written, const void* read, int64_t read_bytes) {
  return !BytesOverlap(written.data, written.num_bytes(), read, read_bytes);
}

}  // namespace

const OpenHcPost* PostBefore(CudaContext& context, const ops::HcPreArgs& args) {
  const OpenHcPost* const open = context.open_hc_post().get();
  if (open == nullptr || !context.queue().IsLastLaunch(open->launch) || open->out != args.streams.data ||
      open->num_tokens != args.streams.shape[0] || open->dim != args.streams.shape[2]) {
    return nullptr;
  }
  const int64_t y_bytes = args.u.num_bytes();
  const int64_t streams_bytes = args.streams.num_bytes();
  const int64_t post_bytes = args.post.num_bytes();
  const int64_t comb_bytes = args.comb.num_bytes();
  // A block writes columns that only itself reads, and post and comb when all have read them.
  bool apart = SameOrApart(args.u, open->y, y_bytes) && Apart(args.u, open->residual, streams_bytes) &&
               Apart(args.u, open->out, streams_bytes) && Apart(args.u, open->post, post_bytes) &&
               Apart(args.u, open->comb, comb_bytes) && SameOrApart(args.post, open->post, post_bytes) &&
               SameOrApart(args.comb, open->comb, comb_bytes) && Apart(args.post, open->comb, comb_bytes) &&
               Apart(args.comb, open->post, post_bytes);
  for (const TensorView* const small : {&args.post, &args.comb}) {
    apart = apart && Apart(*small, open->y, y_bytes) && Apart(*small, open->residual, streams_bytes) &&
            Apart(*small, open->out, streams_bytes);
  }
  if (open->links.size > 0) {
    const int64_t sum_bytes = args.u.num_elements() * int64_t{sizeof(float)};
    for (const TensorView* const written : {&args.u, &args.post, &args.comb, &args.streams}) {
      apart = apart && Apart(*written, open->sum, sum_bytes) && Apart(*written, open->routed, sum_bytes) &&
              (open->shared == nullptr || Apart(*written, open->shared, sum_bytes));
    }
  } else if (open->routed != nullptr) {
    for (const TensorView* const written : {&args.u, &args.post, &args.comb}) {
      apart = apart && Apart(*written, open->routed, args.u.num_elements() * int64_t{sizeof(float)});
    }
    apart = apart && SameOrApart(args.u, open->shared, y_bytes) && Apart(args.post, open->shared, y_bytes) &&
            Apart(args.comb, open->shared, y_bytes);
  }
  // hc_post's own operands, as one launch of one token beside the other demands it.
  apart = apart && SameOrApart(args.streams, open->residual, streams_bytes) &&
          Apart(args.streams, open->post, post_bytes) && Apart(args.streams, open->comb, comb_bytes) &&
          Apart(args.streams, open->y, y_bytes);
  return apart ? open : nullptr;
}

Result<OpenHcPre*> NewOpenHcPre(CudaContext& context, const ops::HcPreArgs& args, int num_parts,
                                LaunchHcStep* relaunch) {
  std::shared_ptr<OpenHcPre>& open = context.open_hc_pre();
  Buffer dots = open == nullptr ? Buffer() : open->dots;
  if (dots.data() == nullptr) {
    constexpr int64_t kMaxParts = kWideRowThreads / 32;
    constexpr int64_t kCount = kMaxHcStepTokens * (kHcMixRows + 1) * kMaxParts;
    DSV4_ASSIGN_OR_RETURN(dots, context.memory().Allocate(kCount * sizeof(double)));
  }
  auto* const data = reinterpret_cast<double*>(dots.data());
  open = std::make_shared<OpenHcPre>(OpenHcPre{.u = args.u,
                                               .step = {.before = {},
                                                        .streams = args.streams.as<const Bf16>(),
                                                        .fn = args.fn.as<const float>(),
                                                        .dots = data,
                                                        .u = args.u.as<Bf16>(),
                                                        .norm_weight = nullptr,
                                                        .params = ParamsOf(args, data, num_parts),
                                                        .norm_eps = 0.0F,
                                                        .num_tokens = static_cast<int>(args.streams.shape[0]),
                                                        .with_mix = true},
                                               .relaunch = relaunch,
                                               .dots = std::move(dots)});
  return open.get();
}

bool NormJoinsHcPre(CudaContext& context, const ops::RmsNormArgs& args) {
  OpenHcPre* const open = context.open_hc_pre().get();
  if (open == nullptr || open->launch == 0 || open->step.norm_weight != nullptr ||
      args.x.data != open->u.data || args.y.data != args.x.data || args.x.dtype != open->u.dtype ||
      args.y.dtype != args.x.dtype || args.x.shape != open->u.shape || args.x.strides[0] != args.x.shape[1] ||
      args.y.strides[0] != args.x.shape[1]) {
    return false;
  }
  HcStep step = open->step;
  step.norm_weight = args.weight.as<const float>();
  step.norm_eps = args.eps;
  const uint64_t launch = open->relaunch(context, step, open->launch);
  if (launch == 0) return false;
  open->launch = launch;
  open->step = step;
  context.Fused(FusionRule::kPreNorm);
  return true;
}

std::optional<HcMixWork> TakeHcMix(CudaContext& context) {
  OpenHcPre* const open = context.open_hc_pre().get();
  if (open == nullptr || open->launch == 0 || open->step.norm_weight == nullptr) return std::nullopt;
  open->step.with_mix = false;
  const uint64_t launch = open->relaunch(context, open->step, open->launch);
  open->launch = 0;
  if (launch == 0) return std::nullopt;
  context.Fused(FusionRule::kCombIntoLinear);
  return HcMixWork{open->step.params, open->step.num_tokens};
}

}  // namespace dsv4::backend::cuda
