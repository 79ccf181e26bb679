// The head that drafts take instead of the model's: a copy of it in fewer bits. For one row of logits nearly
// all time goes into reading the head. A draft need not be exact, since each is verified with the model's own
// head.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/weight.h"

namespace dsv4::model {

enum class DraftHead : uint8_t {
  kStored,  // None: drafts take the model's head.
  kFp8,     // e4m3 in blocks of 128 x 128: half the bytes of bf16.
  kNvFp4,   // e2m1 in blocks of 16, with e4m3 scales: 28 % of them.
};

// "stored", "fp8", "nvfp4"; InvalidArgument for others.
Result<DraftHead> ParseDraftHead(std::string_view text);

// The copy of `head`, which lies on the host; its memory goes to `copies`. No rows where there is nothing to
// win: kStored, a head that is not plain, or one whose columns the format cannot hold. `sizes_only`: no
// number is read, nor of any worth. DataLoss for a number that is not finite.
Result<Weight> MakeDraftHead(const Weight& head, DraftHead format, bool sizes_only,
                             std::vector<Buffer>& copies);

}  // namespace dsv4::model
