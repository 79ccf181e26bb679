// Offsets of all tensors and the finished header, before any data is written.
#include "io/safetensors_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/json.h"

namespace dsv4::io {
namespace {

// The 8 length bytes and the JSON, padded with spaces so that the data begins on a multiple of 8.
std::string BuildHeader(const std::vector<LayoutEntry>& tensors) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const LayoutEntry& tensor : tensors) {
    const int64_t end = offset + tensor.num_bytes;
    json += fmt::format(R"(,{}:{{"dtype":{},"shape":[{}],"data_offsets":[{},{}]}})", Json(tensor.name).dump(),
                        Json(tensor.dtype_name).dump(), fmt::join(tensor.dims, ","), offset, end);
    offset = end;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes.push_back(static_cast<char>((json.size() >> (8 * i)) & 0xFF));
  return bytes + json;
}

}  // namespace

Result<SafetensorsLayout> LayOutSafetensors(const std::string& path, std::vector<LayoutEntry> tensors) {
  std::unordered_set<std::string_view> names;
  for (const LayoutEntry& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return Error(InvalidArgument(fmt::format("{}: tensor {}: name used twice", path, tensor.name)));
    }
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const LayoutEntry& a, const LayoutEntry& b) {
    return a.element_bytes > b.element_bytes;
  });
  SafetensorsLayout layout;
  layout.header = BuildHeader(tensors);
  layout.file_bytes = static_cast<int64_t>(layout.header.size());
  for (LayoutEntry& tensor : tensors) {
    tensor.offset = layout.file_bytes;
    layout.file_bytes += tensor.num_bytes;
  }
  layout.tensors = std::move(tensors);
  return layout;
}

}  // namespace dsv4::io
