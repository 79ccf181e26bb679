// Drafts of how sequences go on, on this rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/graph/draft_rows.h"
#include "model/runtime/model_parts.h"
#include "model/runtime/step_chunks.h"

namespace dsv4::model {

// Model::Draft, on rank 0.
Result<std::vector<std::vector<int32_t>>> DraftOnward(ModelParts& model, std::span<const DraftChunk> chunks,
                                                      const Buffer& allowed);
// Drafts of rows of which those with most choices come first; rank 0 gets all rows' tokens, [most choices, rows]. `ready`: why this rank
// cannot, which then no rank does.
Result<std::vector<int32_t>> DraftTogether(ModelParts& model, std::span<const DraftRow> rows,
                                           const Buffer& allowed, const Status& ready);

}  // namespace dsv4::model
