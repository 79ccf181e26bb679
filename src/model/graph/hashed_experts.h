// Layers that choose experts by token: which they are is known before a step begins.
#pragma once

#include "io/chosen_reads.h"
#include "model/graph/step.h"

namespace dsv4::model {

// Asks ahead for the experts of all such layers, in order. It is for a pass of few tokens on the host. A pass
// of many chooses most experts of a layer, which are more than memory has room for.
void AskForHashedExperts(const Graph& graph, const PassPlan& plan, io::ChosenReads& reads);

}  // namespace dsv4::model
