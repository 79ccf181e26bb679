// prompt: is the prompt what the model was trained on? The first check of all: with a wrong prompt every
// kernel comparison passes, because both sides get the same wrong prompt. Field lesson P1.
#pragma once

#include <string>

#include "apps/diagnose/diagnose_text.h"
#include "diag/report/report.h"

namespace dsv4::apps {

// Shows the rendering with its ids, and compares it with `against`. That is a file's text with another
// engine's rendering or ids (ReadIdList); empty: nothing to compare with. Without `against` the finding can
// only be that the tokenizer does not carry the template. `what` names the file in errors.
Result<diag::CheckReport> CheckPrompt(const TextSubject& subject, const std::string& against,
                                      const std::string& what);

}  // namespace dsv4::apps
