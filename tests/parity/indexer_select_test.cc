// indexer_select, and the same by ranks that divide the keys: exact against a full sort, ties by lowest
// index, per-query visibility.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <vector>

#include "formats/number_formats.h"
#include "tests/parity/backends.h"
#include "tests/parity/cached_rows.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

struct SelectCase {
  int64_t num_heads;
  int64_t width;
  int64_t ratio;
  int64_t top_k;
  int64_t rows_per_page;
  std::vector<int64_t> first_positions;
  std::vector<int64_t> lengths;
};

struct SelectInputs {
  std::vector<double> q;
  std::vector<double> weights;
  std::vector<std::vector<double>> keys;  // Per sequence.
};

// Small integers make many equal scores.
SelectInputs MakeInputs(const SelectCase& c, DType dtype, bool tied) {
  Random random(71);
  const auto draw = [&](int64_t count) {
    std::vector<double> values = random.Normals(count);
    if (tied) {
      for (double& value : values) value = std::nearbyint(value);
    }
    return Rounded(dtype, values);
  };
  SelectInputs in;
  const int64_t num_tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  in.q = draw(num_tokens * c.num_heads * c.width);
  in.weights = draw(num_tokens * c.num_heads);
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    in.keys.push_back(draw((c.first_positions[i] + c.lengths[i]) / c.ratio * c.width));
  }
  return in;
}

void ExpectBest(const SelectCase& c, const SelectInputs& in, const std::vector<double>& selected,
                const std::string& what);

bool AreIntegers(const SelectInputs& in) {
  const auto integers = [](const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(),
                       [](double v) { return v == std::nearbyint(v) || std::isnan(v); });
  };
  return integers(in.q) && integers(in.weights) && std::all_of(in.keys.begin(), in.keys.end(), integers);
}

std::vector<double> RunSelect(const SelectCase& c, DType dtype, const SelectInputs& in) {
  const int64_t num_tokens = static_cast<int64_t>(in.weights.size()) / c.num_heads;
  const TestTensor q(dtype, {num_tokens, c.num_heads, c.width}, in.q);
  const TestTensor weights(dtype, {num_tokens, c.num_heads}, in.weights);
  std::vector<TestPages> pages;
  for (const std::vector<double>& keys : in.keys) pages.emplace_back(dtype, c.width, c.rows_per_page, keys);
  std::vector<ops::IndexerSequence> sequences;
  int64_t begin = 0;
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    sequences.push_back({begin, c.lengths[i], c.first_positions[i], pages[i].rows()});
    begin += c.lengths[i];
  }
  const auto outputs = RunOnAll(
      [&](const ops::Backend& backend) {
        TestTensor selected(DType::kI32, {num_tokens, c.top_k});
        const Status status =
            backend.table.indexer_select(*backend.context, {q, weights, selected, c.ratio, sequences});
        EXPECT_TRUE(status.ok()) << status.ToString();
        return Outputs(std::move(selected));
      },
      FastOutputs::kBounded);
  // Sums of integers are exact in fp32 too; otherwise a dot product may round to the other bf16 neighbour.
  for (const Runs::Fast& fast : outputs.fast()) {
    if (AreIntegers(in)) {
      EXPECT_EQ(fast.outputs[0].Values(), outputs[0].Values()) << fast.backend->name;
    } else {
      ExpectBest(c, in, fast.outputs[0].Values(), fast.backend->name);
    }
  }
  return outputs[0].Values();
}

// No entry that was left out scores better than one that was chosen. One bf16 step in each dot product, each
// term and the sum is allowed. Scores are exact here.
void ExpectBest(const SelectCase& c, const SelectInputs& in, const std::vector<double>& selected,
                const std::string& what) {
  size_t token = 0;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    for (int64_t i = 0; i < c.lengths[s]; ++i, ++token) {
      const int64_t visible = (c.first_positions[s] + i + 1) / c.ratio;
      const auto chosen_begin = selected.begin() + static_cast<int64_t>(token) * c.top_k;
      const std::vector<double> chosen(chosen_begin, chosen_begin + c.top_k);
      const int64_t want_count = std::min(visible, c.top_k);
      const auto count = std::count_if(chosen.begin(), chosen.end(), [](double j) { return j >= 0; });
      ASSERT_EQ(count, want_count) << what;
      ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.begin() + count)) << what;
      double worst_chosen = std::numeric_limits<double>::infinity();
      double best_left = -worst_chosen;
      for (int64_t j = 0; j < visible; ++j) {
        double score = 0;
        double magnitude = 0;
        for (size_t h = 0; h < static_cast<size_t>(c.num_heads); ++h) {
          const double* q =
              &in.q[(token * static_cast<size_t>(c.num_heads) + h) * static_cast<size_t>(c.width)];
          const double dot =
              std::inner_product(q, q + c.width, &in.keys[s][static_cast<size_t>(j * c.width)], 0.0);
          const double term = std::max(dot, 0.0) * in.weights[token * static_cast<size_t>(c.num_heads) + h];
          score += term;
          magnitude += std::fabs(term);
        }
        const double tolerance = 3 * 0x1p-8 * magnitude;
        if (std::binary_search(chosen.begin(), chosen.begin() + count, static_cast<double>(j))) {
          worst_chosen = std::min(worst_chosen, score + tolerance);
        } else {
          best_left = std::max(best_left, score - tolerance);
        }
      }
      EXPECT_LE(best_left, worst_chosen) << what << ", token " << token;
    }
  }
}

std::vector<double> FullSort(const SelectCase& c, DType dtype, const SelectInputs& in) {
  const auto held = [dtype](double value) {
    return dtype == DType::kBF16 ? static_cast<double>(RoundToBf16(static_cast<float>(value))) : value;
  };
  std::vector<double> want;
  size_t token = 0;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    for (int64_t i = 0; i < c.lengths[s]; ++i, ++token) {
      const int64_t visible = (c.first_positions[s] + i + 1) / c.ratio;
      std::vector<std::pair<double, int64_t>> ranked;
      for (int64_t j = 0; j < visible; ++j) {
        double score = 0;
        for (int64_t h = 0; h < c.num_heads; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < c.width; ++d) {
            dot += in.q[(token * static_cast<size_t>(c.num_heads) + static_cast<size_t>(h)) *
                            static_cast<size_t>(c.width) +
                        static_cast<size_t>(d)] *
                   in.keys[s][static_cast<size_t>(j * c.width + d)];
          }
          score += held(std::max(held(dot), 0.0) *
                        in.weights[token * static_cast<size_t>(c.num_heads) + static_cast<size_t>(h)]);
        }
        ranked.emplace_back(-held(score), j);
      }
      std::sort(ranked.begin(), ranked.end());
      std::vector<double> chosen;
      for (size_t k = 0; k < ranked.size() && k < static_cast<size_t>(c.top_k); ++k) {
        chosen.push_back(static_cast<double>(ranked[k].second));
      }
      std::sort(chosen.begin(), chosen.end());
      chosen.resize(static_cast<size_t>(c.top_k), -1.0);
      want.insert(want.end(), chosen.begin(), chosen.end());
    }
  }
  return want;
}

// Choice of ranks that divide the keys.
std::vector<double> SelectTogether(const SelectCase& c, DType dtype, const SelectInputs& in,
                                   int64_t num_shards) {
  const int64_t num_tokens = static_cast<int64_t>(in.weights.size()) / c.num_heads;
  const TestTensor q(dtype, {num_tokens, c.num_heads, c.width}, in.q);
  const TestTensor weights(dtype, {num_tokens, c.num_heads}, in.weights);
  const auto keys_of = [&](const std::vector<double>& keys, const EntryShard& shard) {
    std::vector<double> mine;
    const auto count = static_cast<int64_t>(keys.size()) / c.width;
    for (int64_t row = 0; row < shard.NumRows(count); ++row) {
      const auto key = keys.begin() + shard.Entry(row) * c.width;
      mine.insert(mine.end(), key, key + c.width);
    }
    return TestPages(dtype, c.width, c.rows_per_page, mine);
  };
  const auto outputs = RunOnAll(
      [&](const ops::Backend& backend) {
        TestTensor all(DType::kI64, {num_tokens, num_shards, c.top_k});
        for (int64_t shard = 0; shard < num_shards; ++shard) {
          std::vector<TestPages> pages;
          for (const std::vector<double>& keys : in.keys) pages.push_back(keys_of(keys, {shard, num_shards}));
          std::vector<ops::IndexerSequence> sequences;
          int64_t begin = 0;
          for (size_t i = 0; i < c.lengths.size(); ++i) {
            sequences.push_back({begin, c.lengths[i], c.first_positions[i], pages[i].rows()});
            begin += c.lengths[i];
          }
          TestTensor candidates(DType::kI64, {num_tokens, c.top_k});
          Status status = backend.table.indexer_candidates(
              *backend.context, {q, weights, candidates, c.ratio, {shard, num_shards}, sequences});
          EXPECT_TRUE(status.ok()) << status.ToString();
          const auto width = static_cast<size_t>(c.top_k) * sizeof(int64_t);
          for (int64_t token = 0; token < num_tokens; ++token) {
            std::memcpy(all.view().as<std::byte>() + static_cast<size_t>(token * num_shards + shard) * width,
                        candidates.view().as<std::byte>() + static_cast<size_t>(token) * width, width);
          }
        }
        TestTensor selected(DType::kI32, {num_tokens, c.top_k});
        const Status status = backend.table.merge_candidates(
            *backend.context, {all.view().Reshaped({num_tokens, num_shards * c.top_k}), selected});
        EXPECT_TRUE(status.ok()) << status.ToString();
        return Outputs(std::move(selected));
      },
      FastOutputs::kBounded, OpsUsed::kOfShards);
  for (const Runs::Fast& fast : outputs.fast()) {
    if (AreIntegers(in)) {
      EXPECT_EQ(fast.outputs[0].Values(), outputs[0].Values()) << fast.backend->name;
    } else {
      ExpectBest(c, in, fast.outputs[0].Values(), fast.backend->name);
    }
  }
  return outputs[0].Values();
}

TEST(IndexerSelectParity, ExactAgainstAFullSortWithTies) {
  const SelectCase cases[] = {
      {1, 32, 4, 1, 1, {0}, {20}},
      {3, 32, 4, 5, 7, {0}, {61}},  // Fewer, as many and more entries than top_k.
      {4, 64, 4, 8, 53, {0, 3, 126, 400, 17}, {0, 1, 127, 9, 128}},  // Ragged.
      {64, 128, 4, 16, 64, {1021}, {5}},
      {64, 128, 4, 512, 64, {8190}, {2}},  // A few thousand entries,
      {16,
       128,
       1,
       100,
       61,
       {4093, 31, 98, 99, 101},
       {3, 1, 1, 1, 1}},                    // up to 4096; fewer than top_k, as many and more.
      {16, 128, 4, 64, 64, {11970}, {30}},  // Many tokens with many entries each,
      {64, 128, 1, 256, 61, {190}, {140}},  // in the release's width; around top_k and tiles of 64.
      {2, 32, 4, 512, 61, {2045}, {8}},     // Around top_k = visible.
      {1, 32, 1, 16, 4096, {299999}, {1}},  // 3e5 entries.
      {2, 32, 1, 3, 8, {10}, {4}},
  };
  for (const SelectCase& c : cases) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      // With ordinary f32 values the order of a double sum could decide a near-tie; integers make every sum
      // exact.
      for (const bool tied : {true, false}) {
        if (dtype == DType::kF32 && !tied) continue;
        const SelectInputs in = MakeInputs(c, dtype, tied);
        EXPECT_EQ(RunSelect(c, dtype, in), FullSort(c, dtype, in)) << "top_k " << c.top_k << " tied " << tied;
      }
    }
  }
}

TEST(IndexerSelectParity, AllEqualScoresTakeTheLowestIndices) {
  const SelectCase c = {2, 32, 4, 6, 5, {99}, {1}};
  SelectInputs in = MakeInputs(c, DType::kBF16, true);
  std::fill(in.q.begin(), in.q.end(), 0.0);
  EXPECT_EQ(RunSelect(c, DType::kBF16, in), (std::vector<double>{0, 1, 2, 3, 4, 5}));
}

TEST(IndexerSelectParity, NaNScoresAreTakenLast) {
  const SelectCase c = {1, 32, 4, 3, 5, {31}, {1}};  // 8 visible entries.
  SelectInputs in = MakeInputs(c, DType::kBF16, true);
  in.weights[0] = 1.0;
  for (const int64_t j : {0, 1, 2, 5})
    in.keys[0][static_cast<size_t>(j * 32)] = std::numeric_limits<double>::quiet_NaN();
  in.q[0] = 1.0;
  for (const double chosen : RunSelect(c, DType::kBF16, in)) {
    EXPECT_TRUE(chosen == 3 || chosen == 4 || chosen == 6 || chosen == 7) << chosen;
  }
}

// field-lessons.md A2 and A8.
TEST(IndexerSelectMutation, TopKRatioWeightsAndPositionsMatter) {
  const SelectCase c = {3, 32, 4, 5, 7, {100}, {6}};
  const SelectInputs in = MakeInputs(c, DType::kBF16, false);
  const std::vector<double> base = RunSelect(c, DType::kBF16, in);
  SelectInputs negated = in;
  for (double& weight : negated.weights) weight = -weight;
  EXPECT_NE(RunSelect(c, DType::kBF16, negated), base);

  SelectCase other = c;
  other.top_k = 4;
  EXPECT_NE(RunSelect(other, DType::kBF16, in).size(), base.size());
  // Only half the entries are visible to ratio 8.
  other = c;
  other.ratio = 8;
  EXPECT_NE(RunSelect(other, DType::kBF16, in), base);
  EXPECT_EQ(RunSelect(other, DType::kBF16, in), FullSort(other, DType::kBF16, in));
  // The same queries earlier in the sequence see fewer.
  other = c;
  other.first_positions = {40};
  EXPECT_EQ(RunSelect(other, DType::kBF16, in), FullSort(other, DType::kBF16, in));
  EXPECT_NE(RunSelect(other, DType::kBF16, in), base);
}

// The choice of ranks that divide the keys is that of one, equal scores included.
TEST(IndexerCandidatesParity, TogetherAsAlone) {
  const SelectCase cases[] = {
      {1, 32, 4, 1, 1, {0}, {20}},
      {3, 32, 4, 5, 7, {0}, {61}},  // Fewer, as many and more entries than top_k, and fewer than ranks.
      {4, 64, 4, 8, 53, {0, 3, 126, 400, 17}, {0, 1, 127, 9, 128}},  // Ragged.
      {2, 32, 4, 512, 61, {2045}, {8}},                              // Around top_k = visible.
      {2, 32, 1, 3, 8, {10}, {4}},
      {16,
       128,
       4,
       100,
       61,
       {4093},
       {1}},  // One token in the release's width: more entries on a rank than top_k,
      {16, 128, 4, 100, 61, {809}, {1}},    // as many and fewer,
      {64, 128, 1, 512, 64, {6000}, {1}},   // more than 4096 where one rank has all.
      {16, 128, 1, 1100, 64, {1200}, {1}},  // More candidates than are chosen in a cluster.
  };
  for (const SelectCase& c : cases) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const bool tied : {true, false}) {
        if (dtype == DType::kF32 && !tied) continue;
        const SelectInputs in = MakeInputs(c, dtype, tied);
        const std::vector<double> want = FullSort(c, dtype, in);
        for (const int64_t num_shards : {1, 2, 3, 4, 7}) {
          EXPECT_EQ(SelectTogether(c, dtype, in, num_shards), want)
              << "top_k " << c.top_k << " tied " << tied << ", " << num_shards << " shards";
        }
      }
    }
  }
}

TEST(IndexerCandidatesParity, AllEqualScoresTakeTheLowestIndicesOfAll) {
  const SelectCase c = {2, 32, 4, 6, 5, {99}, {1}};
  SelectInputs in = MakeInputs(c, DType::kBF16, true);
  for (const double key : {0.0, 1.0, std::nan("")}) {
    std::fill(in.keys[0].begin(), in.keys[0].end(), key);
    for (const int64_t num_shards : {2, 3, 4})
      EXPECT_EQ(SelectTogether(c, DType::kBF16, in, num_shards), (std::vector<double>{0, 1, 2, 3, 4, 5}))
          << key;
  }
}

// Numbers whose order is that of scores, then of entries from the last to the first.
TEST(IndexerCandidatesParity, CandidatesOrderAsTheirScores) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float scores[] = {std::nanf(""), -3.0F, -1e-40F, 0.0F, 1e-40F, 2.0F, kInfinity};
  EXPECT_EQ(ops::MakeCandidate(scores[0], 4), ops::MakeCandidate(-kInfinity, 4));
  EXPECT_EQ(ops::MakeCandidate(-0.0F, 4), ops::MakeCandidate(0.0F, 4));
  for (size_t i = 1; i < std::size(scores); ++i) {
    EXPECT_GT(ops::MakeCandidate(scores[i], 9), ops::MakeCandidate(scores[i - 1], 0));
    EXPECT_GT(ops::MakeCandidate(scores[i], 8), ops::MakeCandidate(scores[i], 9));
    EXPECT_EQ(ops::EntryOfCandidate(ops::MakeCandidate(scores[i], 2147483646)), 2147483646);
  }
  EXPECT_GT(ops::MakeCandidate(scores[0], 2147483646), 0U);
}

}  // namespace
}  // namespace dsv4::test
