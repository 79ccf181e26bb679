// `dsv4 diagnose knowledge`, `indexer` and `router`: the text of facts that these checks (diag/checks) read.
#pragma once

#include "apps/diagnose/diagnose_session.h"
#include "diag/report/report.h"

namespace dsv4::apps {

// Whether the weights are random and say so: `dsv4 synth`, --weights.
Result<bool> HasRandomWeights(const ModelSource& source);

// Not applicable to weights that are random and say so (`dsv4 synth`, --weights). In `all` half-layers are
// left out one by one only where that takes seconds; by itself the check always does it. Errors: those of the
// session and of diag::CheckKnowledge.
Result<diag::CheckReport> RunKnowledge(DiagnoseSession& session);

// The text repeated, as long as the model's choices want it. Not applicable to random weights. In `all` only where reading it takes seconds;
// by itself the check always does it. Errors: those of the session and of diag::CheckIndexer.
Result<diag::CheckReport> RunIndexer(DiagnoseSession& session);

// The text's beginning. Not applicable to random weights. In `all` only where it takes seconds, as indexer. Errors: those of the session and of
// diag::CheckRouter.
Result<diag::CheckReport> RunRouter(DiagnoseSession& session);

}  // namespace dsv4::apps
