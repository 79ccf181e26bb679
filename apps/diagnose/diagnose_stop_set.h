// stop-set: what ends a turn, where each id came from, and whether a token log went past one. Field lesson
// P2.
#pragma once

#include <string>

#include "apps/diagnose/diagnose_text.h"
#include "diag/report/report.h"

namespace dsv4::apps {

// `log` is a file's text with the ids of an answer (ReadIdList), empty for none; where it begins with the
// prompt's ids these are skipped. A finding when config.json or generation_config.json name an end token that
// is not in the set. Also when the log holds a stop token that is not its last, or a stop text written in
// ordinary tokens. `what` names the file in errors.
Result<diag::CheckReport> CheckStopSet(const TextSubject& subject, const std::string& log,
                                       const std::string& what);

}  // namespace dsv4::apps
