// RunStep: a step of a model on this rank, whichever rank asked for it.
#pragma once

#include <span>

#include "model/graph/observer.h"
#include "model/runtime/model_parts.h"
#include "model/runtime/step_chunks.h"

namespace dsv4::model {

// The errors of wrong arguments that Model::Step names.
Status CheckChunks(const ModelParts& model, std::span<const SequenceChunk> chunks);
// Rank 0: tells the others of the step.
Status AnnounceStep(ModelParts& model, std::span<const SequenceChunk> chunks);
// `ready`: why this rank cannot run the step, which then no rank does.
Result<StepOutput> RunStep(ModelParts& model, std::span<const SequenceChunk> chunks, const Status& ready,
                           Observer* observer);

}  // namespace dsv4::model
