// A dump: the tensors of one run as a directory of safetensors, so that any engine can be compared with ours. The format is
// docs/dump-format.md; names and shapes are those of model/observer.h, "layers.<N>." in front of what lies in a layer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "diag/recording.h"

namespace dsv4::diag {

// Writes one file a layer and `outside.safetensors` into `directory`, which is made if need be and must hold no safetensors.
// InvalidArgument for one that does; errors of the file system name the path.
Status WriteDump(const Recording& recording, const std::string& directory);

// Tensors by name, as fp32. Owns its numbers.
struct Dump {
  std::vector<RecordedTensor> tensors;

  const RecordedTensor* Find(int layer, std::string_view name) const;
  // The ids of pass.token_ids; empty without it.
  std::vector<int32_t> TokenIds() const;
};

// Reads every *.safetensors of `directory`. Hostile until checked: errors (NotFound, DataLoss, InvalidArgument) name file and
// tensor: a name twice, rank 0, a dtype other than F32, F16, BF16, I32 or I64, a layer number that is none.
Result<Dump> ReadDump(const std::string& directory);

// The tensors of a recording, to be compared like a dump.
Dump ToDump(const Recording& recording);

}  // namespace dsv4::diag
