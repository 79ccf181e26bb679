// `dsv4 diagnose knowledge`: the text of facts that diag/knowledge_check.h reads.
#pragma once

#include "apps/diagnose/diagnose_session.h"
#include "diag/report/report.h"

namespace dsv4::apps {

// Not applicable to weights that are random and say so (`dsv4 synth`, --weights). In `all` half-layers are
// left out one by one only where that takes seconds; by itself the check always does it. Errors: those of the
// session and of diag::CheckKnowledge.
Result<diag::CheckReport> RunKnowledge(DiagnoseSession& session);

}  // namespace dsv4::apps
