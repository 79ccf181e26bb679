// Tensors and weights on the device, for tests that call the CUDA backend's table directly, and what many of
// them check.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"

namespace dsv4::testing {

// On the device, with what it borrows.
struct DeviceTensor {
  Buffer buffer;
  TensorView view;
};

class Device {
 public:
  explicit Device(const backend::CudaOptions& options = {}) {
    auto made = backend::MakeCudaBackend(options);
    DSV4_CHECK(made.has_value()) << made.error().ToString();
    backend_ = std::move(*made);
  }

  const ops::Backend& backend() const { return backend_; }
  const ops::OpTable& table() const { return backend_.table; }
  ops::OpContext& context() { return *backend_.context; }
  Memory& memory() { return context().memory(); }
  bool runs_hopper_code() const { return backend::RunsHopperCode(backend_); }
  int64_t launches() const { return backend::CountersOf(backend_).launches; }
  int64_t replayed_lists() const { return backend::CountersOf(backend_).replayed_lists; }

  DeviceTensor New(DType dtype, const Shape& shape) {
    const auto num_bytes = static_cast<size_t>(shape.num_elements() * ElementBytes(dtype));
    auto buffer = memory().Allocate(num_bytes);
    DSV4_CHECK(buffer.has_value()) << buffer.error().ToString();
    const TensorView view = TensorView::Contiguous(buffer->data(), dtype, shape, memory().device());
    return {std::move(*buffer), view};
  }
  template <typename T>
  DeviceTensor Copy(DType dtype, const Shape& shape, const std::vector<T>& values) {
    DeviceTensor tensor = New(dtype, shape);
    const Status status =
        memory().CopyFromHost(tensor.view.data, values.data(), values.size() * sizeof(T), nullptr);
    DSV4_CHECK(status.ok()) << status.ToString();
    return tensor;
  }
  std::vector<std::byte> Bytes(const TensorView& view) {
    std::vector<std::byte> bytes(static_cast<size_t>(view.num_bytes()));
    const Status status = memory().CopyToHost(bytes.data(), view.data, bytes.size(), nullptr);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return bytes;
  }
  Weight Prepare(const Weight& source) {
    Weight prepared;
    const Status status = table().prepare_weight(context(), {.source = &source, .prepared = &prepared});
    DSV4_CHECK(status.ok()) << status.ToString();
    return prepared;
  }

 private:
  ops::Backend backend_;
};

inline std::vector<float> Normals(int64_t count, uint32_t seed, float sigma = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<uint16_t> Bf16s(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), Bf16FromFloat);
  return bits;
}

enum class Format : uint8_t {
  kBf16,
  kFp8,
  kFp8NaN,
  kMxFp4,
  kNvFp4,
  kNvFp4Divides,
  kMxFp8,  // V4.1's: blocks of 32 x 32, and activations rounded by 32 columns,
  kMxFp8NaN,
  kFineMxFp4,  // as in front of these,
  kFineFp8
};
inline std::string FormatText(Format format) { return "format " + std::to_string(static_cast<int>(format)); }
inline constexpr Format kFormats[] = {
    Format::kBf16,         Format::kFp8,   Format::kFp8NaN,   Format::kMxFp4,     Format::kNvFp4,
    Format::kNvFp4Divides, Format::kMxFp8, Format::kMxFp8NaN, Format::kFineMxFp4, Format::kFineFp8};

// A random weight in host memory, its activations rounded where the release rounds them. kFp8NaN, kMxFp8NaN:
// one NaN, activations as they are.
struct HostWeight {
  std::vector<uint16_t> plain;
  QuantizedMatrix matrix;
  Weight weight;  // Borrows from the others.
};

inline HostWeight RandomHostWeight(Format format, int64_t rows, int64_t cols, uint32_t seed) {
  const std::vector<float> values = Normals(rows * cols, seed, 0.5F);
  HostWeight result;
  Weight& weight = result.weight;
  if (format == Format::kBf16) {
    result.plain = Bf16s(values);
    weight.rows = rows;
    weight.cols = cols;
    weight.data = TensorView::Contiguous(result.plain.data(), DType::kBF16, {rows, cols});
    return result;
  }
  QuantizedMatrix& matrix = result.matrix;
  switch (format) {
    case Format::kFp8:
    case Format::kFp8NaN:
    case Format::kFineFp8:
      matrix = QuantizeFp8Block(values, rows, cols, 128, 128);
      break;
    case Format::kMxFp8:
    case Format::kMxFp8NaN:
      matrix = QuantizeFp8Block(values, rows, cols, 32, 32);
      break;
    case Format::kMxFp4:
    case Format::kFineMxFp4:
      matrix = QuantizeMxFp4(values, rows, cols);
      break;
    default:
      matrix = QuantizeNvFp4(values, rows, cols);
  }
  if (format == Format::kFp8NaN || format == Format::kMxFp8NaN)
    matrix.data[static_cast<size_t>(cols + 77)] = 0x7F;
  weight = matrix.View();
  if (format == Format::kNvFp4Divides) {
    weight.global_scale = 1.0F / weight.global_scale;
    weight.global_scale_divides = true;
  }
  if (format == Format::kFp8 || format == Format::kMxFp4) weight.activation = ActivationQuant::kFp8Block;
  if (format == Format::kMxFp8 || format == Format::kFineMxFp4 || format == Format::kFineFp8)
    weight.activation = ActivationQuant::kFp8Columns32;
  return result;
}

inline Weight RandomWeight(Device& device, Format format, int64_t rows, int64_t cols, uint32_t seed) {
  return device.Prepare(RandomHostWeight(format, rows, cols, seed).weight);
}

struct Cut {
  int64_t begin;
  int64_t end;
};

// `count` experts of [width, dim] matrices; from number `different` on they are the first ones again.
inline std::vector<ops::ExpertWeights> RandomExperts(Device& device, Format format, int64_t count,
                                                     int64_t dim, int64_t width, int64_t different) {
  std::vector<ops::ExpertWeights> experts;
  for (uint32_t e = 0; e < different; ++e) {
    experts.push_back({.w1 = RandomWeight(device, format, width, dim, 20 + e),
                       .w2 = RandomWeight(device, format, dim, width, 40 + e),
                       .w3 = RandomWeight(device, format, width, dim, 60 + e)});
  }
  while (std::ssize(experts) < count)
    experts.push_back(experts[experts.size() % static_cast<size_t>(different)]);
  return experts;
}

// Cuts of a batch that take every kernel: one token, a few, some tens, many.
inline std::vector<Cut> CutsOfAllSizes(int64_t num_tokens) {
  return {{0, 1}, {1, 9}, {9, 60}, {60, num_tokens}};
}

inline TensorView Rows(const TensorView& view, const Cut& cut) { return view.Rows(cut.begin, cut.end); }

// `run(cut)` computes the rows of a cut of y; y in pieces must be y at once. What was there before must not
// matter.
template <typename Run>
void ExpectTheSameInCuts(Device& device, const TensorView& y, const std::vector<Cut>& cuts,
                         const std::string& what, Run&& run) {
  const int64_t num_tokens = y.shape[0];
  Status status = run(Cut{0, num_tokens});
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  const std::vector<std::byte> whole = device.Bytes(y);
  ASSERT_NE(std::count(whole.begin(), whole.end(), std::byte{0}), static_cast<int64_t>(whole.size())) << what;
  const std::vector<std::byte> other(whole.size(), std::byte{0x5A});
  ASSERT_TRUE(device.memory().CopyFromHost(y.data, other.data(), other.size(), nullptr).ok());
  for (const Cut& cut : cuts) {
    status = run(cut);
    ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  }
  const std::vector<std::byte> pieces = device.Bytes(y);
  const auto row_bytes = whole.size() / static_cast<size_t>(num_tokens);
  const auto element = static_cast<size_t>(ElementBytes(y.dtype));
  const auto bits = [element](const std::byte* at) {
    uint64_t value = 0;
    std::memcpy(&value, at, element);
    return value;
  };
  int64_t different = 0;
  std::string first;
  for (size_t t = 0; t < static_cast<size_t>(num_tokens); ++t) {
    if (std::memcmp(&whole[t * row_bytes], &pieces[t * row_bytes], row_bytes) == 0) continue;
    if (different++ > 0) continue;
    size_t elements = 0;
    for (size_t i = 0; i < row_bytes; i += element) {
      const uint64_t at_once = bits(&whole[t * row_bytes + i]);
      const uint64_t in_pieces = bits(&pieces[t * row_bytes + i]);
      if (at_once == in_pieces || ++elements > 1) continue;
      first = "; first token " + std::to_string(t) + ", element " + std::to_string(i / element) + ": bits " +
              std::to_string(at_once) + " at once, " + std::to_string(in_pieces) + " in pieces";
    }
    first += "; " + std::to_string(elements) + " elements of that token";
  }
  EXPECT_EQ(different, 0) << what << ": of " << num_tokens << " tokens" << first;
}
template <typename Run>
void ExpectTheSameInAnyCut(Device& device, const TensorView& y, const std::string& what, Run&& run) {
  ExpectTheSameInCuts(device, y, CutsOfAllSizes(y.shape[0]), what, run);
}

// |got - want| over |want|; infinite where one of them is no number.
inline double RelativeError(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    error += difference * difference;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::isfinite(error) && norm > 0.0 ? std::sqrt(error / norm) : HUGE_VAL;
}

}  // namespace dsv4::testing
