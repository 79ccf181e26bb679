// Search for a model's DSpark drafter.
#pragma once

#include <memory>

#include "base/status.h"
#include "model/checkpoint/resolved_checkpoint.h"

namespace dsv4::model {

// A folder of this name in the model's directory may have a drafter of its own: a config.json with the
// dspark_* keys, and its tensors.
inline constexpr const char* kDsparkFolder = "dspark";

struct DsparkSource {
  std::shared_ptr<const io::Checkpoint> checkpoint;
  DsparkConfig config;
  ResolvedDspark resolved;  // Borrows from the checkpoint.
};

// The drafter in the checkpoint's own files where its configuration names one. Else it is that of the folder
// in its directory, which is made for the checkpoint's shape. NotFound where there is neither.
// InvalidArgument says what a part of a drafter lacks. Unimplemented for a block that is longer than a state
// has room for (kv::kMostDraftRows).
Result<DsparkSource> FindDspark(const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                const ModelConfig& config);

}  // namespace dsv4::model
