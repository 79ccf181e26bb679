// CpuOptions::will_read: which bytes of experts it is told of, and when.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace dsv4::backend {
namespace {

constexpr int64_t kDim = 32;
constexpr int64_t kWidth = 16;
constexpr size_t kNumExperts = 40;

struct Experts {
  std::vector<std::vector<float>> numbers;
  std::vector<ops::ExpertWeights> weights;

  Experts() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto make = [&](int64_t rows, int64_t cols) {
      std::vector<float>& values = numbers.emplace_back(static_cast<size_t>(rows * cols));
      for (float& value : values) value = normal(random);
      Weight weight;
      weight.rows = rows;
      weight.cols = cols;
      weight.data = TensorView::Contiguous(static_cast<void*>(values.data()), DType::kF32, {rows, cols});
      return weight;
    };
    for (size_t e = 0; e < kNumExperts; ++e)
      weights.push_back({.w1 = make(kWidth, kDim), .w2 = make(kDim, kWidth), .w3 = make(kWidth, kDim)});
  }
};

// Ranges that were told, call by call.
using Told = std::vector<std::vector<const std::byte*>>;

// The sums of `num_tokens` tokens, of which token t chooses experts choice(t, 0) and choice(t, 1).
template <typename Choice>
std::vector<float> SumsOf(const Experts& experts, int64_t num_tokens, const Choice& choice, Told* told,
                          bool from_disk = true) {
  CpuOptions options{.num_threads = 2};
  if (told != nullptr) {
    options.will_read = [told, from_disk](std::span<const std::span<const std::byte>> ranges) {
      if (ranges.empty()) return from_disk;
      std::vector<const std::byte*>& call = told->emplace_back();
      for (const auto& range : ranges) {
        EXPECT_EQ(range.size(), kDim * kWidth * sizeof(float));
        call.push_back(range.data());
      }
      return from_disk;
    };
  }
  const Result<ops::Backend> backend = MakeCpuBackend(options);
  EXPECT_TRUE(backend.has_value());
  std::vector<float> x(static_cast<size_t>(num_tokens * kDim), 0.5F);
  std::vector<int32_t> indices;
  for (int64_t t = 0; t < num_tokens; ++t) {
    indices.push_back(choice(t, 0));
    indices.push_back(choice(t, 1));
  }
  std::vector<float> weights(indices.size(), 0.25F);
  std::vector<float> y(x.size());
  const Status status = backend->table.routed_experts(
      *backend->context,
      {.x = TensorView::Contiguous(static_cast<void*>(x.data()), DType::kF32, {num_tokens, kDim}),
       .indices = TensorView::Contiguous(static_cast<void*>(indices.data()), DType::kI32, {num_tokens, 2}),
       .weights = TensorView::Contiguous(static_cast<void*>(weights.data()), DType::kF32, {num_tokens, 2}),
       .experts = experts.weights,
       .limit = 10.0F,
       .y = TensorView::Contiguous(static_cast<void*>(y.data()), DType::kF32, {num_tokens, kDim})});
  EXPECT_TRUE(status.ok()) << status.message();
  return y;
}

TEST(WillRead, NamesTheChosenExpertsInTheOrderOfTheKernels) {
  const Experts experts;
  const auto choice = [](int64_t, int k) { return k == 0 ? 7 : 3; };
  Told told;
  const std::vector<float> y = SumsOf(experts, 2, choice, &told);
  const auto data = [&](size_t e, Weight ops::ExpertWeights::*weight) {
    return (experts.weights[e].*weight).data.as<const std::byte>();
  };
  using ops::ExpertWeights;
  const Told want = {{data(3, &ExpertWeights::w1), data(3, &ExpertWeights::w3), data(7, &ExpertWeights::w1),
                      data(7, &ExpertWeights::w3), data(3, &ExpertWeights::w2), data(7, &ExpertWeights::w2)}};
  EXPECT_EQ(told, want);
  EXPECT_EQ(y, SumsOf(experts, 2, choice, nullptr));
}

TEST(WillRead, NothingIsNamedWhereAllAreInMemory) {
  const Experts experts;
  const auto choice = [](int64_t t, int k) { return static_cast<int32_t>((t + 20 * k) % kNumExperts); };
  Told told;
  const std::vector<float> y = SumsOf(experts, 1000, choice, &told, false);
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(y, SumsOf(experts, 1000, choice, &told));
}

TEST(WillRead, OfManyTokensItIsOneGroupAhead) {
  const Experts experts;
  const auto choice = [](int64_t t, int k) { return static_cast<int32_t>((t + 20 * k) % kNumExperts); };
  Told told;
  SumsOf(experts, 1000, choice, &told);
  // 2000 rows in groups of about 512, each expert in one of them.
  EXPECT_EQ(told.size(), 4U);
  size_t count = 0;
  for (const auto& call : told) count += call.size();
  EXPECT_EQ(count, 3 * kNumExperts);
}

}  // namespace
}  // namespace dsv4::backend
