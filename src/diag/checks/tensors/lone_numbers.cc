// The largest and the next number of each tensor, by their bits.
#include "diag/checks/tensors/lone_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "formats/number_formats.h"

namespace dsv4::diag {
namespace {

constexpr double kTimesNext = 10;
constexpr double kTimesLeast = 4096;
constexpr int64_t kFewNumbers = 64;     // A tensor of fewer is compared with those of its name.
constexpr int64_t kFewestNumbers = 24;  // All these together.
constexpr size_t kReadBytes = size_t{1} << 30;

struct Largest {
  double value = 0;
  double next = 0;
  int64_t index = 0;
};

// Bits without the sign grow with the magnitude.
template <typename Bits>
Largest FindLargest(std::span<const std::byte> bytes, double (*number)(Bits)) {
  constexpr Bits kMask = static_cast<Bits>(~Bits{0}) >> 1;
  constexpr int64_t kBlock = 1024;  // A block is looked through without a branch.
  const auto count = static_cast<int64_t>(bytes.size() / sizeof(Bits));
  const auto at = [&](int64_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    return static_cast<Bits>(bits & kMask);
  };
  Bits largest = 0;
  Bits next = 0;
  int64_t index = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    Bits most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, at(i));
    for (int64_t i = begin; most > next && i < end; ++i) {
      if (at(i) > largest) {
        next = largest;
        largest = at(i);
        index = i;
      } else {
        next = std::max(next, at(i));
      }
    }
  }
  return {number(largest), number(next), index};
}

Largest LargestOf(const io::StoredTensor& tensor) {
  const auto bytes = tensor.bytes.subspan(0, std::min(tensor.bytes.size(), kReadBytes));
  switch (*tensor.dtype) {
    case DType::kF32:
      return FindLargest<uint32_t>(bytes, [](uint32_t bits) {
        float value = 0;
        std::memcpy(&value, &bits, sizeof(value));
        return double{value};
      });
    case DType::kF16:
      return FindLargest<uint16_t>(bytes, [](uint16_t bits) { return double{FloatFromF16(bits)}; });
    case DType::kBF16:
      return FindLargest<uint16_t>(bytes, [](uint16_t bits) { return double{FloatFromBf16(bits)}; });
    default:
      return {};
  }
}

int64_t NumNumbers(const io::StoredTensor& tensor) {
  return static_cast<int64_t>(tensor.bytes.size()) / ElementBytes(*tensor.dtype);
}

// The least gain of a norm, where it is next to nothing beside all others; empty otherwise.
std::string SmallComplaint(const io::StoredTensor& tensor) {
  if (tensor.dims.size() != 1 || !tensor.name.ends_with("norm.weight") || *tensor.dtype != DType::kBF16 ||
      NumNumbers(tensor) < kFewNumbers)
    return {};
  const auto number = [&](size_t i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
    return std::abs(double{FloatFromBf16(bits)});
  };
  size_t least = 0;
  double next = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < static_cast<size_t>(NumNumbers(tensor)); ++i) {
    const bool is_less = number(i) < number(least);
    next = std::min(next, number(is_less ? least : i));
    if (is_less) least = i;
  }
  if (number(least) * kTimesLeast >= next) return {};
  return fmt::format("holds {:.3g} in column {}, where the next least is {:.3g}: was a bit flipped?",
                     number(least), least, next);
}

// The name without its numbers, so that those of all layers are one.
std::string Kind(std::string name) {
  std::erase_if(name, [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
  return name;
}

}  // namespace

std::vector<Hole> LookForLoneNumbers(const model::ModelWeights& weights,
                                     const model::ResolvedCheckpoint& resolved) {
  struct Entry {
    const ReadTensor read;
    Largest largest;
  };
  std::map<std::string, std::vector<Entry>> kinds;
  std::vector<Hole> found;
  for (const ReadTensor& read : TensorsRead(weights, resolved)) {
    const io::StoredTensor& tensor = *read.tensor;
    const bool is_scale =
        tensor.name.find("scale") != std::string::npos && tensor.name.find("hc_") == std::string::npos;
    if (!tensor.dtype || is_scale || tensor.bytes.empty()) continue;
    if (std::string text = SmallComplaint(tensor); !text.empty())
      found.push_back({read.layer, tensor.name, std::move(text)});
    const bool is_small = NumNumbers(tensor) < kFewNumbers;
    kinds[is_small ? Kind(tensor.name) : tensor.name].push_back({read, LargestOf(tensor)});
  }
  for (const auto& [kind, entries] : kinds) {
    const auto top = std::ranges::max_element(entries, {}, [](const Entry& e) { return e.largest.value; });
    int64_t count = 0;
    double next = top->largest.next;
    for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
      count += NumNumbers(*entry->read.tensor);
      if (entry != top) next = std::max(next, entry->largest.value);
    }
    if (count < kFewestNumbers || next == 0 || !(top->largest.value > kTimesNext * next)) continue;
    const io::StoredTensor& tensor = *top->read.tensor;
    const int64_t columns = std::max<int64_t>(tensor.dims.back(), 1);
    found.push_back(
        {top->read.layer, tensor.name,
         fmt::format("holds {:.3g} in row {}, column {}, {:.3g} times the next largest: was a bit "
                     "flipped?",
                     top->largest.value, top->largest.index / columns, top->largest.index % columns,
                     top->largest.value / next)});
  }
  return found;
}

}  // namespace dsv4::diag
