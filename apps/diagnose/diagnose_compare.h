// `compare` and `--dump`: where the other run of a comparison comes from.
#pragma once

#include <string>

#include "apps/diagnose/diagnose_session.h"
#include "diag/report/report.h"

namespace dsv4::apps {

Result<diag::CheckReport> RunCompare(DiagnoseSession& session);

// Multiplications for one token, in the layers that run and the head.
double WorkPerToken(const model::Model& model);

// One prefill of the tokens that the checks of the model look at, into a new directory.
Status WriteOwnDump(DiagnoseSession& session, const std::string& path);

}  // namespace dsv4::apps
