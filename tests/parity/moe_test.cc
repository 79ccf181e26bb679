// router and routed_experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/experts.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

double Affinity(double logit) { return std::sqrt(logit > 20 ? logit : std::log(1.0 + std::exp(logit))); }

struct Routed {
  std::vector<double> indices;
  std::vector<double> weights;
};

Routed RunRouter(const std::vector<double>& logits, int64_t num_experts, int64_t top_k, float route_scale,
                 const TensorView& bias = {}, const TensorView& hash_table = {},
                 const TensorView& token_ids = {}) {
  const int64_t num_tokens = static_cast<int64_t>(logits.size()) / num_experts;
  const TestTensor logit_tensor(DType::kF32, {num_tokens, num_experts}, logits);
  const auto outputs = RunOnAll([&](const ops::Backend& backend) {
    TestTensor indices(DType::kI32, {num_tokens, top_k});
    TestTensor weights(DType::kF32, {num_tokens, top_k});
    const Status status = backend.table.router(
        *backend.context, {logit_tensor, bias, hash_table, token_ids, indices, weights, route_scale});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return Outputs(std::move(indices), std::move(weights));
  });
  return {outputs[0].Values(), outputs[1].Values()};
}

TEST(RouterParity, ScoredChoiceAgainstAFullSort) {
  struct RouterCase {
    int64_t num_tokens;
    int64_t num_experts;
    int64_t top_k;
    bool biased;
  };
  const RouterCase cases[] = {{0, 8, 2, true},    {1, 1, 1, false}, {5, 8, 8, true},    {33, 256, 6, true},
                              {7, 384, 6, false}, {3, 31, 5, true}, {2, 700, 300, true}};
  for (const RouterCase& c : cases) {
    Random random(51);
    const std::vector<double> logits =
        Rounded(DType::kF32, random.Normals(c.num_tokens * c.num_experts, 10.0));
    const std::vector<double> bias = Rounded(DType::kF32, random.Normals(c.num_experts));
    const TestTensor bias_tensor(DType::kF32, {c.num_experts}, bias);
    const Routed got =
        RunRouter(logits, c.num_experts, c.top_k, 1.5F, c.biased ? bias_tensor.view() : TensorView());
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const auto affinity = [&](size_t e) {
        return Affinity(logits[static_cast<size_t>(t * c.num_experts) + e]);
      };
      std::vector<size_t> order(static_cast<size_t>(c.num_experts));
      std::iota(order.begin(), order.end(), 0U);
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return affinity(a) + (c.biased ? bias[a] : 0.0) > affinity(b) + (c.biased ? bias[b] : 0.0);
      });
      double sum = 0;
      for (int64_t k = 0; k < c.top_k; ++k) sum += affinity(order[static_cast<size_t>(k)]);
      for (int64_t k = 0; k < c.top_k; ++k) {
        const size_t i = static_cast<size_t>(t * c.top_k + k);
        EXPECT_EQ(got.indices[i], static_cast<double>(order[static_cast<size_t>(k)]));
        EXPECT_NEAR(got.weights[i], 1.5 * affinity(order[static_cast<size_t>(k)]) / sum, 1e-6);
      }
    }
  }
}

// V4.1's settings: a temperature, a small number beside the sum, and no sum at all for a single expert.
TEST(RouterParity, TemperatureSumEpsAndNoSum) {
  const std::vector<double> logits = {3.0, -1.0, 2.0, 0.5};
  const TestTensor logits_tensor(DType::kF32, {1, 4}, logits);
  const auto weights_of = [&](ops::RouterArgs args, int64_t top_k) {
    const auto outputs = RunOnAll([&](const ops::Backend& backend) {
      TestTensor indices(DType::kI32, {1, top_k});
      TestTensor weights(DType::kF32, {1, top_k});
      args.logits = logits_tensor;
      args.indices = indices;
      args.weights = weights;
      EXPECT_TRUE(backend.table.router(*backend.context, args).ok());
      return Outputs(std::move(indices), std::move(weights));
    });
    EXPECT_EQ(outputs[0].Values()[0], 0.0);
    return outputs[1].Values();
  };
  const double hot0 = Affinity(3.0 / 2.5);
  const double hot1 = Affinity(2.0 / 2.5);
  EXPECT_NEAR(weights_of({.route_scale = 1.5F, .temperature = 2.5F}, 2)[0], 1.5 * hot0 / (hot0 + hot1), 1e-6);
  EXPECT_NEAR(weights_of({.route_scale = 1.5F, .temperature = 2.5F, .sum_eps = 0.25F}, 2)[1],
              1.5 * hot1 / (hot0 + hot1 + 0.25), 1e-6);
  EXPECT_NEAR(weights_of({.route_scale = 1.5F, .normalise = false}, 1)[0], 1.5 * Affinity(3.0), 1e-6);
}

// Affinities that vanish give weights of zero and not NaN.
TEST(RouterParity, SumEpsKeepsVanishingAffinitiesFromNaN) {
  const TestTensor logits(DType::kF32, {1, 2}, std::vector<double>{-3e38, -3e38});
  RunOnAll([&](const ops::Backend& backend) {
    TestTensor indices(DType::kI32, {1, 2});
    TestTensor weights(DType::kF32, {1, 2});
    ops::RouterArgs args{.logits = logits, .indices = indices, .weights = weights, .sum_eps = 1e-20F};
    EXPECT_TRUE(backend.table.router(*backend.context, args).ok());
    EXPECT_EQ(weights.Values(), (std::vector<double>{0, 0}));
    args.sum_eps = 0;
    EXPECT_TRUE(backend.table.router(*backend.context, args).ok());
    EXPECT_TRUE(std::isnan(weights.Values()[0]));
    return Outputs(std::move(indices));
  });
}

TEST(RouterParity, EqualScoresGoToTheLowestIndex) {
  const std::vector<double> logits(2 * 16, 0.25);
  const Routed got = RunRouter(logits, 16, 5, 2.5F);
  EXPECT_EQ(got.indices, (std::vector<double>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  for (const double weight : got.weights) EXPECT_NEAR(weight, 0.5, 1e-7);
}

TEST(RouterParity, SoftplusIsTheIdentityAboveTwenty) {
  // log(1 + exp(1000)) overflows; sqrt(1000) / (sqrt(1000) + sqrt(21)).
  const Routed got = RunRouter({1000.0, 21.0, -1000.0}, 3, 2, 1.0F);
  EXPECT_NEAR(got.weights[0], std::sqrt(1000.0) / (std::sqrt(1000.0) + std::sqrt(21.0)), 1e-7);
}

TEST(RouterParity, HashTableNamesTheExpertsByTokenId) {
  const std::vector<double> table = {3, 1, 0, 2, 2, 3, 1, 0};  // [4, 2]
  Random random(52);
  const std::vector<double> logits = Rounded(DType::kF32, random.Normals(3 * 4));
  const TestTensor ids(DType::kI32, {3}, std::vector<double>{2, 0, 3});
  for (const DType dtype : {DType::kI64, DType::kI32}) {
    const TestTensor table_tensor(dtype, {4, 2}, table);
    const Routed got = RunRouter(logits, 4, 2, 1.0F, {}, table_tensor, ids);
    EXPECT_EQ(got.indices, (std::vector<double>{2, 3, 3, 1, 1, 0}));
    // The learned gate still gives the weights.
    const double a = Affinity(logits[2]);
    const double b = Affinity(logits[3]);
    EXPECT_NEAR(got.weights[0], a / (a + b), 1e-7);
    EXPECT_NEAR(got.weights[1], b / (a + b), 1e-7);
  }
}

TEST(RouterParity, BiasSteersTheChoiceOnly) {
  const std::vector<double> logits = {1.0, 2.0, 3.0, 4.0};
  const TestTensor bias(DType::kF32, {4}, std::vector<double>{100, 0, 0, 50});
  const Routed got = RunRouter(logits, 4, 2, 1.0F, bias);
  EXPECT_EQ(got.indices, (std::vector<double>{0, 3}));
  EXPECT_NEAR(got.weights[0], Affinity(1.0) / (Affinity(1.0) + Affinity(4.0)), 1e-7);
  EXPECT_NE(RunRouter(logits, 4, 2, 1.0F).indices, got.indices);
  EXPECT_NE(RunRouter(logits, 4, 2, 2.5F, bias).weights, got.weights);
}

TEST(RouterParity, NaNLogitsNeverWinAndBadIdsAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(RunRouter({nan, 1.0, nan, 2.0, nan}, 5, 2, 1.0F).indices, (std::vector<double>{3, 1}));

  const TestTensor logits(DType::kF32, {1, 4}, std::vector<double>{1, 2, 3, 4});
  TestTensor indices(DType::kI32, {1, 2});
  TestTensor weights(DType::kF32, {1, 2});
  const auto message = [&](double id, double expert) {
    const TestTensor ids(DType::kI32, {1}, std::vector<double>{id});
    const TestTensor table(DType::kI32, {2, 2}, std::vector<double>{0, 1, 2, expert});
    const Status status =
        Reference().table.router(*Reference().context, {logits, {}, table, ids, indices, weights, 1.0F});
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    return status.message();
  };
  EXPECT_NE(message(2, 3).find("token_ids[0]: 2"), std::string::npos);
  EXPECT_NE(message(-1, 3).find("token_ids[0]: -1"), std::string::npos);
  EXPECT_NE(message(1, 4).find("hash_table[1, 1]: 4"), std::string::npos);
}

// --- routed_experts ----------------------------------------------------------------------------------------------

// The contract: a fused op equals the composition of its parts, here token by token through the backend's own
// table.
std::vector<double> Composition(const ops::Backend& backend, const ExpertCase& c, DType dtype,
                                const std::vector<double>& x, const std::vector<double>& indices,
                                const std::vector<double>& weights, const TestExperts& experts, float limit) {
  std::vector<double> want;
  for (size_t t = 0; t < static_cast<size_t>(c.num_tokens); ++t) {
    const TestTensor row(dtype, {1, c.dim},
                         std::span(x).subspan(t * static_cast<size_t>(c.dim), static_cast<size_t>(c.dim)));
    std::vector<float> sum(static_cast<size_t>(c.dim), 0.0F);
    for (int64_t e = 0; e < c.num_experts; ++e) {
      for (size_t k = 0; k < static_cast<size_t>(c.top_k); ++k) {
        const size_t i = t * static_cast<size_t>(c.top_k) + k;
        if (static_cast<int64_t>(indices[i]) != e) continue;
        const ops::ExpertWeights& expert = experts.weights[static_cast<size_t>(e)];
        TestTensor gate(dtype, {1, c.inter_dim});
        TestTensor up(dtype, {1, c.inter_dim});
        TestTensor down(dtype, {1, c.dim});
        const TestTensor weight(DType::kF32, {1}, std::span(weights).subspan(i, 1));
        EXPECT_TRUE(backend.table.linear(*backend.context, {row, &expert.w1, gate}).ok());
        EXPECT_TRUE(backend.table.linear(*backend.context, {row, &expert.w3, up}).ok());
        EXPECT_TRUE(backend.table.swiglu(*backend.context, {gate, up, weight, gate, limit}).ok());
        EXPECT_TRUE(backend.table.linear(*backend.context, {gate, &expert.w2, down}).ok());
        const std::vector<double> y = down.Values();
        for (size_t d = 0; d < sum.size(); ++d) sum[d] += static_cast<float>(y[d]);
      }
    }
    want.insert(want.end(), sum.begin(), sum.end());
  }
  return want;
}

std::vector<double> RunExperts(const ExpertCase& c, DType dtype, const std::vector<double>& x,
                               const std::vector<double>& indices, const std::vector<double>& weights,
                               const TestExperts& experts, float limit) {
  const TestTensor x_tensor(dtype, {c.num_tokens, c.dim}, x);
  const TestTensor index_tensor(DType::kI32, {c.num_tokens, c.top_k}, indices);
  const TestTensor weight_tensor(DType::kF32, {c.num_tokens, c.top_k}, weights);
  const auto outputs = RunOnAll(
      [&](const ops::Backend& backend) {
        TestTensor y(DType::kF32, {c.num_tokens, c.dim});
        const Status status = backend.table.routed_experts(
            *backend.context, {x_tensor, index_tensor, weight_tensor, experts.weights, limit, y});
        EXPECT_TRUE(status.ok()) << status.ToString();
        return Outputs(std::move(y));
      },
      FastOutputs::kBounded);
  // A backend's linear is bounded elsewhere; from there on it is bits.
  for (const Runs::Fast& fast : outputs.fast()) {
    EXPECT_EQ(fast.outputs[0].Values(),
              Composition(*fast.backend, c, dtype, x, indices, weights, experts, limit))
        << fast.backend->name;
  }
  return outputs[0].Values();
}

TEST(RoutedExpertsParity, EqualsTheCompositionOfItsParts) {
  const ExpertCase cases[] = {{0, 4, 2, 32, 32},
                              {1, 1, 1, 32, 64},
                              {5, 8, 3, 64, 96},
                              {40, 16, 6, 160, 32},
                              {9, 5, 5, 32, 128},
                              // Whole tiles of 16 rows and units of 128 columns: kernels for a few tokens.
                              {1, 6, 3, 256, 384},
                              {3, 7, 2, 128, 256},
                              {8, 9, 6, 256, 128}};
  for (const ExpertCase& c : cases) {
    for (const ExpertFormat format :
         {ExpertFormat::kNvFp4, ExpertFormat::kMxFp4, ExpertFormat::kFp8, ExpertFormat::kMixed}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        Random random(53);
        const TestExperts experts = MakeExperts(c.num_experts, c.dim, c.inter_dim, format, random);
        const std::vector<double> x = Rounded(dtype, random.Normals(c.num_tokens * c.dim));
        const std::vector<double> indices = DistinctIndices(c, random);
        const std::vector<double> weights = Rounded(DType::kF32, random.Normals(c.num_tokens * c.top_k));
        const float limit = 0.8F;

        const std::vector<double> want =
            Composition(Reference(), c, dtype, x, indices, weights, experts, limit);
        EXPECT_EQ(RunExperts(c, dtype, x, indices, weights, experts, limit), want);
      }
    }
  }
}

TEST(RoutedExpertsMutation, EveryOperandMatters) {
  const ExpertCase c = {3, 6, 2, 32, 64};
  Random random(54);
  TestExperts experts = MakeExperts(c.num_experts, c.dim, c.inter_dim, ExpertFormat::kNvFp4, random);
  const std::vector<double> x = Rounded(DType::kBF16, random.Normals(c.num_tokens * c.dim));
  const std::vector<double> indices = {0, 3, 5, 0, 1, 3};
  const std::vector<double> weights = {0.5, 1, 0.75, 0.25, 1, 1};
  const auto run = [&](float limit) {
    return RunExperts(c, DType::kBF16, x, indices, weights, experts, limit);
  };
  const std::vector<double> base = run(10.0F);
  EXPECT_NE(run(0.3F), base);
  for (size_t e = 0; e < 6; ++e) {
    const bool chosen = e == 0 || e == 1 || e == 3 || e == 5;
    ops::ExpertWeights& expert = experts.weights[e];
    for (Weight* weight : {&expert.w1, &expert.w2, &expert.w3}) {
      weight->global_scale *= 3.0F;  // N1
      EXPECT_EQ(run(10.0F) != base, chosen) << e;
      weight->global_scale /= 3.0F;
    }
    // Gate and up swapped (quantization.md 2.5).
    std::swap(expert.w1, expert.w3);
    EXPECT_EQ(run(10.0F) != base, chosen) << e;
    std::swap(expert.w1, expert.w3);
  }
  EXPECT_EQ(run(10.0F), base);
}

TEST(RoutedExpertsParity, AnIndexOutsideTheExpertsIsNamed) {
  Random random(55);
  const TestExperts experts = MakeExperts(2, 32, 32, ExpertFormat::kMxFp4, random);
  const TestTensor x(DType::kBF16, {1, 32}, random.Normals(32));
  const TestTensor weights(DType::kF32, {1, 2}, std::vector<double>{1, 1});
  for (const double bad : {-1.0, 2.0}) {
    const TestTensor indices(DType::kI32, {1, 2}, std::vector<double>{0, bad});
    TestTensor y(DType::kF32, {1, 32});
    const Status status = Reference().table.routed_experts(*Reference().context,
                                                           {x, indices, weights, experts.weights, 1.0F, y});
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find("indices[0, 1]"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace dsv4::test
