// Generators of random tensor bytes: tables by format, seeds by tensor name.
#include "model/synthetic/synthetic_numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "formats/number_formats.h"

namespace dsv4::model {
namespace {

// Tensors are filled with random pieces of a table of normal numbers, which is as fast as copying memory. The
// table is long enough that no two rows of a layer are alike in practice.
constexpr size_t kTableElements = size_t{1} << 16;

// Standard normal numbers. Box-Muller by hand: std::normal_distribution may differ between libraries, and
// checkpoints must not.
std::vector<float> Normals() {
  std::mt19937_64 generator(0x5eed);
  std::vector<float> values(kTableElements);
  for (size_t i = 0; i < kTableElements; i += 2) {
    const double u = (static_cast<double>(generator() >> 11) + 1) * 0x1p-53;
    const double angle = 2 * 3.14159265358979323846 * static_cast<double>(generator() >> 11) * 0x1p-53;
    const double radius = std::sqrt(-2 * std::log(u));
    values[i] = static_cast<float>(radius * std::cos(angle));
    values[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return values;
}

template <typename Encode>
std::vector<std::byte> Encoded(std::span<const float> normals, Encode encode) {
  using Code = decltype(encode(0.0F));
  static_assert(std::is_trivially_copyable_v<Code>);
  std::vector<std::byte> bytes(normals.size() * sizeof(Code));
  for (size_t i = 0; i < normals.size(); ++i) {
    const Code code = encode(normals[i]);
    std::memcpy(bytes.data() + i * sizeof(Code), &code, sizeof(Code));
  }
  return bytes;
}

std::vector<std::byte> MakeTable(std::span<const float> normals, const SyntheticTensor& tensor) {
  const auto sigma = static_cast<float>(tensor.sigma);
  if (tensor.four_bit) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < normals.size(); i += 2) {
      bytes.push_back(static_cast<std::byte>(
          PackE2m1(E2m1FromFloat(normals[i] * sigma), E2m1FromFloat(normals[i + 1] * sigma))));
    }
    return bytes;
  }
  switch (tensor.spec.dtype) {
    case DType::kF32:
      return Encoded(normals, [&](float z) { return z * sigma; });
    case DType::kBF16:
      return Encoded(normals, [&](float z) { return Bf16FromFloat(z * sigma); });
    default:
      return Encoded(normals, [&](float z) { return E4m3FromFloat(z * sigma); });
  }
}

std::tuple<DType, bool, float> TableKey(const SyntheticTensor& tensor) {
  return {tensor.spec.dtype, tensor.four_bit, static_cast<float>(tensor.sigma)};
}

uint64_t SeedOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325U ^ (seed * 0x9e3779b97f4a7c15U);
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;  // FNV-1a.
  return hash;
}

void FillFromTable(std::span<const std::byte> table, std::mt19937_64& random, std::span<std::byte> out) {
  constexpr size_t kRun = 512;
  for (size_t done = 0; done < out.size();) {
    const size_t offset = random() % (table.size() / 8) * 8;
    const size_t count = std::min({kRun, table.size() - offset, out.size() - done});
    std::memcpy(out.data() + done, table.data() + offset, count);
    done += count;
  }
}

template <typename T, typename Next>
void ForEach(std::span<std::byte> piece, Next next) {
  for (size_t at = 0; at + sizeof(T) <= piece.size(); at += sizeof(T)) {
    const T value = next();
    std::memcpy(piece.data() + at, &value, sizeof(T));
  }
}

// Eight bytes a draw, which takes longer than all else: a byte is `next` of eight random bits.
template <typename Next>
void FillBytes(std::span<std::byte> piece, std::mt19937_64& random, Next next) {
  uint64_t bits = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    bits = i % sizeof(bits) == 0 ? random() : bits >> 8;
    piece[i] = static_cast<std::byte>(next(static_cast<uint8_t>(bits)));
  }
}

// Evenly spread ids from a random first one: a row never names an expert twice.
void FillExpertIds(const SyntheticTensor& tensor, std::mt19937_64& random, std::span<std::byte> piece) {
  const int64_t stride = std::max<int64_t>(1, tensor.limit / tensor.row);
  int64_t first = 0;
  int64_t column = 0;
  ForEach<int64_t>(piece, [&] {
    if (column == 0) first = static_cast<int64_t>(random() % static_cast<uint64_t>(tensor.limit));
    const int64_t id = (first + column * stride) % tensor.limit;
    column = (column + 1) % tensor.row;
    return id;
  });
}

const std::array<uint8_t, 8>& NvFp4ScaleCodes() {
  static const std::array<uint8_t, 8> codes = [] {
    std::array<uint8_t, 8> made = {};
    for (size_t i = 0; i < made.size(); ++i) made[i] = E4m3FromFloat(16.0F + 2.0F * static_cast<float>(i));
    return made;
  }();
  return codes;
}

}  // namespace

CodeTables::CodeTables(std::span<const SyntheticTensor> tensors) {
  const std::vector<float> normals = Normals();
  for (const SyntheticTensor& tensor : tensors) {
    if (tensor.fill != SyntheticFill::kNormal) continue;
    std::vector<std::byte>& table = tables_[TableKey(tensor)];
    if (table.empty()) table = MakeTable(normals, tensor);
  }
}

std::span<const std::byte> CodeTables::For(const SyntheticTensor& tensor) const {
  const auto found = tables_.find(TableKey(tensor));
  DSV4_CHECK(found != tables_.end()) << tensor.spec.name;
  return found->second;
}

TensorBytes::TensorBytes(const CodeTables& tables, uint64_t seed, const SyntheticTensor& tensor)
    : tensor_(tensor), random_(SeedOf(seed, tensor.spec.name)), remaining_(tensor.spec.num_bytes()) {
  if (tensor.fill == SyntheticFill::kNormal) table_ = tables.For(tensor);
}

int64_t TensorBytes::next_size() const {
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  // Pieces hold whole rows of expert ids; all other tensors have no structure wider than eight bytes.
  const int64_t unit = tensor_.fill == SyntheticFill::kExpertIds ? tensor_.row * 8 : 8;
  return std::min(remaining_, kPieceBytes / unit * unit);
}

void TensorBytes::Next(std::span<std::byte> piece) {
  DSV4_CHECK(static_cast<int64_t>(piece.size()) == next_size()) << piece.size() << " of " << next_size();
  remaining_ -= static_cast<int64_t>(piece.size());
  const auto sigma = static_cast<float>(tensor_.sigma);
  switch (tensor_.fill) {
    case SyntheticFill::kNormal:
      return FillFromTable(table_, random_, piece);
    case SyntheticFill::kOnes:
      if (tensor_.spec.dtype == DType::kF32) return ForEach<float>(piece, [] { return 1.0F; });
      return ForEach<uint16_t>(piece, [] { return Bf16FromFloat(1.0F); });
    case SyntheticFill::kConstant:
      return ForEach<float>(piece, [&] { return sigma; });
    case SyntheticFill::kE8m0Scales: {
      const int exponent = static_cast<int>(std::lround(std::log2(tensor_.sigma)));
      return FillBytes(piece, random_, [&](uint8_t bits) { return exponent + kE8m0Bias - (bits & 1); });
    }
    case SyntheticFill::kF32Scales:
      return ForEach<float>(piece, [&] { return (random_() & 1) != 0 ? sigma : sigma / 2; });
    case SyntheticFill::kNvFp4Scales: {
      const std::array<uint8_t, 8>& codes = NvFp4ScaleCodes();
      return FillBytes(piece, random_, [&](uint8_t bits) { return codes[bits % 8]; });
    }
    case SyntheticFill::kExpertIds:
      return FillExpertIds(tensor_, random_, piece);
  }
}

}  // namespace dsv4::model
