// draft: does the model's drafter, a draft block or one of DSpark, foresee what the model says? The model
// goes on greedily behind a prompt; at every position of what it said the block drafts, with the model's own
// text in front. A block that is read rightly agrees on the first token most of the time. One whose tensors
// are lost, exchanged or joined with the wrong token agrees hardly ever, while answers stay right: they are
// only slower.
#pragma once

#include <cstdint>
#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

struct DraftCheckOptions {
  int64_t num_tokens = 96;  // Tokens that the model says.
  int64_t num_drafts = 3;   // In a row at each of them; of DSpark a block.
};

// A finding where less than a third of the first drafts is right. Also where the block does better with its
// own position's token than with the next. Not applicable without a drafter: the headline says why there is
// none.
// Errors: those of Model::Step and Model::Draft.
Result<CheckReport> CheckDraft(const Subject& subject, std::span<const int32_t> prompt,
                               const DraftCheckOptions& options);

}  // namespace dsv4::diag
