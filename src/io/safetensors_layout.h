// Offset of every tensor of a safetensors file, decided before a byte is written. Writers may then fill the
// file in any order, from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4::io {

struct LayoutEntry {
  std::string name;
  std::string dtype_name;  // As the header spells it; need not be a dtype this engine reads.
  std::vector<int64_t> dims;
  int64_t num_bytes = 0;
  int64_t element_bytes = 1;  // Alignment of the tensor: 1, 2, 4 or 8.
  int64_t offset = 0;         // From the beginning of the file; set by LayOutSafetensors.
};

struct SafetensorsLayout {
  std::string header;                // The file's first bytes: length, JSON, padding.
  std::vector<LayoutEntry> tensors;  // In file order: widest element first, otherwise as given.
  int64_t file_bytes = 0;
};

// The order makes each tensor lie aligned for its dtype. InvalidArgument for a duplicate name; `path` is for
// messages.
Result<SafetensorsLayout> LayOutSafetensors(const std::string& path, std::vector<LayoutEntry> tensors);

}  // namespace dsv4::io
