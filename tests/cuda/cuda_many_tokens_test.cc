// Kernels for many tokens against those for few: a token's result is the same bits whatever it shares a call with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"

namespace dsv4::testing {
namespace {

// On the device, with what it borrows.
struct DeviceTensor {
  Buffer buffer;
  TensorView view;
};

class Device {
 public:
  Device() {
    auto made = backend::MakeCudaBackend({});
    DSV4_CHECK(made.has_value()) << made.error().ToString();
    backend_ = std::move(*made);
  }

  const ops::OpTable& table() const { return backend_.table; }
  ops::OpContext& context() { return *backend_.context; }
  Memory& memory() { return context().memory(); }

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

std::vector<float> Normals(int64_t count, uint32_t seed, float sigma = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<uint16_t> Bf16s(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), Bf16FromFloat);
  return bits;
}

enum class Format : uint8_t { kBf16, kFp8, kFp8NaN, kMxFp4, kNvFp4, kNvFp4Divides };
constexpr Format kFormats[] = {Format::kBf16,  Format::kFp8,   Format::kFp8NaN,
                               Format::kMxFp4, Format::kNvFp4, Format::kNvFp4Divides};

// A random weight on the device, its activations rounded where the release rounds them.
Weight RandomWeight(Device& device, Format format, int64_t rows, int64_t cols, uint32_t seed) {
  const std::vector<float> values = Normals(rows * cols, seed, 0.5F);
  if (format == Format::kBf16) {
    const std::vector<uint16_t> bits = Bf16s(values);
    Weight weight;
    weight.rows = rows;
    weight.cols = cols;
    weight.data = TensorView::Contiguous(const_cast<uint16_t*>(bits.data()), DType::kBF16, {rows, cols});
    return device.Prepare(weight);
  }
  QuantizedMatrix matrix = format == Format::kFp8 || format == Format::kFp8NaN
                               ? QuantizeFp8Block(values, rows, cols, 128, 128)
                               : (format == Format::kMxFp4 ? QuantizeMxFp4(values, rows, cols)
                                                           : QuantizeNvFp4(values, rows, cols));
  if (format == Format::kFp8NaN) matrix.data[static_cast<size_t>(cols + 77)] = 0x7F;
  Weight weight = matrix.View();
  if (format == Format::kNvFp4Divides) {
    weight.global_scale = 1.0F / weight.global_scale;
    weight.global_scale_divides = true;
  }
  if (format == Format::kFp8 || format == Format::kMxFp4) weight.activation = ActivationQuant::kFp8Block;
  return device.Prepare(weight);
}

// Cuts that take every kernel: one token, a few, some tens, many.
struct Cut {
  int64_t begin;
  int64_t end;
};
std::vector<Cut> Cuts(int64_t num_tokens) { return {{0, 1}, {1, 9}, {9, 60}, {60, num_tokens}}; }

TensorView Rows(const TensorView& view, const Cut& cut) { return view.Rows(cut.begin, cut.end); }

// `run(cut)` computes the rows of a cut of y; y in pieces must be y at once. What was there before must not matter.
template <typename Run>
void ExpectTheSameInAnyCut(Device& device, const TensorView& y, const std::string& what, Run&& run) {
  const int64_t num_tokens = y.shape[0];
  Status status = run(Cut{0, num_tokens});
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  const std::vector<std::byte> whole = device.Bytes(y);
  ASSERT_NE(std::count(whole.begin(), whole.end(), std::byte{0}), static_cast<int64_t>(whole.size())) << what;
  const std::vector<std::byte> other(whole.size(), std::byte{0x5A});
  ASSERT_TRUE(device.memory().CopyFromHost(y.data, other.data(), other.size(), nullptr).ok());
  for (const Cut& cut : Cuts(num_tokens)) {
    status = run(cut);
    ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  }
  const std::vector<std::byte> pieces = device.Bytes(y);
  const auto row_bytes = whole.size() / static_cast<size_t>(num_tokens);
  int64_t different = 0;
  for (size_t t = 0; t < static_cast<size_t>(num_tokens); ++t)
    different += std::memcmp(&whole[t * row_bytes], &pieces[t * row_bytes], row_bytes) != 0 ? 1 : 0;
  EXPECT_EQ(different, 0) << what << ": of " << num_tokens << " tokens";
}

TEST(CudaManyTokens, LinearGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 331;
  for (const Format format : kFormats) {
    for (const int64_t cols : {int64_t{1024}, int64_t{1536}, int64_t{4096}}) {
      for (const int64_t rows : {int64_t{200}, int64_t{65}}) {
        const Weight weight = RandomWeight(device, format, rows, cols, 3);
        const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, cols}, Bf16s(Normals(kTokens * cols, 4)));
        for (const DType dtype : {DType::kBF16, DType::kF32}) {
          const DeviceTensor y = device.New(dtype, {kTokens, rows});
          ExpectTheSameInAnyCut(
              device, y.view,
              "format " + std::to_string(static_cast<int>(format)) + ", " + y.view.shape.ToString() + " of " +
                  std::to_string(cols) + ", " + std::string(DTypeName(dtype)),
              [&](const Cut& cut) {
                return device.table().linear(
                    device.context(), {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
              });
        }
      }
    }
  }
}

TEST(CudaManyTokens, GroupedLinearGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 200;
  constexpr int64_t kGroups = 3;
  constexpr int64_t kRank = 128;
  constexpr int64_t kWidth = 1024;
  for (const Format format : {Format::kBf16, Format::kFp8NaN, Format::kNvFp4}) {
    const Weight weight = RandomWeight(device, format, kGroups * kRank, kWidth, 5);
    const DeviceTensor x =
        device.Copy(DType::kBF16, {kTokens, kGroups, kWidth}, Bf16s(Normals(kTokens * kGroups * kWidth, 6)));
    const DeviceTensor y = device.New(DType::kBF16, {kTokens, kGroups, kRank});
    ExpectTheSameInAnyCut(
        device, y.view, "format " + std::to_string(static_cast<int>(format)), [&](const Cut& cut) {
          return device.table().grouped_linear(
              device.context(), {.x = Rows(x.view, cut), .weight = &weight, .y = Rows(y.view, cut)});
        });
  }
}

TEST(CudaManyTokens, RoutedExpertsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 700;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kDim = 1024;
  constexpr int64_t kWidth = 768;
  constexpr int64_t kExperts = 7;
  std::mt19937 random(9);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kTokens * kTopK; ++i) {
    // One expert that most choose, one that nobody does.
    const auto expert = static_cast<int32_t>(random() % (2 * kExperts));
    chosen.push_back(expert >= kExperts || expert == 5 ? 2 : expert);
  }
  const DeviceTensor indices = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
  const DeviceTensor routing = device.Copy(DType::kF32, {kTokens, kTopK}, Normals(kTokens * kTopK, 10, 0.3F));
  const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, kDim}, Bf16s(Normals(kTokens * kDim, 11)));
  const DeviceTensor y = device.New(DType::kF32, {kTokens, kDim});
  for (const Format format : kFormats) {
    std::vector<ops::ExpertWeights> experts;
    for (uint32_t e = 0; e < kExperts; ++e) {
      experts.push_back({.w1 = RandomWeight(device, format, kWidth, kDim, 20 + e),
                         .w2 = RandomWeight(device, format, kDim, kWidth, 40 + e),
                         .w3 = RandomWeight(device, format, kWidth, kDim, 60 + e)});
    }
    ExpectTheSameInAnyCut(
        device, y.view, "format " + std::to_string(static_cast<int>(format)), [&](const Cut& cut) {
          return device.table().routed_experts(device.context(), {.x = Rows(x.view, cut),
                                                                  .indices = Rows(indices.view, cut),
                                                                  .weights = Rows(routing.view, cut),
                                                                  .experts = experts,
                                                                  .limit = 7.0F,
                                                                  .y = Rows(y.view, cut)});
        });
  }
}

TEST(CudaManyTokens, HyperConnectionsGiveTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 331;
  constexpr int64_t kMult = 4;
  constexpr int64_t kMixRows = (2 + kMult) * kMult;
  for (const int64_t dim : {int64_t{1024}, int64_t{1080}}) {
    const DeviceTensor streams =
        device.Copy(DType::kBF16, {kTokens, kMult, dim}, Bf16s(Normals(kTokens * kMult * dim, 1)));
    const DeviceTensor fn =
        device.Copy(DType::kF32, {kMixRows, kMult * dim}, Normals(kMixRows * kMult * dim, 2, 0.1F));
    const DeviceTensor scale = device.Copy(DType::kF32, {3}, Normals(3, 3));
    const DeviceTensor base = device.Copy(DType::kF32, {kMixRows}, Normals(kMixRows, 4));
    const DeviceTensor u = device.New(DType::kBF16, {kTokens, dim});
    const DeviceTensor post = device.New(DType::kF32, {kTokens, kMult});
    const DeviceTensor comb = device.New(DType::kF32, {kTokens, kMult, kMult});
    const auto mix = [&](const Cut& cut) {
      return device.table().hc_pre(device.context(), {.streams = Rows(streams.view, cut),
                                                      .fn = fn.view,
                                                      .scale = scale.view,
                                                      .base = base.view,
                                                      .u = Rows(u.view, cut),
                                                      .post = Rows(post.view, cut),
                                                      .comb = Rows(comb.view, cut),
                                                      .norm_eps = 1e-6F,
                                                      .hc_eps = 1e-6F,
                                                      .sinkhorn_iters = 20});
    };
    ExpectTheSameInAnyCut(device, u.view, "u", mix);
    ExpectTheSameInAnyCut(device, post.view, "post", mix);
    ExpectTheSameInAnyCut(device, comb.view, "comb", mix);
    const DeviceTensor out = device.New(DType::kBF16, {kTokens, kMult, dim});
    ExpectTheSameInAnyCut(device, out.view, "out", [&](const Cut& cut) {
      return device.table().hc_post(device.context(), {.y = Rows(u.view, cut),
                                                       .residual = Rows(streams.view, cut),
                                                       .post = Rows(post.view, cut),
                                                       .comb = Rows(comb.view, cut),
                                                       .out = Rows(out.view, cut)});
    });
  }
}

// Attention of tokens that follow kFirst others, over a window and compressed entries in pages.
TEST(CudaManyTokens, AttentionGivesTheBitsOfFewTokens) {
  Device device;
  constexpr int64_t kTokens = 150;
  constexpr int64_t kFirst = 1500;
  constexpr int64_t kDim = 512;
  constexpr int64_t kWindow = 128;
  constexpr int64_t kRowsPerPage = 64;
  constexpr int64_t kTopK = 200;
  const DeviceTensor ring =
      device.Copy(DType::kBF16, {kWindow + kTokens, kDim}, Bf16s(Normals((kWindow + kTokens) * kDim, 1)));
  std::vector<DeviceTensor> pages;
  std::vector<void*> page_pointers;
  for (uint32_t i = 0; i * kRowsPerPage * 4 < kFirst + kTokens; ++i) {
    pages.push_back(
        device.Copy(DType::kBF16, {kRowsPerPage, kDim}, Bf16s(Normals(kRowsPerPage * kDim, 100 + i))));
    page_pointers.push_back(pages.back().view.data);
  }
  std::mt19937 random(5);
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<int32_t> entries;
    for (int32_t e = 0; e < (kFirst + t + 1) / 4; ++e) entries.push_back(e);
    std::shuffle(entries.begin(), entries.end(), random);
    entries.resize(kTopK);
    if (t % 3 == 0) std::fill(entries.begin() + 70 + t % 50, entries.end(), -1);
    chosen.insert(chosen.end(), entries.begin(), entries.end());
  }
  const DeviceTensor selected = device.Copy(DType::kI32, {kTokens, kTopK}, chosen);
  for (const int64_t heads : {int64_t{64}, int64_t{24}, int64_t{128}}) {
    const DeviceTensor q =
        device.Copy(DType::kBF16, {kTokens, heads, kDim}, Bf16s(Normals(kTokens * heads * kDim, 2)));
    const DeviceTensor sink = device.Copy(DType::kF32, {heads}, Normals(heads, 3));
    const DeviceTensor o = device.New(DType::kBF16, {kTokens, heads, kDim});
    for (const int64_t ratio : {int64_t{0}, int64_t{4}, int64_t{128}}) {
      ExpectTheSameInAnyCut(
          device, o.view, "heads " + std::to_string(heads) + ", ratio " + std::to_string(ratio),
          [&](const Cut& cut) {
            const ops::AttentionSequence sequence = {
                .token_begin = 0,
                .num_tokens = cut.end - cut.begin,
                .first_position = kFirst + cut.begin,
                .window = {.data = ring.view.data, .capacity = kWindow + kTokens, .width = kDim},
                .entries = {.pages = page_pointers,
                            .rows_per_page = kRowsPerPage,
                            .num_rows = static_cast<int64_t>(pages.size()) * kRowsPerPage,
                            .width = kDim}};
            return device.table().attention(device.context(),
                                            {.q = Rows(q.view, cut),
                                             .sink = sink.view,
                                             .selected = ratio == 4 ? Rows(selected.view, cut) : TensorView(),
                                             .o = Rows(o.view, cut),
                                             .softmax_scale = 0.0442F,
                                             .window_size = kWindow,
                                             .ratio = ratio,
                                             .sequences = std::span(&sequence, 1)});
          });
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
