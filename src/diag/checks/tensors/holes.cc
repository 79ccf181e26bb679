// Search for runs of zero bytes and empty tables in a checkpoint's tensors.
#include "diag/checks/tensors/holes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "base/text.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kReadWhole = int64_t{8} << 30;
constexpr int64_t kSampledStride = int64_t{64} << 10;
// Shorter runs happen: 64 bf16 numbers that are exactly 0, 1024 codes of 8 bits or 2048 of 4, scales of 128
// blocks.
constexpr int64_t kPlainRun = 128;
constexpr int64_t kCodeRun = 1024;
constexpr int64_t kScaleRun = 128;
// Rows of embedding and head behind the last token belong to no token.
constexpr int64_t kPaddingShare = 32;

bool IsZero(const std::byte* data, int64_t count) {
  // The first 8 bytes decide most of the time.
  uint64_t word = 0;
  if (count >= 8) std::memcpy(&word, data, 8);
  return word == 0 && std::all_of(data, data + count, [](std::byte b) { return b == std::byte{0}; });
}

// 0: the tensor's zeros say nothing.
int64_t MinRun(const io::StoredTensor& tensor) {
  if (!tensor.dtype) return 0;
  switch (*tensor.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return kPlainRun;
    case DType::kI32:
    case DType::kI64:
      return 0;
    default:
      return tensor.name.find("scale") != std::string::npos ? kScaleRun : kCodeRun;
  }
}

std::string RunText(const io::StoredTensor& tensor, const ZeroRuns& runs) {
  const auto size = static_cast<int64_t>(tensor.bytes.size());
  std::string text = fmt::format("has {} of {} in long runs of zeros", std::min(runs.num_bytes, size),
                                 Counted(size, "byte"));
  const int64_t row_bytes = tensor.dims.empty() || tensor.dims[0] == 0 ? 0 : size / tensor.dims[0];
  if (row_bytes > 0 && runs.longest >= row_bytes) {
    text += fmt::format(
        ", rows {} to {} among them", (runs.begin + row_bytes - 1) / row_bytes,
        std::max((runs.begin + runs.longest) / row_bytes - 1, (runs.begin + row_bytes - 1) / row_bytes));
  } else {
    text += fmt::format(", {} from byte {} on", runs.longest, runs.begin);
  }
  return text + ": was it ever written?";
}

// Every row of a hash table names other experts.
std::string TableComplaint(const TensorView& table) {
  const int64_t rows = table.shape[0];
  const int64_t width = table.shape[1];
  const auto* ids = table.as<const int32_t>();
  int64_t num_repeating = 0;
  int64_t first = -1;
  bool alike = rows > 1;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const int32_t> chosen(ids + row * width, static_cast<size_t>(width));
    const bool repeats = std::set<int32_t>(chosen.begin(), chosen.end()).size() < chosen.size();
    if (repeats && num_repeating++ == 0) first = row;
    alike = alike && std::equal(chosen.begin(), chosen.end(), ids);
  }
  if (alike) return fmt::format("sends all {} to the same experts", Counted(rows, "token id"));
  if (num_repeating == 0) return {};
  return fmt::format("names an expert twice for {} of {}, the first is {}", num_repeating,
                     Counted(rows, "token id"), first);
}

// The layer in "model.layers.12.attn.wo_b.weight"; -1 without one.
int LayerOf(const std::string& name) {
  constexpr std::string_view kPrefix = "layers.";
  const size_t at = name.find(kPrefix);
  if (at == std::string::npos) return -1;
  int layer = -1;
  std::from_chars(name.data() + at + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

std::vector<ReadTensor> TensorsRead(const model::ModelWeights& weights,
                                    const model::ResolvedCheckpoint& resolved) {
  const std::set<const io::StoredTensor*> skipped(resolved.skipped_tensors.begin(),
                                                  resolved.skipped_tensors.end());
  std::vector<ReadTensor> tensors;
  for (const io::StoredTensor& tensor : weights.checkpoint->tensors()) {
    const int layer = LayerOf(tensor.name);
    if (!skipped.contains(&tensor) && layer < static_cast<int>(weights.layers.size()))
      tensors.push_back({&tensor, layer});
  }
  return tensors;
}

ZeroRuns FindZeroRuns(std::span<const std::byte> bytes, int64_t min_run, int64_t stride) {
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t chunk = std::max<int64_t>(min_run / 2, 1);
  ZeroRuns runs;
  for (int64_t at = 0; at + chunk <= size; at += std::max(stride, chunk)) {
    if (!IsZero(bytes.data() + at, chunk)) continue;
    int64_t begin = at;
    int64_t end = at + chunk;
    while (begin > 0 && bytes[static_cast<size_t>(begin - 1)] == std::byte{0}) --begin;
    while (end < size && bytes[static_cast<size_t>(end)] == std::byte{0}) ++end;
    if (end - begin >= min_run) {
      runs.num_bytes += end - begin;
      if (end - begin > runs.longest) {
        runs.longest = end - begin;
        runs.begin = begin;
      }
    }
    at = std::max(at, (end - 1) / chunk * chunk);
  }
  return runs;
}

Holes LookForHoles(const model::ModelWeights& weights, const model::ResolvedCheckpoint& resolved) {
  Holes holes;
  const auto padded = [&](const io::StoredTensor& tensor) {
    return tensor.name == resolved[model::TensorId::kEmbed].linear.weight_tensor->name ||
           (!resolved.head_is_tied &&
            tensor.name == resolved[model::TensorId::kHead].linear.weight_tensor->name);
  };
  int64_t num_bytes = 0;
  for (const auto& [read, layer] : TensorsRead(weights, resolved)) {
    const io::StoredTensor& tensor = *read;
    const int64_t min_run = MinRun(tensor);
    const auto size = static_cast<int64_t>(tensor.bytes.size());
    if (min_run == 0 || size < 2 * min_run) continue;
    const int64_t stride = num_bytes > kReadWhole ? kSampledStride : 0;
    num_bytes += size;
    const ZeroRuns runs = FindZeroRuns(tensor.bytes, min_run, stride);
    if (runs.longest == 0) continue;
    if (padded(tensor) && runs.begin + runs.longest == size && runs.num_bytes == runs.longest &&
        runs.longest <= size / kPaddingShare) {
      continue;
    }
    holes.found.push_back({layer, tensor.name, RunText(tensor, runs)});
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const model::LayerWeights& layer = weights.layers[i];
    const auto complain = [&](const char* name, std::string text) {
      holes.found.push_back({static_cast<int>(i), fmt::format("layers.{}.{}", i, name), std::move(text)});
    };
    if (!layer.tid2eid.is_null() && layer.tid2eid.shape[1] > 0) {
      if (std::string text = TableComplaint(layer.tid2eid); !text.empty())
        complain("ffn.gate.tid2eid", std::move(text));
    }
    if (layer.gate_bias.is_null()) continue;
    const std::span<const float> bias(layer.gate_bias.as<const float>(),
                                      static_cast<size_t>(layer.gate_bias.num_elements()));
    if (std::all_of(bias.begin(), bias.end(), [](float x) { return x == 0; }))
      complain("ffn.gate.bias", "is all zero: balancing leaves no bias so");
  }
  holes.evidence = fmt::format(
      "{} looked through for parts that were never written{}", Counted(num_bytes, "byte"),
      num_bytes > kReadWhole
          ? fmt::format(", every {} KiB behind the first {} GiB", kSampledStride >> 10, kReadWhole >> 30)
          : "");
  return holes;
}

}  // namespace dsv4::diag
