// Manifold-constrained hyper-connections around a sub-layer: the residual streams are mixed to one input, and the output
// is spread back over them (ops/hyper_connection.h).
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

struct HcMix {
  TensorView u;     // [n, D], the sub-layer's input before its norm
  TensorView post;  // [n, H] F32
  TensorView comb;  // [n, H, H] F32
};

// `part` is "attn" or "ffn".
Result<HcMix> HcPre(const LayerStep& step, std::string_view part, const HyperConnectionWeights& weights,
                    const TensorView& streams);

// Updates the streams [n, H, D] in place with the sub-layer's output y [n, D].
Status HcPost(const LayerStep& step, std::string_view part, const HcMix& mix, const TensorView& y,
              const TensorView& streams);

// [rows, D]: the streams mixed once more, in front of the final norm.
Result<TensorView> HcHead(const LayerStep& step, const HyperConnectionWeights& weights,
                          const TensorView& streams);

}  // namespace dsv4::model
