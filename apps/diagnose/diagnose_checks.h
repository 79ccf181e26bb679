// The checks of `dsv4 diagnose` in the order of `all`, without their printing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/diagnose/diagnose_session.h"
#include "diag/report/report.h"

namespace dsv4::apps {

// Runs the check that the options name, or all of them until a finding makes the rest meaningless. Calls
// `show` after each.
// Errors begin with the check's name.
Result<std::vector<diag::CheckReport>> Diagnose(DiagnoseSession& session,
                                                const std::function<void(const diag::CheckReport&)>& show);

}  // namespace dsv4::apps
