// Input: a safetensors file, and the same bytes as an index. An accepted file must be usable without further
// checks. Every tensor lies inside the file and has exactly the bytes its dtype and shape ask for, and no two
// overlap.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "io/safetensors.h"

namespace {

void CheckTensors(std::span<const std::byte> file, std::vector<dsv4::io::StoredTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.bytes.data() < b.bytes.data(); });
  const std::byte* free_from = file.data();
  for (const dsv4::io::StoredTensor& tensor : tensors) {
    DSV4_CHECK(tensor.bytes.data() >= free_from);
    free_from = tensor.bytes.data() + tensor.bytes.size();
    DSV4_CHECK(free_from <= file.data() + file.size());
    if (!tensor.dtype) continue;
    int64_t num_bytes = dsv4::ElementBytes(*tensor.dtype);
    for (const int64_t dim : tensor.dims) num_bytes *= dim;
    DSV4_CHECK(num_bytes == static_cast<int64_t>(tensor.bytes.size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  auto tensors = dsv4::io::ParseSafetensors(file, "fuzz");
  if (tensors.has_value()) {
    CheckTensors(file, std::move(*tensors));
  } else {
    DSV4_CHECK(!tensors.error().message().empty());
  }
  const auto index = dsv4::io::ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index.has_value()) return 0;
  for (const dsv4::io::IndexEntry& entry : *index) {
    DSV4_CHECK(entry.file.find('/') == std::string::npos && entry.file != "..");
  }
  return 0;
}

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  return dsv4::io::ParseSafetensors(std::as_bytes(std::span(data, size)), "seed").has_value() ||
         dsv4::io::ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size}, "seed").has_value();
}
