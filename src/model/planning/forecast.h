// Demands of a placement on its ranks, by arithmetic from the checkpoint's headers: the planner's view of
// placements that no process has loaded. Nothing here is measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint/resolved_checkpoint.h"
#include "model/config/cache_geometry.h"
#include "model/placement/placement.h"

namespace dsv4::model {

// Figures of the fullest rank where it is about memory, and of one token of one sequence where it is about
// time.
struct Forecast {
  Placement placement;
  int64_t weights = 0;   // Bytes,
  int64_t fixed = 0;     // of a sequence before its first token,
  double per_token = 0;  // and by which it grows a token; in data-parallel attention a rank's share.
  // Bytes of weights and of `context` tokens of state that are read one after another: of the fullest shard,
  // in all stages. Of experts divided by id the expected most that one shard has of a token's, chosen evenly
  // and independently.
  double read = 0;
  int exchanges = 0;  // Times that a token's way waits for other ranks.

  double Seconds(double bytes_per_second, double seconds_per_exchange) const {
    return read / bytes_per_second + exchanges * seconds_per_exchange;
  }
  // Tokens of one sequence beside the weights in `memory` bytes of each rank; 0 where the weights do not fit.
  double Tokens(double memory) const;
};

struct ForecastRequest {
  int64_t num_layers = 0;  // The first ones of the model.
  int64_t context = 0;     // Tokens before the one that is read for.
  Numerics numerics = Numerics::kRelease;
  CacheRows cache_rows = CacheRows::kPacked;
};

// At least as many layers as the placement has stages.
Forecast MakeForecast(const ResolvedCheckpoint& resolved, const ModelConfig& config,
                      const Placement& placement, const ForecastRequest& request);

// All placements of so many ranks, in the order: expert; expert,entries; expert,sequences; tensor;
// tensor,entries; the same behind 2, 3, ... stages; pipeline. `divides`: whether the model's entries can be
// divided.
std::vector<Placement> AllPlacements(int num_ranks, std::span<const LayerPlan> layers, bool divides);

// Kind of ranks.
struct RankKind {
  double memory = 0;  // Bytes for weights and states.
  double bytes_per_second = 0;
  double seconds_per_exchange = 0;
};

struct PlacementChoice {
  size_t index = 0;  // Index in the forecasts.
  std::string why;
};

// Among the placements whose weights and one sequence of `context` tokens fit, the one whose token takes
// least time; the first of equals. Where none fits the one that lacks least, and `why` says that.
PlacementChoice ChoosePlacement(const std::vector<Forecast>& forecasts, const RankKind& ranks,
                                int64_t context);

}  // namespace dsv4::model
