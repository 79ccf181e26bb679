// `compare` and `--dump`: where the other run of a comparison comes from.
#pragma once

#include <string>

#include "apps/diagnose/diagnose_session.h"
#include "diag/report/report.h"

namespace dsv4::apps {

Result<diag::CheckReport> RunCompare(DiagnoseSession& session);

// One prefill of the tokens that the checks of the model look at, into a new directory.
Status WriteOwnDump(DiagnoseSession& session, const std::string& path);

}  // namespace dsv4::apps
