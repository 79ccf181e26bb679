// attention at every length (field-lessons.md A1): window only, window and all entries, window and a list
// with holes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/parity/attention_problem.h"
#include "tests/parity/backends.h"
#include "tests/parity/cached_rows.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

// Slots of the ring: as many as the contract asks for, plus some.
struct RunOptions {
  int64_t extra_capacity = 0;
  int64_t rows_per_page = 53;
};

// The judge's output, then every fast backend's, which are compared with the formula if it holds no
// infinities.
std::vector<std::vector<double>> RunEverywhere(const Problem& problem, RunOptions options = {},
                                               bool finite = true) {
  const Geometry& g = problem.geometry;
  int64_t num_tokens = 0;
  std::vector<std::unique_ptr<TestRing>> rings;
  std::vector<std::unique_ptr<TestPages>> pages;
  std::vector<ops::AttentionSequence> sequences;
  for (const Context& context : problem.contexts) {
    const int64_t end = context.first_position + context.num_tokens;
    const int64_t capacity = std::min(g.window_size - 1, context.first_position) + context.num_tokens;
    rings.push_back(std::make_unique<TestRing>(
        problem.dtype, std::max<int64_t>(1, capacity + options.extra_capacity), g.head_dim));
    for (int64_t p = std::max<int64_t>(0, end - capacity); p < end; ++p) {
      rings.back()->Put(p,
                        std::span(context.keys)
                            .subspan(static_cast<size_t>(p * g.head_dim), static_cast<size_t>(g.head_dim)));
    }
    pages.push_back(
        std::make_unique<TestPages>(problem.dtype, g.head_dim, options.rows_per_page, context.entries));
    sequences.push_back(
        {num_tokens, context.num_tokens, context.first_position, rings.back()->rows(), pages.back()->rows()});
    num_tokens += context.num_tokens;
  }
  const Shape shape = {num_tokens, g.num_heads, g.head_dim};
  const TestTensor q(problem.dtype, shape, problem.q);
  const TestTensor sink(DType::kF32, {g.num_heads}, problem.sink);
  const TestTensor selected(DType::kI32, {num_tokens, g.top_k}, problem.selected);
  const auto outputs = RunOnAll(
      [&](const ops::Backend& backend) {
        TestTensor o(problem.dtype, shape);
        const ops::AttentionArgs args{q,
                                      sink,
                                      g.top_k > 0 ? selected.view() : TensorView(),
                                      o,
                                      problem.softmax_scale,
                                      g.window_size,
                                      g.ratio,
                                      sequences};
        const Status status = backend.table.attention(*backend.context, args);
        EXPECT_TRUE(status.ok()) << status.ToString();
        return Outputs(std::move(o));
      },
      FastOutputs::kBounded);
  if (finite) {
    const Expected want = Formula(problem, true);
    ExpectFast(outputs, 0, problem.dtype, want.values, want.magnitudes, g.head_dim, "attention", want.slack);
  }
  std::vector<std::vector<double>> results = {outputs[0].Values()};
  for (const Runs::Fast& fast : outputs.fast()) results.push_back(fast.outputs[0].Values());
  return results;
}

std::vector<double> RunAttention(const Problem& problem, RunOptions options = {}) {
  return RunEverywhere(problem, options)[0];
}

// Token `token` of sequence `index` as a step of its own.
Problem Alone(const Problem& problem, size_t index, int64_t token) {
  Problem alone = problem;
  const Context& context = problem.contexts[index];
  size_t row = static_cast<size_t>(token);
  for (size_t i = 0; i < index; ++i) row += static_cast<size_t>(problem.contexts[i].num_tokens);
  alone.contexts = {context};
  alone.contexts[0].first_position += token;
  alone.contexts[0].num_tokens = 1;
  const auto one_of = [&](std::vector<double>& values, size_t width) {
    const std::vector<double> kept(values.begin() + static_cast<int64_t>(row * width),
                                   values.begin() + static_cast<int64_t>((row + 1) * width));
    values = kept;
  };
  one_of(alone.q, static_cast<size_t>(problem.geometry.num_heads * problem.geometry.head_dim));
  if (problem.geometry.top_k > 0) one_of(alone.selected, static_cast<size_t>(problem.geometry.top_k));
  return alone;
}

double Cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  return ab / std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0) *
                        std::inner_product(b.begin(), b.end(), b.begin(), 0.0));
}

void ExpectFormula(const Problem& problem, const std::string& what, RunOptions options = {}) {
  const std::vector<double> got = RunAttention(problem, options);
  const Expected want = Formula(problem, true);
  ExpectRounded(problem.dtype, got, want.values, want.magnitudes, what);
  if (!got.empty()) {
    EXPECT_GE(Cosine(got, Formula(problem, false).values), 0.9999) << what;
  }
}

const Geometry kSwa = {2, 16, 128, 0, 0};
const Geometry kHca = {2, 16, 128, 128, 0};
const Geometry kHcaNarrow = {2, 16, 8, 4, 0};
const Geometry kCsa = {2, 16, 128, 4, 24};

TEST(AttentionParity, DecodeAtEveryLengthTo300) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Geometry& geometry : {kSwa, kHca, kHcaNarrow, kCsa}) {
      for (int64_t length = 1; length <= 300; ++length) {
        const Problem problem =
            MakeProblem(geometry, dtype, {length - 1}, {1}, static_cast<uint32_t>(length));
        ExpectFormula(problem,
                      "ratio " + std::to_string(geometry.ratio) + " length " + std::to_string(length));
      }
    }
  }
}

TEST(AttentionParity, PrefillInOneStep) {
  for (const Geometry& geometry : {kSwa, kHca, kHcaNarrow, kCsa}) {
    for (const int64_t length : {1, 2, 127, 128, 129, 260}) {
      ExpectFormula(MakeProblem(geometry, DType::kBF16, {0}, {length}, 3),
                    "prefill of " + std::to_string(length));
    }
  }
}

TEST(AttentionParity, LongContexts) {
  for (const int64_t length : {2047, 2048, 2049, 100000}) {
    for (const Geometry& geometry : {kSwa, kHca, kCsa}) {
      ExpectFormula(MakeProblem(geometry, DType::kBF16, {length - 1}, {1}, 5),
                    "length " + std::to_string(length));
    }
  }
  // A list as wide as the release's.
  ExpectFormula(MakeProblem({1, 512, 128, 4, 512}, DType::kBF16, {2051}, {2}, 6), "512 of 513 entries");
}

TEST(AttentionParity, ReleaseShape) {
  ExpectFormula(MakeProblem({64, 512, 128, 4, 512}, DType::kBF16, {700}, {2}, 7), "64 heads of 512");
}

TEST(AttentionParity, RaggedBatchEqualsEachSequenceAlone) {
  for (const Geometry& geometry : {kSwa, kHca, kCsa}) {
    const std::vector<int64_t> first = {0, 5, 126, 500, 0, 127, 128};
    const std::vector<int64_t> lengths = {0, 1, 3, 127, 128, 1, 129};
    const Problem batch = MakeProblem(geometry, DType::kBF16, first, lengths, 8);
    ExpectFormula(batch, "ragged");
    std::vector<double> alone;
    size_t token = 0;
    for (const Context& context : batch.contexts) {
      const size_t count = static_cast<size_t>(context.num_tokens);
      Problem single = batch;
      single.contexts = {context};
      const size_t q_row = static_cast<size_t>(geometry.num_heads * geometry.head_dim);
      single.q.assign(batch.q.begin() + static_cast<int64_t>(token * q_row),
                      batch.q.begin() + static_cast<int64_t>((token + count) * q_row));
      const size_t list = static_cast<size_t>(geometry.top_k);
      if (list > 0) {
        single.selected.assign(batch.selected.begin() + static_cast<int64_t>(token * list),
                               batch.selected.begin() + static_cast<int64_t>((token + count) * list));
      }
      const std::vector<double> o = RunAttention(single);
      alone.insert(alone.end(), o.begin(), o.end());
      token += count;
    }
    EXPECT_EQ(RunAttention(batch), alone);
  }
}

// Prefill and decode are one op. The last query of a chunk gives the bits of the same query alone, whatever
// the ring's capacity and the pages' size.
TEST(AttentionParity, StepsRingsAndPagesDoNotMatter) {
  for (const Geometry& geometry : {kSwa, kHca, kCsa}) {
    const Problem chunk = MakeProblem(geometry, DType::kBF16, {90}, {200}, 9);
    const std::vector<double> together = RunAttention(chunk);
    for (const RunOptions& options : {RunOptions{1, 1}, RunOptions{130, 64}, RunOptions{0, 4096}}) {
      EXPECT_EQ(RunAttention(chunk, options), together);
    }
    const size_t row = static_cast<size_t>(geometry.num_heads * geometry.head_dim);
    for (const int64_t i : {0, 1, 37, 38, 199}) {
      Problem single = chunk;
      single.contexts[0].first_position = 90 + i;
      single.contexts[0].num_tokens = 1;
      single.contexts[0].keys.resize(static_cast<size_t>((91 + i) * geometry.head_dim));
      single.q.assign(chunk.q.begin() + i * static_cast<int64_t>(row),
                      chunk.q.begin() + (i + 1) * static_cast<int64_t>(row));
      if (geometry.top_k > 0) {
        single.selected.assign(chunk.selected.begin() + i * geometry.top_k,
                               chunk.selected.begin() + (i + 1) * geometry.top_k);
      }
      const auto begin = together.begin() + i * static_cast<int64_t>(row);
      EXPECT_EQ(RunAttention(single), std::vector<double>(begin, begin + static_cast<int64_t>(row)));
    }
  }
}

TEST(AttentionParity, ListWithoutAnEntryIsTheWindowAlone) {
  Problem problem = MakeProblem(kCsa, DType::kBF16, {200}, {60}, 16);
  std::fill(problem.selected.begin(), problem.selected.end(), -1.0);
  Problem window = problem;
  window.geometry.ratio = 0;
  window.geometry.top_k = 0;
  window.selected.clear();
  EXPECT_EQ(RunAttention(problem), RunAttention(window));
}

TEST(AttentionParity, OrderOfTheListDoesNotMatter) {
  Problem problem = MakeProblem(kCsa, DType::kBF16, {400}, {1}, 10);
  const std::vector<double> base = RunAttention(problem);
  std::reverse(problem.selected.begin(), problem.selected.end());
  EXPECT_EQ(RunAttention(problem), base);
}

// Heads and columns that fill no vector, windows and lists that end anywhere.
TEST(AttentionParity, OddShapes) {
  uint32_t seed = 20;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Geometry& geometry :
         {Geometry{1, 1, 1, 1, 0}, Geometry{3, 37, 9, 4, 5}, Geometry{33, 20, 130, 0, 0},
          Geometry{17, 257, 31, 2, 19}, Geometry{5, 515, 3, 1, 0}}) {
      const Problem batch = MakeProblem(geometry, dtype, {0, 7, 61, 128}, {19, 1, 33, 3}, ++seed);
      ExpectFormula(
          batch, "heads " + std::to_string(geometry.num_heads) + " dim " + std::to_string(geometry.head_dim));
    }
  }
  // Entries past the block in which values are taken, seen by several queries.
  ExpectFormula(MakeProblem({2, 16, 8, 1, 0}, DType::kBF16, {1021}, {12}, 31), "1033 entries");
}

// On every backend a query's bits depend on neither the queries nor the sequences beside it.
TEST(AttentionParity, EveryQueryEqualsItselfAlone) {
  uint32_t seed = 50;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Geometry& geometry :
         {Geometry{3, 40, 9, 0, 0}, Geometry{20, 33, 16, 4, 0}, Geometry{2, 16, 7, 2, 11}}) {
      const Problem batch = MakeProblem(geometry, dtype, {0, 30, 531}, {21, 12, 11}, ++seed);
      const std::vector<std::vector<double>> together = RunEverywhere(batch);
      const auto row = geometry.num_heads * geometry.head_dim;
      int64_t first = 0;
      for (size_t s = 0; s < batch.contexts.size(); ++s) {
        for (int64_t t = 0; t < batch.contexts[s].num_tokens; ++t, ++first) {
          const std::vector<std::vector<double>> alone = RunEverywhere(Alone(batch, s, t));
          for (size_t i = 0; i < alone.size(); ++i) {
            EXPECT_TRUE(std::equal(alone[i].begin(), alone[i].end(), together[i].begin() + first * row))
                << "output " << i << ", sequence " << s << ", token " << t;
          }
        }
      }
    }
  }
}

// Keys that a query does not see cannot reach it, not even as 0 times infinity: neighbours in a chunk share
// pairs of rows.
TEST(AttentionParity, ANeighboursInfinityStaysItsOwn) {
  for (const Geometry& geometry : {kSwa, kHcaNarrow, kCsa}) {
    const Problem problem = MakeProblem(geometry, DType::kBF16, {20}, {9}, 40);
    const std::vector<std::vector<double>> base = RunEverywhere(problem);
    const int64_t row = geometry.num_heads * geometry.head_dim;
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      for (const int64_t from : {3, 4}) {  // The position of one query, and so invisible to those before it.
        Problem mutated = problem;
        mutated.contexts[0].keys[static_cast<size_t>((20 + from) * geometry.head_dim)] = bad;
        const std::vector<std::vector<double>> outputs = RunEverywhere(mutated, {}, false);
        for (size_t i = 0; i < outputs.size(); ++i) {
          EXPECT_TRUE(std::equal(outputs[i].begin(), outputs[i].begin() + from * row, base[i].begin())) << i;
          EXPECT_FALSE(std::isfinite(outputs[i][static_cast<size_t>(from * row)])) << i;
        }
      }
    }
  }
}

// field-lessons.md A2: each sink, the ratio, the list, the window and the scale take part.
TEST(AttentionMutation, EveryArgumentMatters) {
  for (const Geometry& geometry : {kSwa, kHca, kCsa}) {
    const Problem problem = MakeProblem(geometry, DType::kBF16, {399}, {1}, 11);
    const std::vector<double> base = RunAttention(problem);
    const size_t dim = static_cast<size_t>(geometry.head_dim);
    for (size_t head = 0; head < 2; ++head) {
      Problem mutated = problem;
      mutated.sink[head] += 8.0;
      const std::vector<double> o = RunAttention(mutated);
      for (size_t h = 0; h < 2; ++h) {
        const auto slice = [&](const std::vector<double>& values) {
          return std::vector<double>(values.begin() + static_cast<int64_t>(h * dim),
                                     values.begin() + static_cast<int64_t>((h + 1) * dim));
        };
        EXPECT_EQ(slice(o) != slice(base), h == head) << "sink " << head << ", head " << h;
      }
    }
    Problem mutated = problem;
    mutated.geometry.window_size = 127;
    EXPECT_NE(RunAttention(mutated), base);
    mutated = problem;
    mutated.softmax_scale *= 1.01F;
    EXPECT_NE(RunAttention(mutated), base);
  }
  // One entry fewer: ratio 200 sees entries 0 and 1 where 128 sees three.
  Problem problem = MakeProblem(kHca, DType::kBF16, {399}, {1}, 12);
  std::vector<double> base = RunAttention(problem);
  problem.geometry.ratio = 200;
  EXPECT_NE(RunAttention(problem), base);
  problem.geometry.ratio = 0;
  EXPECT_NE(RunAttention(problem), base);

  problem = MakeProblem(kCsa, DType::kBF16, {399}, {1}, 13);
  base = RunAttention(problem);
  for (double& entry : problem.selected) {
    if (entry < 0) continue;
    const double kept = entry;
    entry = -1;
    EXPECT_NE(RunAttention(problem), base) << "entry " << kept;
    entry = kept;
  }
}

// Visibility off by one (model.md section 14, 15): an entry counts from its own last token on, not later.
TEST(AttentionMutation, AnEntryIsVisibleFromItsOwnLastToken) {
  for (const int64_t ratio : {4, 128}) {
    const Geometry geometry = {1, 16, 8, ratio, 0};
    for (const int64_t position : {ratio - 2, ratio - 1, 2 * ratio - 2, 2 * ratio - 1}) {
      Problem problem = MakeProblem(geometry, DType::kBF16, {position}, {1}, 14);
      problem.contexts[0].entries.resize(static_cast<size_t>(4 * geometry.head_dim), 5.0);
      const std::vector<double> base = RunAttention(problem);
      for (int64_t entry = 0; entry < 4; ++entry) {
        Problem mutated = problem;
        for (int64_t d = 0; d < geometry.head_dim; ++d) {
          mutated.contexts[0].entries[static_cast<size_t>(entry * geometry.head_dim + d)] += 1.0;
        }
        EXPECT_EQ(RunAttention(mutated) != base, entry < (position + 1) / ratio) << position << " " << entry;
      }
    }
  }
}

TEST(AttentionParity, ExtremeLogitsAndSinksStayFinite) {
  Problem problem = MakeProblem(kSwa, DType::kF32, {9}, {1}, 15);
  for (double& value : problem.q) value *= 1e4;
  ExpectFormula(problem, "large logits");
  problem.sink = {1e30, -1e30};
  const std::vector<double> o = RunAttention(problem);
  for (size_t d = 0; d < 16; ++d) {
    EXPECT_EQ(o[d], 0.0);  // All the weight on the sink.
    EXPECT_TRUE(std::isfinite(o[16 + d]) && o[16 + d] != 0.0);
  }
}

TEST(AttentionErrors, EntriesOutsideTheVisibleSetAndRepeatsAreNamed) {
  const auto status = [](std::vector<double> selected, int64_t position, bool ordered = false) {
    const TestTensor q(DType::kBF16, {1, 1, 4}, std::vector<double>(4, 1.0));
    const TestTensor sink(DType::kF32, {1}, std::vector<double>{0.0});
    const TestTensor list(DType::kI32, {1, static_cast<int64_t>(selected.size())}, selected);
    TestRing ring(DType::kBF16, 64, 4);
    for (int64_t p = 0; p <= position; ++p) ring.Put(p, std::vector<double>(4, 1.0));
    const TestPages pages(DType::kBF16, 4, 8, std::vector<double>(32 * 4, 1.0));
    const std::vector<ops::AttentionSequence> sequences = {{0, 1, position, ring.rows(), pages.rows()}};
    TestTensor o(DType::kBF16, {1, 1, 4});
    return Reference().table.attention(*Reference().context,
                                       {q, sink, list, o, 1.0F, 32, 4, sequences, ordered});
  };
  EXPECT_TRUE(status({-1, 3, 0, -1}, 15).ok());
  EXPECT_TRUE(status({0, 1, 3}, 15, true).ok());
  EXPECT_TRUE(status({0, 1, 2, 3, -1}, 15, true).ok());
  for (const auto& list : std::vector<std::vector<double>>{
           {1, 0, 3}, {0, 0, 1}, {0, -1, 1}, {0, 1, -1}, {-1, 0, 1}, {0, 1, 2, 3, 3}})
    EXPECT_NE(status(list, 15, true).message().find("ordered: selected[0, "), std::string::npos);
  EXPECT_NE(status({0, 4}, 15).message().find("selected[0, 1]: 4, want -1 or 0 to 3"), std::string::npos);
  EXPECT_NE(status({-2}, 15).message().find("selected[0, 0]: -2"), std::string::npos);
  EXPECT_NE(status({1, -1, 1}, 15).message().find("entry 1 more than once"), std::string::npos);
  EXPECT_FALSE(status({0}, 2).ok());  // No entry is complete at position 2.
}

}  // namespace
}  // namespace dsv4::test
