// Packed cache rows: the stored row is the rounded one. Every op that reads it gives the bits that it gives
// for the same rows in bf16, on every backend that packs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/parity/attention_problem.h"
#include "tests/parity/backends.h"
#include "tests/parity/cached_rows.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

using ::testing::HasSubstr;

constexpr DType kBF16 = DType::kBF16;

// The backends that pack.
std::vector<const ops::Backend*> Packing() {
  std::vector<const ops::Backend*> backends = {&Reference()};
  for (const ops::Backend& backend : Candidates()) backends.push_back(&backend);
  for (const FastBackend& fast : FastBackends()) {
    backends.push_back(&fast.one_thread);
    backends.push_back(&fast.three_threads);
  }
  std::erase_if(backends, [](const ops::Backend* backend) { return !backend->packs_rows; });
  return backends;
}

// The same numbers; NaN is NaN.
void ExpectSameValues(const TestTensor& packed, const TestTensor& wide, const std::string& what) {
  EXPECT_TRUE(packed.GuardsIntact() && wide.GuardsIntact()) << what;
  if (packed.Bytes() == wide.Bytes()) return;
  const std::vector<double> got = packed.Values();
  const std::vector<double> want = wide.Values();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_EQ(got[i], want[i]) << what << ", element " << i;
  }
}

struct Formats {
  CacheFormat window;
  CacheFormat entries;
};

// Sequences over rows that the test owns: rings with room for the last positions, and pages of seven rows.
class Caches {
 public:
  Caches(const Problem& problem, const Formats& formats, bool packed, const EntryShard& shard = {}) {
    const int64_t dim = problem.geometry.head_dim;
    int64_t token = 0;
    for (const Context& context : problem.contexts) {
      const CacheFormat window = packed ? formats.window : CacheFormat(problem.dtype);
      const CacheFormat entries = packed ? formats.entries : CacheFormat(problem.dtype);
      const int64_t end = context.first_position + context.num_tokens;
      const int64_t capacity = problem.geometry.window_size - 1 + context.num_tokens + 2;
      rings_.push_back(std::make_unique<StoredRows>(window, dim, capacity));
      for (int64_t p = std::max<int64_t>(0, end - capacity); p < end; ++p) {
        const auto row =
            std::span(context.keys).subspan(static_cast<size_t>(p * dim), static_cast<size_t>(dim));
        rings_.back()->Put(p % capacity, row);
      }
      std::vector<double> here;
      for (int64_t e = 0; e * dim < static_cast<int64_t>(context.entries.size()); ++e) {
        if (!shard.Has(e)) continue;
        here.insert(here.end(), context.entries.begin() + e * dim, context.entries.begin() + (e + 1) * dim);
      }
      pages_.push_back(std::make_unique<StoredPages>(entries, dim, 7, here));
      sequences_.push_back({token,
                            context.num_tokens,
                            context.first_position,
                            {rings_.back()->Row(0), capacity, dim, window},
                            pages_.back()->rows()});
      token += context.num_tokens;
    }
  }
  const std::vector<ops::AttentionSequence>& sequences() const { return sequences_; }

 private:
  std::vector<std::unique_ptr<StoredRows>> rings_;
  std::vector<std::unique_ptr<StoredPages>> pages_;
  std::vector<ops::AttentionSequence> sequences_;
};

TestTensor RunAttention(const ops::Backend& backend, const Problem& problem, const Caches& caches) {
  const Geometry& g = problem.geometry;
  const int64_t n = static_cast<int64_t>(problem.q.size()) / (g.num_heads * g.head_dim);
  const TestTensor q(problem.dtype, {n, g.num_heads, g.head_dim}, problem.q);
  const TestTensor sink(DType::kF32, {g.num_heads}, problem.sink);
  const TestTensor selected(DType::kI32, {n, std::max<int64_t>(g.top_k, 1)},
                            g.top_k > 0 ? problem.selected : std::vector<double>(static_cast<size_t>(n)));
  TestTensor o(problem.dtype, {n, g.num_heads, g.head_dim});
  const Status status =
      backend.table.attention(*backend.context, {.q = q,
                                                 .sink = sink,
                                                 .selected = g.top_k > 0 ? selected.view() : TensorView(),
                                                 .o = o,
                                                 .softmax_scale = problem.softmax_scale,
                                                 .window_size = g.window_size,
                                                 .ratio = g.ratio,
                                                 .sequences = caches.sequences()});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return o;
}

TestTensor RunPart(const ops::Backend& backend, const Problem& problem, const Caches& caches,
                   const EntryShard& shard) {
  const Geometry& g = problem.geometry;
  const int64_t n = static_cast<int64_t>(problem.q.size()) / (g.num_heads * g.head_dim);
  const TestTensor q(problem.dtype, {n, g.num_heads, g.head_dim}, problem.q);
  TestTensor part(DType::kF32, {n, g.num_heads, g.head_dim + 2});
  const Status status =
      backend.table.attention_part(*backend.context, {.q = q,
                                                      .selected = {},
                                                      .part = part,
                                                      .softmax_scale = problem.softmax_scale,
                                                      .window_size = g.window_size,
                                                      .ratio = g.ratio,
                                                      .shard = shard,
                                                      .sequences = caches.sequences()});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return part;
}

Problem OnGrid(Problem problem, const Formats& formats) {
  for (Context& context : problem.contexts) {
    context.keys = RoundedFor(formats.window, problem.geometry.head_dim, context.keys);
    if (problem.geometry.ratio > 0)
      context.entries = RoundedFor(formats.entries, problem.geometry.head_dim, context.entries);
  }
  return problem;
}

// The release's rows in the widths of its models and of small ones, and V4.1's.
struct AttentionCase {
  Geometry geometry;
  Formats formats;
  std::vector<int64_t> first_positions;
  std::vector<int64_t> lengths;
};
std::vector<AttentionCase> AttentionCases() {
  const Formats small = {CacheFormat::Fp8(64, 64), CacheFormat::Fp8(64, 64)};
  const Formats release = {CacheFormat::Fp8(448, 64), CacheFormat::Fp8(448, 64)};
  const Formats v41 = {CacheFormat::Fp8(512, 32), CacheFormat::Fp4WithE4m3Scales(512, 16)};
  return {{{4, 128, 16, 4, 0}, small, {0, 30}, {9, 3}},
          {{4, 128, 16, 4, 5}, small, {40, 90}, {4, 1}},
          {{16, 512, 32, 4, 24}, release, {150}, {1}},
          {{16, 512, 32, 4, 24}, release, {0, 120, 77}, {5, 12, 1}},
          {{64, 512, 128, 128, 0}, release, {700}, {2}},
          {{16, 512, 32, 0, 0}, release, {60}, {40}},
          {{16, 512, 32, 2, 24}, v41, {90, 3}, {3, 2}}};
}

// As many tokens and keys as backends have kernels and ways of their own for.
std::vector<AttentionCase> LargeAttentionCases() {
  const Formats release = {CacheFormat::Fp8(448, 64), CacheFormat::Fp8(448, 64)};
  std::vector<int64_t> seventy(70);
  std::iota(seventy.begin(), seventy.end(), 90);
  const std::vector<int64_t> ones(seventy.size(), 1);
  const std::vector<int64_t> far(40, 1330);
  const auto first_ones = [&](size_t count) {
    return std::vector<int64_t>(ones.begin(), ones.begin() + static_cast<int64_t>(count));
  };
  return {
      {{4, 512, 32, 0, 0}, release, {60}, {70}},                   // Rows that many tokens share,
      {{4, 512, 32, 4, 24}, release, {100, 3}, {80, 9}},           // and entries,
      {{3, 512, 32, 4, 24}, release, seventy, ones},               // rows that none share,
      {{2, 512, 32, 1, 0}, release, far, first_ones(far.size())},  // more keys for each,
      {{33, 512, 32, 1, 0}, release, {1330, 1340, 1350, 1360, 1370, 1380, 1390, 1400, 1410}, first_ones(9)},
      {{20, 512, 32, 1, 0}, release, {2100}, {1}}};  // and for one.
}

TEST(PackedRows, AttentionGivesTheBitsOfWideRows) {
  std::vector<AttentionCase> cases = AttentionCases();
  for (AttentionCase& c : LargeAttentionCases()) cases.push_back(std::move(c));
  for (const AttentionCase& c : cases) {
    const Problem problem =
        OnGrid(MakeProblem(c.geometry, kBF16, c.first_positions, c.lengths, 11), c.formats);
    const Caches packed(problem, c.formats, true);
    const Caches wide(problem, c.formats, false);
    for (const ops::Backend* const backend : Packing()) {
      ExpectSameValues(RunAttention(*backend, problem, packed), RunAttention(*backend, problem, wide),
                       backend->name + ", head_dim " + std::to_string(c.geometry.head_dim));
    }
  }
}

// Queries that share keys are then taken one by one (backend/cpu/attention.cc).
TEST(PackedRows, NaNAmongTheRows) {
  const Formats formats = {CacheFormat::Fp8(64, 64), CacheFormat::Fp8(64, 64)};
  Problem problem = OnGrid(MakeProblem({4, 128, 8, 4, 0}, kBF16, {20}, {12}, 3), formats);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  problem.contexts[0].keys[25 * 128 + 7] = kNaN;
  problem.contexts[0].keys[30 * 128 + 100] = kNaN;
  const Caches packed(problem, formats, true);
  const Caches wide(problem, formats, false);
  for (const ops::Backend* const backend : Packing()) {
    const TestTensor o = RunAttention(*backend, problem, packed);
    ExpectSameValues(o, RunAttention(*backend, problem, wide), backend->name);
    const std::vector<double> values = o.Values();
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); }));
    EXPECT_TRUE(std::isfinite(values[0])) << "the first query does not see position 25";
  }
}

TEST(PackedRows, AttentionPartGivesTheBitsOfWideRows) {
  for (const AttentionCase& c : AttentionCases()) {
    if (c.geometry.ratio == 0) continue;
    AttentionCase all = c;
    all.geometry.top_k = 0;
    const Problem problem =
        OnGrid(MakeProblem(all.geometry, kBF16, c.first_positions, c.lengths, 12), c.formats);
    for (int64_t index = 0; index < 2; ++index) {
      const EntryShard shard{index, 2};
      const Caches packed(problem, c.formats, true, shard);
      const Caches wide(problem, c.formats, false, shard);
      for (const ops::Backend* const backend : Packing()) {
        if (backend->table.attention_part == nullptr) continue;
        ExpectSameValues(RunPart(*backend, problem, packed, shard), RunPart(*backend, problem, wide, shard),
                         backend->name);
      }
    }
  }
}

TEST(PackedRows, IndexerChoosesWhatItChoosesOfWideKeys) {
  struct Case {
    int64_t heads;
    int64_t width;
    int64_t top_k;
    int64_t first_position;
    int64_t num_tokens;
    double last_group =
        1;  // Times the last group of every eleventh key: too far from the others for products of bytes.
  };
  for (const Case& c : {Case{4, 32, 5, 100, 3}, Case{64, 128, 16, 300, 1}, Case{64, 128, 16, 397, 9},
                        Case{64, 128, 16, 397, 9, 0x1p-12}}) {
    constexpr int64_t kRatio = 4;
    const CacheFormat format = CacheFormat::Fp4(c.width, 32);
    Random random(9);
    const int64_t num_keys = (c.first_position + c.num_tokens) / kRatio;
    std::vector<double> normals = random.Normals(num_keys * c.width);
    for (int64_t key = 0; key < num_keys; key += 11) {
      for (int64_t k = c.width - 32; k < c.width; ++k)
        normals[static_cast<size_t>(key * c.width + k)] *= c.last_group;
    }
    const std::vector<double> keys = RoundedFor(format, c.width, normals);
    const TestTensor q(kBF16, {c.num_tokens, c.heads, c.width},
                       RoundedFor(format, c.width, random.Normals(c.num_tokens * c.heads * c.width)));
    const TestTensor weights(kBF16, {c.num_tokens, c.heads},
                             Rounded(kBF16, random.Normals(c.num_tokens * c.heads)));
    for (const EntryShard& shard : {EntryShard{0, 1}, EntryShard{0, 2}, EntryShard{1, 2}}) {
      std::vector<double> here;
      for (int64_t e = 0; e < num_keys; ++e) {
        if (shard.Has(e))
          here.insert(here.end(), keys.begin() + e * c.width, keys.begin() + (e + 1) * c.width);
      }
      const auto chosen = [&](const ops::Backend& backend, const CacheFormat& of) {
        const StoredPages pages(of, c.width, 6, here);
        const ops::IndexerSequence sequence{0, c.num_tokens, c.first_position, pages.rows()};
        TestTensor out(shard.count == 1 ? DType::kI32 : DType::kI64, {c.num_tokens, c.top_k});
        const Status status =
            shard.count == 1
                ? backend.table.indexer_select(*backend.context, {.q = q,
                                                                  .weights = weights,
                                                                  .selected = out,
                                                                  .ratio = kRatio,
                                                                  .sequences = std::span(&sequence, 1)})
                : backend.table.indexer_candidates(*backend.context, {.q = q,
                                                                      .weights = weights,
                                                                      .candidates = out,
                                                                      .ratio = kRatio,
                                                                      .shard = shard,
                                                                      .sequences = std::span(&sequence, 1)});
        EXPECT_TRUE(status.ok()) << status.ToString();
        EXPECT_TRUE(out.GuardsIntact());
        return out.Bytes();
      };
      for (const ops::Backend* const backend : Packing()) {
        EXPECT_EQ(chosen(*backend, format), chosen(*backend, kBF16)) << backend->name;
        EXPECT_EQ(chosen(*backend, format), chosen(Reference(), format)) << backend->name;
      }
    }
  }
}

// Rows go where runs say, as PackRow packs them; what lies around them is untouched.
TEST(PackedRows, StoreAndGather) {
  for (const CacheFormat& format : {CacheFormat::Fp8(448, 64), CacheFormat::Fp8(512, 32),
                                    CacheFormat::Fp4(512, 32), CacheFormat::Fp4WithE4m3Scales(512, 16)}) {
    constexpr int64_t kWidth = 512;
    constexpr int64_t kRows = 37;
    Random random(4);
    const std::vector<double> values = RoundedFor(format, kWidth, random.Normals(kRows * kWidth));
    const TestTensor source(kBF16, {kRows, kWidth}, values);
    StoredRows want(format, kWidth, kRows + 1);
    for (int64_t row = 0; row < kRows; ++row) {
      if (row == 20) continue;  // In no run.
      want.Put(row < 20 ? row : row + 1,
               std::span(values).subspan(static_cast<size_t>(row * kWidth), kWidth));
    }
    for (const ops::Backend* const backend : Packing()) {
      StoredRows got(format, kWidth, kRows + 1);
      const RowRun runs[] = {{21, 16, got.Row(22)}, {0, 20, got.Row(0)}, {5, 0, nullptr}};
      const Status status =
          backend->table.store_rows(*backend->context, {.source = source, .runs = runs, .pack = format});
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(got.bytes(), want.bytes()) << backend->name << ", " << ToString(format);

      // As they are stored they come together, and go elsewhere.
      if (backend->table.gather_rows == nullptr) continue;
      const StoredPages pages(format, kWidth, 5, std::span(values).first(13 * kWidth));
      TestTensor rows(DType::kU8, {13, format.RowBytes(kWidth)});
      const ops::PagedRows from = pages.rows();
      ASSERT_TRUE(backend->table.gather_rows(*backend->context, {std::span(&from, 1), rows}).ok());
      EXPECT_TRUE(rows.GuardsIntact());
      EXPECT_EQ(std::memcmp(rows.view().data, want.bytes().data() + format.RowBytes(kWidth),
                            static_cast<size_t>(13 * format.RowBytes(kWidth))),
                0);
      StoredRows copied(format, kWidth, kRows + 1);
      const RowRun all = {0, 13, copied.Row(0)};
      ASSERT_TRUE(
          backend->table.store_rows(*backend->context, {.source = rows, .runs = std::span(&all, 1)}).ok());
      EXPECT_EQ(std::memcmp(copied.Row(0), want.Row(0), static_cast<size_t>(13 * format.RowBytes(kWidth))),
                0);
    }
  }
}

TEST(PackedRows, WhatIsNotOnTheGridIsRefused) {
  Random random(4);
  const CacheFormat format = CacheFormat::Fp8(448, 64);
  std::vector<double> values = RoundedFor(format, 512, random.Normals(3 * 512));
  values[2 * 512 + 70] = 1.0 + 1.0 / 32;
  const TestTensor source(kBF16, {3, 512}, values);
  for (const ops::Backend* const backend : Packing()) {
    StoredRows rows(format, 512, 3);
    const RowRun run = {0, 3, rows.Row(0)};
    const Status status = backend->table.store_rows(
        *backend->context, {.source = source, .runs = std::span(&run, 1), .pack = format});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("row 2")) << backend->name;
  }
}

}  // namespace
}  // namespace dsv4::test
