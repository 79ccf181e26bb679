// Mistakes 6 and 23 of the draft block.
#include <vector>

#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

// The draft block gets hc_head's mixture of the streams in place of the streams.
Status MixedStreams(ops::OpContext& context, const ops::RmsNormArgs& args) {
  const Scene& scene = TheScene();
  if (args.weight.data != scene.mtp_hnorm) return Right().rms_norm(context, args);
  const int64_t hc = scene.config.hc_mult;
  const int64_t dim = scene.config.hidden_size;
  const int64_t n = args.x.shape[0] / hc;
  std::vector<float> mixed(static_cast<size_t>(n * dim));
  const TensorView y = TensorView::Contiguous(mixed.data(), DType::kF32, {n, dim});
  DSV4_RETURN_IF_ERROR(Right().hc_head(context, {.streams = args.x.Reshaped({n, hc, dim}),
                                                 .fn = scene.hc_head.fn,
                                                 .scale = scene.hc_head.scale,
                                                 .base = scene.hc_head.base,
                                                 .y = y,
                                                 .norm_eps = args.eps,
                                                 .hc_eps = static_cast<float>(scene.config.hc_eps)}));
  std::vector<double> streams;
  const std::vector<double> rows = Values(y);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < hc; ++i)
      streams.insert(streams.end(), rows.begin() + t * dim, rows.begin() + (t + 1) * dim);
  }
  SetValues(args.x, streams);
  return Right().rms_norm(context, args);
}

// Tokens that an embedding was last asked for.
Status SavedTokens(ops::OpContext& context, const ops::EmbedArgs& args) {
  const auto* ids = args.token_ids.as<const int32_t>();
  TheScene().saved.assign(ids, ids + args.token_ids.shape[0]);
  return Right().embed(context, args);
}

Status HashedDraft(ops::OpContext& context, const ops::RouterArgs& args) {
  const Scene& scene = TheScene();
  if (args.bias.data != scene.mtp_gate_bias) return Right().router(context, args);
  const std::vector<int32_t> tokens(scene.saved.begin(), scene.saved.end());
  ops::RouterArgs wrong = args;
  wrong.bias = {};
  wrong.hash_table = scene.tid2eid;
  wrong.token_ids = TensorView::Contiguous(tokens.data(), DType::kI32, {static_cast<int64_t>(tokens.size())});
  return Right().router(context, wrong);
}

}  // namespace

void AddDraftMistakes(SeededMistakes& mistakes) {
  mistakes["06-mtp-after-head"].mutation.ops = [](ops::OpTable& table) { table.rms_norm = MixedStreams; };
  mistakes["23-hash-mtp"].mutation.ops = [](ops::OpTable& table) {
    table.embed = SavedTokens;
    table.router = HashedDraft;
  };
}

}  // namespace dsv4::testing
