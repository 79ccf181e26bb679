// `diagnose --html FILE`: the reports as a page, with what made it.
#pragma once

#include <string>
#include <vector>

#include "apps/diagnose/diagnose_session.h"
#include "diag/report/report.h"

namespace dsv4::apps {

// Ok when a page can be written to `path` as far as can be known before it is made: NotFound without its
// directory, InvalidArgument where `path` is a directory. Minutes of checks should not end in a misspelt
// name.
Status CheckPagePath(const std::string& path);

// Writes the page of --html; it appears whole or not at all. Errors of the file system name the path.
Status WritePage(const DiagnoseSession& session, const std::vector<diag::CheckReport>& reports);

}  // namespace dsv4::apps
