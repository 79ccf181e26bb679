// V4's layer: each sub-layer mixes the streams by weights of its own.
#include "model/graph/trunk.h"

#include "model/arch/v4/v4.h"
#include "model/graph/hyper_connection.h"

namespace dsv4::model {
namespace {

Result<TensorView> Collapse(const LayerStep& step, const HyperConnectionWeights& head,
                            const TrunkState& state) {
  return HcHead(step, head, state.streams);
}

constexpr Trunk kTrunk = {.run_layer = RunSublayers, .collapse = Collapse};

}  // namespace

const Trunk& V4Trunk() { return kTrunk; }

}  // namespace dsv4::model
