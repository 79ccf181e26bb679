// Scans of stored bytes for values that are no numbers, and for copies.
#include "diag/checks/tensors/stored_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>

namespace dsv4::diag {
namespace {

constexpr int64_t kReadWhole = int64_t{1} << 30;
constexpr int64_t kStride = int64_t{64} << 10;
constexpr int64_t kChunk = int64_t{4} << 10;
constexpr int64_t kCompared = int64_t{64} << 20;

// Index of the first of these elements whose bits under `mask` are all set, as those of no number are.
template <typename Bits>
std::optional<int64_t> FirstWith(std::span<const std::byte> bytes, Bits mask) {
  const auto count = static_cast<int64_t>(bytes.size() / sizeof(Bits));
  constexpr int64_t kBlock = 1024;  // A block is looked through without a branch.
  const auto at = [&](int64_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    return bits;
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    bool found = false;
    for (int64_t i = begin; i < end; ++i) found |= (at(i) & mask) == mask;
    for (int64_t i = begin; found && i < end; ++i) {
      if ((at(i) & mask) == mask) return i;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> FirstNonNumber(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return FirstWith<uint32_t>(bytes, 0x7F800000U);
    case DType::kF16:
      return FirstWith<uint16_t>(bytes, uint16_t{0x7C00});
    case DType::kBF16:
      return FirstWith<uint16_t>(bytes, uint16_t{0x7F80});
    case DType::kF8E4M3:
      return FirstWith<uint8_t>(bytes, uint8_t{0x7F});
    case DType::kF8E8M0:
      return FirstWith<uint8_t>(bytes, uint8_t{0xFF});
    default:
      return std::nullopt;
  }
}

// Numbers in one row that are not all the same: norms, sinks, biases, offsets. Those of pictures and of n-grams may be alike.
bool IsDistinctVector(const io::StoredTensor& tensor) {
  constexpr int64_t kFewest = 3;
  const std::string_view name = tensor.name;
  const auto size = static_cast<size_t>(ElementBytes(*tensor.dtype));
  if (tensor.dims.size() != 1 || tensor.dims[0] < kFewest || name.ends_with("_vl") ||
      name.find("engram") != std::string_view::npos)
    return false;
  for (size_t at = size; at + size <= tensor.bytes.size(); at += size) {
    if (std::memcmp(tensor.bytes.data() + at, tensor.bytes.data(), size) != 0) return true;
  }
  return false;
}

bool MayBeCopied(const io::StoredTensor& tensor) {
  const std::string_view name = tensor.name;
  const auto says = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (says("scale") && !says("hc_")) return false;
  if (*tensor.dtype == DType::kI32 || *tensor.dtype == DType::kI64) return false;
  if (tensor.dims.size() < 2) return IsDistinctVector(tensor);
  if (static_cast<int64_t>(tensor.bytes.size()) < kChunk) return false;
  if (!says("engram") && (says("embed") || says("head") || says("tok_emb"))) return false;
  const std::byte first = tensor.bytes[0];
  return std::any_of(tensor.bytes.begin(), tensor.bytes.begin() + kChunk,
                     [&](std::byte other) { return other != first; });
}

}  // namespace

std::vector<Hole> LookForNonNumbers(const model::ModelWeights& weights,
                                    const model::ResolvedCheckpoint& resolved) {
  std::vector<Hole> found;
  for (const auto& [read, layer] : TensorsRead(weights, resolved)) {
    const io::StoredTensor& tensor = *read;
    // Scales of activations are looked at by themselves.
    if (!tensor.dtype || tensor.name.ends_with("input_scale")) continue;
    const std::span<const std::byte> bytes = tensor.bytes;
    const auto size = static_cast<int64_t>(bytes.size());
    const auto look = [&, place = layer](int64_t begin, int64_t length) {
      const auto part = bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(length));
      const std::optional<int64_t> at = FirstNonNumber(part, *tensor.dtype);
      if (!at) return false;
      const int64_t element = begin / ElementBytes(*tensor.dtype) + *at;
      const int64_t columns = tensor.dims.empty() ? 1 : std::max<int64_t>(tensor.dims.back(), 1);
      found.push_back({place, tensor.name,
                       fmt::format("holds NaN or infinity, first in row {}, column {}", element / columns,
                                   element % columns)});
      return true;
    };
    bool has_found = look(0, std::min(size, kReadWhole));
    for (int64_t begin = kReadWhole; begin < size && !has_found; begin += kStride)
      has_found = look(begin, std::min(kChunk, size - begin));
  }
  return found;
}

std::vector<Hole> LookForCopies(const model::ModelWeights& weights,
                                const model::ResolvedCheckpoint& resolved) {
  std::vector<Hole> found;
  std::multimap<std::tuple<DType, int64_t, size_t>, const io::StoredTensor*> seen;
  for (const auto& [read, layer] : TensorsRead(weights, resolved)) {
    const io::StoredTensor& tensor = *read;
    if (!tensor.dtype || !MayBeCopied(tensor)) continue;
    const std::string_view head(reinterpret_cast<const char*>(tensor.bytes.data()),
                                std::min(tensor.bytes.size(), static_cast<size_t>(kChunk)));
    const std::tuple key(*tensor.dtype, tensor.dims.back(), std::hash<std::string_view>()(head));
    const auto [first, last] = seen.equal_range(key);
    const auto copy = std::find_if(first, last, [&](const auto& entry) {
      const auto size =
          static_cast<size_t>(std::min({static_cast<int64_t>(tensor.bytes.size()),
                                        static_cast<int64_t>(entry.second->bytes.size()), kCompared}));
      return std::memcmp(tensor.bytes.data(), entry.second->bytes.data(), size) == 0;
    });
    if (copy != last)
      found.push_back({layer, tensor.name, fmt::format("has the bytes of {}", copy->second->name)});
    seen.emplace(key, &tensor);
  }
  return found;
}

}  // namespace dsv4::diag
