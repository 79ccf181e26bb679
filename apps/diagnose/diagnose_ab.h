// `compare --ab OP=VARIANT`: our run with another implementation of one op, or of each op in turn.
#pragma once

#include "apps/diagnose/diagnose_session.h"
#include "diag/checks/compare_check.h"
#include "diag/report/report.h"

namespace dsv4::apps {

// Compares the session's run with one whose ops are exchanged as options().ab says. Variants are "reference"
// and the tiers of the CPU backend that this machine has. Errors: OutOfRange for an unknown op or variant
// (the message lists both) and for one that is exchanged for itself; those of diag/ab_check.h.
Result<diag::CheckReport> RunAb(DiagnoseSession& session, const diag::CompareOptions& options);

}  // namespace dsv4::apps
