// Manifold-constrained hyper-connections around a sub-layer: the residual streams are mixed to one input, and
// the output is spread back over them (ops/hyper_connection.h).
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

struct HcMix {
  TensorView u;     // [n, D], the sub-layer's input before its norm
  TensorView post;  // [n, H] F32
  TensorView comb;  // [n, H, H] F32
};

// Weights of the streams where a sub-layer's input is mixed by those of the one before: taken from `given`,
// left in `pre`.
struct DelayedMix {
  TensorView given;  // [n, H] F32
  TensorView pre;    // [n, H] F32, other memory.
};

// `part` is "attn" or "ffn".
Result<HcMix> HcPre(const LayerStep& step, std::string_view part, const HyperConnectionWeights& weights,
                    const TensorView& streams, const DelayedMix& delayed = {});

// Updates the streams [n, H, D] in place with the sub-layer's output y [n, D].
Status HcPost(const LayerStep& step, std::string_view part, const HcMix& mix, const TensorView& y,
              const TensorView& streams);

// [rows, D]: the streams mixed once more, in front of the final norm.
Result<TensorView> HcHead(const LayerStep& step, const HyperConnectionWeights& weights,
                          const TensorView& streams);
// The same by given weights [rows, H] F32.
Result<TensorView> HcCollapse(const LayerStep& step, const TensorView& given, const TensorView& streams);

}  // namespace dsv4::model
