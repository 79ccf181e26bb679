// The n-gram tables of a model (model/engram) in a pass. Rows of its tokens are found and asked for before the first layer. Layers that
// have a table mix them into the streams first of all.
#pragma once

#include <memory>
#include <span>

#include "base/parallel.h"
#include "model/checkpoint/weights.h"
#include "model/engram/engram_hash.h"
#include "model/engram/engram_tables.h"
#include "model/graph/step_context.h"
#include "model/graph/trunk.h"

namespace dsv4::model {

// Finds and reads rows of n-gram tables.
struct EngramLookup {
  EngramHash hash;
  std::unique_ptr<EngramTables>
      tables;  // In order, for the layers that are loaded: consecutive ones of the hash's.
  int first_table = 0;
  int num_tables = 0;
};

// InvalidArgument for a number of classes that is not the configuration's, or a table that does not fit its primes.
Result<std::unique_ptr<EngramLookup>> MakeEngramLookup(const ModelConfig& config, const ModelWeights& weights,
                                                       std::span<const int32_t> classes);

// Gives the sequences of a pass the classes of its tokens, and asks for the rows that these read (PassPlan::engram_rows).
Status AskForEngram(EngramLookup& lookup, PassPlan& plan);

// Reads these rows, by table of this stage, of which a pass that may be replayed makes arrays: no layer of it is walked then.
Status ReadEngram(const EngramLookup& lookup, ThreadPool& threads, DType dtype, PassPlan& plan);

// Mixes this layer's rows into the streams, in place.
Status Engram(const LayerStep& step, const LayerWeights& weights, const TrunkState& state);

}  // namespace dsv4::model
