// The safetensors container: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
//
// ParseSafetensors checks all claims of the header before a byte of data is used. These are length, JSON,
// types, duplicate names, and shape times dtype against the offsets. The tensors must cover the data exactly
// once, since the format forbids overlaps and gaps. Its result can be read without further checks of bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace dsv4::io {

// The format's own limit on the header.
inline constexpr size_t kMaxHeaderBytes = 100'000'000;
// More dimensions than any model has; protects from absurd headers.
inline constexpr size_t kMaxFileRank = 16;

// One tensor as a file describes it.
struct StoredTensor {
  std::string name;
  std::string dtype_name;  // As spelled in the header.
  std::optional<DType>
      dtype;  // nullopt: a dtype this engine does not read. An error only if the tensor is used.
  std::vector<int64_t> dims;         // Slowest first; every dim >= 0 and the product fits int64.
  std::span<const std::byte> bytes;  // Borrowed from the file. May be misaligned for the dtype.
  int file = 0;                      // Index into Checkpoint::files().

  std::string ShapeString() const;  // "[2, 3]"
};

// `file_bytes` is the whole file; `what` names it in errors. Tensors come in the header's order. DataLoss for
// truncated or inconsistent files, InvalidArgument for headers that are not what the format allows.
Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> file_bytes,
                                                   std::string_view what);

// The `weight_map` of a model.safetensors.index.json: (tensor, file name) in the file's order. Names a
// duplicate tensor, a wrong type, and a file name that could leave the directory.
struct IndexEntry {
  std::string tensor;
  std::string file;
};
Result<std::vector<IndexEntry>> ParseSafetensorsIndex(std::string_view json, std::string_view what);

}  // namespace dsv4::io
