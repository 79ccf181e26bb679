// Names of a dump's files and tensors, both ways.
#include "diag/dump_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace dsv4::diag {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLayerPrefix = "layers.";
constexpr int kMaxLayers = 1 << 16;

}  // namespace

std::string DumpFileName(int layer) {
  return layer < 0 ? "outside.safetensors" : fmt::format("layer-{:03}.safetensors", layer);
}

std::string DumpTensorName(int layer, std::string_view name) {
  return layer < 0 ? std::string(name) : fmt::format("{}{}.{}", kLayerPrefix, layer, name);
}

Result<std::pair<int, std::string>> SplitDumpTensorName(const std::string& full) {
  if (!full.starts_with(kLayerPrefix)) return std::pair(-1, full);
  int layer = -1;
  const char* begin = full.data() + kLayerPrefix.size();
  const char* end = full.data() + full.size();
  const auto [stop, error] = std::from_chars(begin, end, layer);
  if (error != std::errc() || stop == end || *stop != '.' || stop + 1 == end || layer < 0 ||
      layer >= kMaxLayers) {
    return Error(InvalidArgument(fmt::format("tensor {}: wanted layers.<number>.<name>", full)));
  }
  return std::pair(layer, std::string(stop + 1, end));
}

Result<std::vector<std::string>> SafetensorsIn(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> files;
  fs::directory_iterator entries(directory, error);
  if (error) return Error(NotFound(fmt::format("dump {}: {}", directory, error.message())));
  for (const auto& entry : entries) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace dsv4::diag
