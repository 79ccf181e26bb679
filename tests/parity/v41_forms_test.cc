// Forms of ops that V4.1 wants and V4 does not. They are given weights of the streams, a pool without bias,
// roundings of index rows and entries, and candidate blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/parity/backends.h"
#include "tests/parity/cached_rows.h"
#include "tests/parity/grids.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

// u by given weights, and pre stored as the op without them would have used it.
TEST(V41Forms, HcPreMixesByGivenWeightsAndStoresItsOwn) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t n : {1, 5, 33}) {
      constexpr int64_t kMult = 4, kDim = 40, kMix = (2 + kMult) * kMult;
      Random random(201);
      const std::vector<double> values = Rounded(dtype, random.Normals(n * kMult * kDim));
      const TestTensor streams(dtype, {n, kMult, kDim}, values);
      const TestTensor fn(DType::kF32, {kMix, kMult * kDim}, random.Normals(kMix * kMult * kDim, 0.1));
      const TestTensor scale(DType::kF32, {3}, random.Normals(3));
      const TestTensor base(DType::kF32, {kMix}, random.Normals(kMix));
      const std::vector<double> weights = Rounded(DType::kF32, random.Normals(n * kMult));
      const TestTensor given(DType::kF32, {n, kMult}, weights);
      const auto run = [&](const TensorView& by) {
        return RunOnAll(
            [&](const ops::Backend& backend) {
              TestTensor u(dtype, {n, kDim});
              TestTensor post(DType::kF32, {n, kMult});
              TestTensor comb(DType::kF32, {n, kMult, kMult});
              TestTensor pre(DType::kF32, {n, kMult});
              const Status status = backend.table.hc_pre(
                  *backend.context, {streams, fn, scale, base, u, post, comb, 1e-20F, 1e-6F, 20, by, pre});
              EXPECT_TRUE(status.ok()) << status.ToString();
              return Outputs(std::move(u), std::move(pre), std::move(post));
            },
            FastOutputs::kBounded);
      };
      const auto got = run(given);
      const auto own = run({});
      std::vector<double> want, by_own, sums, own_sums;
      const std::vector<double> pre = own[1].Values();
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t d = 0; d < kDim; ++d) {
          double sum = 0, magnitude = 0, own_sum = 0, own_magnitude = 0;
          for (int64_t i = 0; i < kMult; ++i) {
            const double x = values[static_cast<size_t>((t * kMult + i) * kDim + d)];
            const auto at = static_cast<size_t>(t * kMult + i);
            sum += weights[at] * x;
            magnitude += std::fabs(weights[at] * x);
            own_sum += pre[at] * x;
            own_magnitude += std::fabs(pre[at] * x);
          }
          want.push_back(sum);
          sums.push_back(magnitude);
          by_own.push_back(own_sum);
          own_sums.push_back(own_magnitude * 2);
        }
      }
      ExpectRounded(dtype, got[0].Values(), want, sums, "u by given weights");
      ExpectFast(got, 0, dtype, want, sums, kMult, "u by given weights");
      EXPECT_EQ(got[1].Values(), pre);
      EXPECT_EQ(got[2].Values(), own[2].Values());
      for (const Runs::Fast& fast : own.fast()) {
        const std::vector<double> of_fast = fast.outputs[1].Values();
        for (size_t i = 0; i < pre.size(); ++i) EXPECT_NEAR(of_fast[i], pre[i], 1e-6) << fast.backend->name;
      }
      for (size_t i = 0; i < by_own.size(); ++i)
        EXPECT_NEAR(own[0].Values()[i], by_own[i], RoundingBound(dtype, by_own[i], own_sums[i]) + 1e-6);
    }
  }
}

TEST(V41Forms, HcHeadCollapsesByGivenWeights) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t n : {0, 1, 9}) {
      constexpr int64_t kMult = 4, kDim = 24;
      Random random(202);
      const std::vector<double> values = Rounded(dtype, random.Normals(n * kMult * kDim));
      const std::vector<double> weights = Rounded(DType::kF32, random.Normals(n * kMult));
      const TestTensor streams(dtype, {n, kMult, kDim}, values);
      const TestTensor given(DType::kF32, {n, kMult}, weights);
      const auto got = RunOnAll(
          [&](const ops::Backend& backend) {
            TestTensor y(dtype, {n, kDim});
            const Status status =
                backend.table.hc_head(*backend.context, {.streams = streams, .y = y, .given = given});
            EXPECT_TRUE(status.ok()) << status.ToString();
            return Outputs(std::move(y));
          },
          FastOutputs::kSameBitsOnHost);
      std::vector<double> want, sums;
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t d = 0; d < kDim; ++d) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < kMult; ++i) {
            const double term = weights[static_cast<size_t>(t * kMult + i)] *
                                values[static_cast<size_t>((t * kMult + i) * kDim + d)];
            sum += term;
            magnitude += std::fabs(term);
          }
          want.push_back(sum);
          sums.push_back(magnitude);
        }
      }
      ExpectRounded(dtype, got[0].Values(), want, sums, "y");
      ExpectFast(got, 0, dtype, want, sums, kMult, "y");
    }
  }
}

TEST(V41Forms, RowsAreRoundedWithoutARotation) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const CacheScale kind : {CacheScale::kE8m0, CacheScale::kE4m3}) {
      for (const int64_t n : {0, 1, 7}) {
        for (const double sigma : {1.0, 1e-3, 500.0}) {
          constexpr int64_t kWidth = 96;  // No power of two.
          const int64_t group = kind == CacheScale::kE8m0 ? 32 : 16;
          Random random(203);
          const std::vector<double> x = Rounded(dtype, random.Normals(n * kWidth, sigma));
          const auto got = RunOnAll([&](const ops::Backend& backend) {
            TestTensor rows(dtype, {n, kWidth}, x);
            const Status status = backend.table.hadamard_fp4(
                *backend.context, {.x = rows, .rotate = false, .group = group, .scale = kind});
            EXPECT_TRUE(status.ok()) << status.ToString();
            return Outputs(std::move(rows));
          });
          std::vector<double> want;
          for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(group)) {
            float most = kind == CacheScale::kE8m0 ? 6 * 0x1p-126F : 6 * 0x1p-9F;
            for (size_t i = begin; i < begin + static_cast<size_t>(group); ++i)
              most = std::max(most, std::fabs(static_cast<float>(x[i])));
            const double scale =
                kind == CacheScale::kE8m0
                    ? std::exp2(std::ceil(std::log2(static_cast<double>(most * (1.0F / 6.0F)))))
                    : NearestE4m3(std::min(static_cast<double>(most / 6.0F), 448.0));
            for (size_t i = begin; i < begin + static_cast<size_t>(group); ++i) {
              const double q = static_cast<double>(static_cast<float>(x[i]) / static_cast<float>(scale));
              want.push_back(NearestE2m1(std::clamp(q, -6.0, 6.0)) * scale);
            }
          }
          EXPECT_EQ(got[0].Values(), want) << n << " " << sigma;
        }
      }
    }
  }
}

// Without ape: the numbers of a zero one, in rings too.
TEST(V41Forms, APoolWithoutBiasIsOneWithZeros) {
  constexpr int64_t kRatio = 2, kWidth = 20, kTokens = 7, kBegin = 3;
  Random random(204);
  const TestTensor values(DType::kF32, {kTokens, kWidth}, random.Normals(kTokens * kWidth));
  const TestTensor scores(DType::kF32, {kTokens, kWidth}, random.Normals(kTokens * kWidth));
  const TestTensor zeros(DType::kF32, {kRatio, kWidth}, std::vector<double>(kRatio * kWidth));
  const std::vector<double> before = random.Normals(kWidth);
  const int64_t num_entries = ops::NumCompletedEntries(kBegin, kTokens, kRatio);
  const auto run = [&](const TensorView& ape) {
    return RunOnAll([&](const ops::Backend& backend) {
      TestRing value_ring(DType::kF32, 2, kWidth);
      TestRing score_ring(DType::kF32, 2, kWidth);
      value_ring.Put(kBegin - 1, before);
      score_ring.Put(kBegin - 1, before);
      const ops::CompressorSequence sequence{0, kTokens, kBegin, value_ring.rows(), score_ring.rows()};
      TestTensor pooled(DType::kF32, {num_entries, kWidth});
      const Status status = backend.table.compressor_pool(
          *backend.context, {values, scores, ape, pooled, kRatio, false, std::span(&sequence, 1)});
      EXPECT_TRUE(status.ok()) << status.ToString();
      TestTensor kept(DType::kF32, {2, kWidth}, score_ring.tensor().Values());
      return Outputs(std::move(pooled), std::move(kept));
    });
  };
  const auto with = run(zeros);
  const auto without = run({});
  EXPECT_EQ(with[0].Values(), without[0].Values());
  EXPECT_EQ(with[1].Values(), without[1].Values());
  EXPECT_NE(without[0].Values(), std::vector<double>(static_cast<size_t>(num_entries * kWidth)));
}

struct BlockCase {
  int64_t top_k, num_blocks, block_size, ratio, first, length;
};

// A query's scores, exact for integers.
std::vector<double> ScoresOf(const std::vector<double>& q, const std::vector<double>& weights,
                             const std::vector<double>& keys, int64_t token, int64_t heads, int64_t width,
                             int64_t visible) {
  std::vector<double> scores;
  for (int64_t j = 0; j < visible; ++j) {
    double score = 0;
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t c = 0; c < width; ++c)
        dot += q[static_cast<size_t>((token * heads + h) * width + c)] *
               keys[static_cast<size_t>(j * width + c)];
      score += weights[static_cast<size_t>(token * heads + h)] * std::max(dot, 0.0);
    }
    scores.push_back(score);
  }
  return scores;
}

// Indices of the `count` best, ties to the lowest, ascending and filled up with -1.
std::vector<double> BestOf(const std::vector<double>& scores, int64_t count) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  std::erase_if(order, [&](int64_t i) {
    return scores[static_cast<size_t>(i)] == -std::numeric_limits<double>::infinity();
  });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  std::sort(order.begin(), order.end());
  std::vector<double> best(order.begin(), order.end());
  best.resize(static_cast<size_t>(count), -1);
  return best;
}

TEST(V41Forms, BlocksAreChosenAndObeyed) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  constexpr int64_t kHeads = 3, kWidth = 32;
  // Fewer and more visible entries than top_k and than the blocks have; a list longer than its blocks' entries; rows beside each other.
  const BlockCase cases[] = {{6, 3, 8, 1, 0, 60}, {40, 3, 8, 1, 0, 60}, {6, 3, 8, 2, 70, 5},
                             {4, 2, 1, 1, 0, 12}, {3, 50, 4, 1, 20, 1}, {1, 1, 8, 1, 100, 3}};
  for (const BlockCase& c : cases) {
    Random random(205);
    const auto draw = [&](int64_t count) {
      std::vector<double> values = random.Normals(count);
      for (double& value : values) value = std::nearbyint(value);
      return values;
    };
    const std::vector<double> q = draw(c.length * kHeads * kWidth);
    const std::vector<double> weights = draw(c.length * kHeads);
    const std::vector<double> keys = draw((c.first + c.length) / c.ratio * kWidth);
    const TestTensor q_tensor(DType::kF32, {c.length, kHeads, kWidth}, q);
    const TestTensor weight_tensor(DType::kF32, {c.length, kHeads}, weights);
    const TestPages pages(DType::kF32, kWidth, 16, keys);
    const ops::IndexerSequence sequence{0, c.length, c.first, pages.rows()};
    const auto chosen = RunOnAll([&](const ops::Backend& backend) {
      TestTensor selected(DType::kI32, {c.length, c.top_k});
      TestTensor best(DType::kI32, {c.length, c.num_blocks});
      const Status status =
          backend.table.indexer_select(*backend.context, {.q = q_tensor,
                                                          .weights = weight_tensor,
                                                          .selected = selected,
                                                          .ratio = c.ratio,
                                                          .sequences = std::span(&sequence, 1),
                                                          .best = best,
                                                          .block_size = c.block_size});
      EXPECT_TRUE(status.ok()) << status.ToString();
      return Outputs(std::move(selected), std::move(best));
    });
    std::vector<double> want_selected, want_best, want_within;
    for (int64_t t = 0; t < c.length; ++t) {
      const int64_t visible = (c.first + t + 1) / c.ratio;
      std::vector<double> scores = ScoresOf(q, weights, keys, t, kHeads, kWidth, visible);
      std::vector<double> blocks(static_cast<size_t>((visible + c.block_size - 1) / c.block_size), kNone);
      for (int64_t j = 0; j < visible; ++j) {
        double& block = blocks[static_cast<size_t>(j / c.block_size)];
        block = std::max(block, scores[static_cast<size_t>(j)]);
      }
      if (!blocks.empty()) blocks.back() = std::numeric_limits<double>::infinity();
      const std::vector<double> best = BestOf(blocks, c.num_blocks);
      const std::vector<double> all = BestOf(scores, c.top_k);
      want_selected.insert(want_selected.end(), all.begin(), all.end());
      want_best.insert(want_best.end(), best.begin(), best.end());
      for (int64_t j = 0; j < visible; ++j) {
        const int64_t block = j / c.block_size;
        if (std::ranges::find(best, static_cast<double>(block)) == best.end())
          scores[static_cast<size_t>(j)] = kNone;
      }
      const std::vector<double> within = BestOf(scores, c.top_k);
      want_within.insert(want_within.end(), within.begin(), within.end());
    }
    EXPECT_EQ(chosen[0].Values(), want_selected);
    EXPECT_EQ(chosen[1].Values(), want_best);
    const TestTensor blocks(DType::kI32, {c.length, c.num_blocks}, want_best);
    const auto within = RunOnAll([&](const ops::Backend& backend) {
      TestTensor selected(DType::kI32, {c.length, c.top_k});
      const Status status =
          backend.table.indexer_select(*backend.context, {.q = q_tensor,
                                                          .weights = weight_tensor,
                                                          .selected = selected,
                                                          .ratio = c.ratio,
                                                          .sequences = std::span(&sequence, 1),
                                                          .within = blocks,
                                                          .block_size = c.block_size});
      EXPECT_TRUE(status.ok()) << status.ToString();
      return Outputs(std::move(selected));
    });
    EXPECT_EQ(within[0].Values(), want_within);
  }
}

TEST(V41Forms, ABlockWithoutVisibleEntriesIsAnError) {
  const TestTensor q(DType::kF32, {1, 1, 32}, std::vector<double>(32, 1.0));
  const TestTensor weights(DType::kF32, {1, 1}, std::vector<double>{1.0});
  const TestPages pages(DType::kF32, 32, 16, std::vector<double>(32 * 9, 1.0));
  const ops::IndexerSequence sequence{0, 1, 8, pages.rows()};
  const TestTensor blocks(DType::kI32, {1, 2}, std::vector<double>{0, 2});
  for (const FastBackend& fast : FastBackends()) {
    for (const ops::Backend* backend : {&Reference(), &fast.one_thread}) {
      TestTensor selected(DType::kI32, {1, 2});
      const Status status =
          backend->table.indexer_select(*backend->context, {.q = q,
                                                            .weights = weights,
                                                            .selected = selected,
                                                            .ratio = 1,
                                                            .sequences = std::span(&sequence, 1),
                                                            .within = blocks,
                                                            .block_size = 8});
      EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << backend->name;
      EXPECT_NE(status.message().find("block 2"), std::string::npos) << status.message();
    }
  }
}

}  // namespace
}  // namespace dsv4::test
