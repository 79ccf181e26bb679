// How a dump names its files and tensors (docs/dump-format.md).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4::diag {

// "layer-003.safetensors"; "outside.safetensors" for layer -1.
std::string DumpFileName(int layer);
// "layers.3.attn.o"; the name alone for layer -1.
std::string DumpTensorName(int layer, std::string_view name);
// Backwards. InvalidArgument for "layers." without a number and a name behind it.
Result<std::pair<int, std::string>> SplitDumpTensorName(const std::string& full);

// Paths of the *.safetensors in a directory, sorted. NotFound when it cannot be read.
Result<std::vector<std::string>> SafetensorsIn(const std::string& directory);

}  // namespace dsv4::diag
