// attention_part and merge_attention: entries divided in every way give the formula of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "tests/parity/attention_problem.h"
#include "tests/parity/backends.h"
#include "tests/parity/cached_rows.h"

namespace dsv4::test {
namespace {

std::span<const double> RowOf(const std::vector<double>& rows, int64_t row, int64_t width) {
  return std::span(rows).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

// Caches of a problem, the entries as `shard` has them.
struct Caches {
  std::vector<std::unique_ptr<TestRing>> rings;
  std::vector<std::unique_ptr<TestPages>> pages;
  std::vector<ops::AttentionSequence> sequences;
};

Caches MakeCaches(const Problem& problem, const EntryShard& shard) {
  const Geometry& g = problem.geometry;
  Caches caches;
  int64_t token = 0;
  for (const Context& context : problem.contexts) {
    const int64_t end = context.first_position + context.num_tokens;
    const int64_t capacity = std::min(g.window_size - 1, context.first_position) + context.num_tokens;
    caches.rings.push_back(
        std::make_unique<TestRing>(problem.dtype, std::max<int64_t>(1, capacity), g.head_dim));
    for (int64_t p = std::max<int64_t>(0, end - capacity); p < end; ++p)
      caches.rings.back()->Put(p, RowOf(context.keys, p, g.head_dim));
    std::vector<double> rows;
    for (int64_t row = 0; row < shard.NumRows(end / g.ratio); ++row) {
      const auto entry = RowOf(context.entries, shard.Entry(row), g.head_dim);
      rows.insert(rows.end(), entry.begin(), entry.end());
    }
    caches.pages.push_back(std::make_unique<TestPages>(problem.dtype, g.head_dim, 5, rows));
    caches.sequences.push_back({token, context.num_tokens, context.first_position,
                                caches.rings.back()->rows(), caches.pages.back()->rows()});
    token += context.num_tokens;
  }
  return caches;
}

// The window as one part and the entries as `num_shards`, merged; the parts and the output.
Runs RunParts(const Problem& problem, int64_t num_shards) {
  const Geometry& g = problem.geometry;
  std::vector<Caches> caches;
  for (int64_t shard = 0; shard < num_shards; ++shard)
    caches.push_back(MakeCaches(problem, {shard, num_shards}));
  const auto n = static_cast<int64_t>(problem.q.size()) / (g.num_heads * g.head_dim);
  const Shape shape = {n, g.num_heads, g.head_dim};
  const TestTensor q(problem.dtype, shape, problem.q);
  const TestTensor sink(DType::kF32, {g.num_heads}, problem.sink);
  const TestTensor selected(DType::kI32, {n, g.top_k}, problem.selected);
  return RunOnAll(
      [&](const ops::Backend& backend) {
        TestTensor parts(DType::kF32, {num_shards + 1, n, g.num_heads, g.head_dim + 2});
        for (int64_t i = 0; i <= num_shards; ++i) {
          const bool window = i == 0;
          const ops::AttentionPartArgs args = {
              .q = q,
              .selected = !window && g.top_k > 0 ? selected.view() : TensorView(),
              .part = parts.view().Rows(i, i + 1).Reshaped({n, g.num_heads, g.head_dim + 2}),
              .softmax_scale = problem.softmax_scale,
              .window_size = window ? g.window_size : 0,
              .ratio = window ? 0 : g.ratio,
              .shard = window ? EntryShard{} : EntryShard{i - 1, num_shards},
              .sequences = caches[static_cast<size_t>(window ? 0 : i - 1)].sequences};
          const Status status = backend.table.attention_part(*backend.context, args);
          EXPECT_TRUE(status.ok()) << status.ToString();
        }
        TestTensor o(problem.dtype, shape);
        const Status status =
            backend.table.merge_attention(*backend.context, {.parts = parts, .sink = sink, .o = o});
        EXPECT_TRUE(status.ok()) << status.ToString();
        return Outputs(std::move(o), std::move(parts));
      },
      FastOutputs::kBounded, OpsUsed::kOfShards);
}

// Every backend's output is the formula's, up to its slack and the parts' roundings to fp32. These are of a
// value, its factor, their product and the sum over the parts.
void ExpectWhole(const Problem& problem, int64_t num_shards, const std::string& what) {
  const Runs runs = RunParts(problem, num_shards);
  const Expected want = Formula(problem, true);
  const auto expect = [&](const std::vector<double>& got, const std::string& backend) {
    ASSERT_EQ(got.size(), want.values.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double merged = static_cast<double>(num_shards + 4) * 0x1p-23 * want.magnitudes[i];
      const double bound =
          RoundingBound(problem.dtype, want.values[i], want.magnitudes[i]) + want.slack[i] + merged;
      ASSERT_LE(std::fabs(got[i] - want.values[i]), bound) << what << ", " << backend << ", value " << i;
    }
  };
  expect(runs[0].Values(), "reference");
  for (const Runs::Fast& fast : runs.fast()) expect(fast.outputs[0].Values(), fast.backend->name);
}

TEST(AttentionPartParity, EntriesDividedInEveryWay) {
  uint32_t seed = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Geometry& geometry :
         {Geometry{3, 40, 9, 4, 0}, Geometry{2, 16, 8, 2, 11}, Geometry{17, 20, 31, 1, 0}}) {
      // First tokens, lengths with fewer entries than shards, and chunks that begin and end anywhere.
      const Problem batch = MakeProblem(geometry, dtype, {0, 3, 61, 128}, {5, 1, 33, 3}, ++seed);
      for (const int64_t num_shards : {1, 2, 3, 4, 7})
        ExpectWhole(batch, num_shards, std::to_string(num_shards) + " shards");
    }
  }
}

TEST(AttentionPartParity, ReleaseShape) {
  ExpectWhole(MakeProblem({64, 512, 128, 4, 512}, DType::kBF16, {2100}, {2}, 9), 4, "64 heads of 512");
  ExpectWhole(MakeProblem({4, 64, 128, 128, 0}, DType::kBF16, {40000}, {1}, 10), 3, "hca");
}

// A query's part has the same bits alone and beside others, on every backend.
TEST(AttentionPartParity, EveryQueryEqualsItselfAlone) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Geometry& geometry : {Geometry{20, 33, 16, 4, 0}, Geometry{2, 16, 7, 2, 11}}) {
      const Problem batch = MakeProblem(geometry, dtype, {200}, {12}, 77);
      const Runs together = RunParts(batch, 3);
      const auto row = static_cast<size_t>(geometry.num_heads * geometry.head_dim);
      for (const size_t t : {size_t{0}, size_t{5}, size_t{11}}) {
        Problem alone = batch;
        alone.contexts[0].first_position += static_cast<int64_t>(t);
        alone.contexts[0].num_tokens = 1;
        alone.q.assign(batch.q.begin() + static_cast<int64_t>(t * row),
                       batch.q.begin() + static_cast<int64_t>((t + 1) * row));
        if (const auto k = geometry.top_k; k > 0) {
          alone.selected.assign(batch.selected.begin() + static_cast<int64_t>(t) * k,
                                batch.selected.begin() + static_cast<int64_t>(t + 1) * k);
        }
        const Runs single = RunParts(alone, 3);
        const auto expect = [&](const std::vector<double>& one, const std::vector<double>& all) {
          EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + static_cast<int64_t>(t * row))) << t;
        };
        expect(single[0].Values(), together[0].Values());
        for (size_t i = 0; i < single.fast().size(); ++i)
          expect(single.fast()[i].outputs[0].Values(), together.fast()[i].outputs[0].Values());
      }
    }
  }
}

// A part where nothing is seen, which adds nothing.
TEST(AttentionPartParity, WithoutKeys) {
  const Geometry geometry = {2, 16, 8, 4, 0};
  const Runs runs =
      RunParts(MakeProblem(geometry, DType::kBF16, {0}, {6}, 5), 3);  // One entry, from token 3 on.
  const auto expect = [&](const std::vector<double>& parts) {
    const int64_t width = geometry.head_dim + 2;
    for (int64_t part = 1; part <= 3; ++part) {
      for (int64_t token = 0; token < 6; ++token) {
        const auto row = RowOf(parts, (part * 6 + token) * geometry.num_heads, width);
        if (part == 1 && token >= 3) {
          EXPECT_EQ(row.back(), 1.0);  // exp(l - l)
          continue;
        }
        EXPECT_EQ(row.back(), 0.0);
        EXPECT_EQ(row[static_cast<size_t>(width - 2)], -std::numeric_limits<double>::infinity());
        EXPECT_TRUE(std::all_of(row.begin(), row.end() - 2, [](double value) { return value == 0; }));
      }
    }
  };
  expect(runs[1].Values());
  for (const Runs::Fast& fast : runs.fast()) expect(fast.outputs[1].Values());
}

// Parts whose maxima lie far apart, in any order; all without keys give 0.
TEST(MergeAttentionParity, FarApartMaximaAndNothingAtAll) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  // [3 parts, 1 token, 2 heads, 1 + 2]; head 0 has keys in parts 0 and 2, head 1 in none.
  const std::vector<double> parts = {6, -200,  2, 0,       kNone, 0, /**/ 0, kNone, 0,
                                     0, kNone, 0, /**/ 10, 300,   4, 0,      kNone, 0};
  const TestTensor input(DType::kF32, {3, 1, 2, 3}, parts);
  const TestTensor sink(DType::kF32, {2}, std::vector<double>{300, 5});
  const Runs runs = RunOnAll(
      [&](const ops::Backend& backend) {
        TestTensor o(DType::kF32, {1, 2, 1});
        const Status status = backend.table.merge_attention(*backend.context, {input, sink, o});
        EXPECT_TRUE(status.ok()) << status.ToString();
        return Outputs(std::move(o));
      },
      FastOutputs::kSameBits, OpsUsed::kOfShards);
  EXPECT_EQ(runs[0].Values(), (std::vector<double>{2, 0}));  // 10 / (4 + the sink's 1)
}

}  // namespace
}  // namespace dsv4::test
