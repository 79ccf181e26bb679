// Contracts of what attention is made of: rotation, cache rounding, row stores, compressor, indexer,
// attention.
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/contracts_testing.h"

namespace dsv4::ops {
namespace {

using ::testing::HasSubstr;

TEST_F(ContractTest, Rope) {
  const RopeArgs valid{New(kBF16, {3, 2, 8}), New(kI32, {3}), New(kF32, {4}), false};
  ExpectOk(valid);
  using A = RopeArgs;
  ExpectViolation<A>(
      valid, [&](A& a) { a.frequencies = New(kF32, {5}); },
      "rope: frequencies: 5, want at most half the width, 4");
  ExpectViolation<A>(
      valid, [&](A& a) { a.positions = New(kI32, {2}); }, "positions: shape [2], want [3]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.positions = New(DType::kI64, {3}); }, "positions: dtype I64");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.x); }, "x: strides");
}

TEST_F(ContractTest, SimulateFp8) {
  const SimulateFp8Args valid{New(kBF16, {3, 80}), 64, 64};
  ExpectOk(valid);
  using A = SimulateFp8Args;
  ExpectViolation<A>(
      valid, [](A& a) { a.num_columns = 81; }, "simulate_fp8: num_columns: 81, want 0 to 80");
  ExpectViolation<A>(
      valid, [](A& a) { a.num_columns = -64; }, "num_columns: -64");
  ExpectViolation<A>(
      valid, [](A& a) { a.num_columns = 63; }, "num_columns: 63, want a multiple of the group, 64");
  ExpectViolation<A>(
      valid, [](A& a) { a.group = 0; }, "group: 0, want at least 1");
}

TEST_F(ContractTest, HadamardFp4) {
  const HadamardFp4Args valid{New(kBF16, {3, 64})};
  ExpectOk(valid);
  for (const int64_t width : {0, 16, 48, 96}) {
    ExpectViolation<HadamardFp4Args>(
        valid,
        [&](HadamardFp4Args& a) {
          a.x = New(kBF16, {3, width});
        },
        "hadamard_fp4: x: width " + std::to_string(width));
  }
  ExpectViolation<HadamardFp4Args>(
      valid, [](HadamardFp4Args& a) { Slice(a.x); }, "x: strides");
}

TEST_F(ContractTest, StoreRows) {
  const TensorView source = New(kBF16, {4, 8});
  void* const place = New(kBF16, {4, 8}).data;
  const auto status = [&](RowRun run) {
    const RowRun runs[] = {{0, 1, place}, run};
    return Validate(StoreRowsArgs{source, runs});
  };
  EXPECT_TRUE(status({1, 3, place}).ok());
  EXPECT_TRUE(status({9, 0, nullptr}).ok());
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(status({2, 3, place}).message(),
              HasSubstr("store_rows: runs[1]: 3 rows from 2, want rows of a source of 4"));
  for (const RowRun& run :
       {RowRun{-1, 1, place}, {5, 1, place}, {1, kHuge, place}, {kHuge, 1, place}, {0, -1, place}}) {
    EXPECT_FALSE(status(run).ok());
  }
  EXPECT_THAT(status({0, 1, nullptr}).message(), HasSubstr("runs[1]: destination null"));
  const auto packed = [&](const CacheFormat& format) {
    const RowRun run = {0, 1, place};
    return Validate(StoreRowsArgs{.source = source, .runs = std::span(&run, 1), .pack = format}).message();
  };
  EXPECT_THAT(packed(CacheFormat::Fp8(64, 64)), HasSubstr("op store_rows: pack: cache format 64 x E4M3"));
  EXPECT_THAT(packed(DType::kBF16), HasSubstr("pack: a format without codes, want null or one with codes"));
  CacheFormat other = CacheFormat::Fp4(2, 2);
  other.dtype = source.dtype == kBF16 ? kF32 : kBF16;
  EXPECT_THAT(packed(other), HasSubstr("store_rows: source: dtype"));
  TensorView slice = source;
  Slice(slice);
  EXPECT_THAT(Validate(StoreRowsArgs{slice, {}}).message(), HasSubstr("source: strides"));
}

TEST_F(ContractTest, CompressorPool) {
  const auto ring = [&](int64_t capacity) {
    return RingRows{New(kF32, {capacity, 12}).data, capacity, 12, kF32};
  };
  // Tokens 2 to 7 and 0 to 3: entries 0 and 1 of the first, 0 of the second sequence.
  std::vector<CompressorSequence> sequences = {{0, 6, 2, ring(7), ring(7)}, {6, 4, 0, ring(9), ring(9)}};
  const CompressorPoolArgs valid{
      New(kF32, {10, 12}), New(kF32, {10, 12}), New(kF32, {4, 12}), New(kBF16, {3, 6}), 4, true, sequences};
  ExpectOk(valid);
  using A = CompressorPoolArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.pooled = New(kBF16, {2, 6});
      },
      "compressor_pool: pooled: shape [2, 6], want [3, 6]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.pooled = New(kBF16, {3, 12});
      },
      "pooled: shape [3, 12], want [3, 6]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.scores = New(kBF16, {10, 12});
      },
      "scores: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.ape = New(kF32, {3, 12});
      },
      "ape: shape [3, 12], want [4, 12]");
  ExpectViolation<A>(
      valid, [](A& a) { a.ratio = 0; }, "ratio: 0, want at least 1");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.values = New(kF32, {10, 11});
        a.scores = New(kF32, {10, 11});
        a.ape = New(kF32, {4, 11});
      },
      "values: width 11, want an even number");
  sequences[1].token_begin = 5;
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[1]: token_begin 5, want 6");
  sequences[1].token_begin = 6;
  sequences[0].score_history.capacity = 6;
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].score_history: capacity 6, want at least 7");
  sequences[0].score_history.capacity = 7;
  sequences[0].value_history.width = 6;
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].value_history: width 6, want 12");
}

TEST_F(ContractTest, IndexerSelect) {
  void* const pages[] = {New(kBF16, {4, 32}).data, New(kBF16, {4, 32}).data};
  std::vector<IndexerSequence> sequences = {
      {0, 3, 20, {pages, 4, 5, 32, kBF16}}};  // 5 entries visible to the last.
  const IndexerSelectArgs valid{New(kBF16, {3, 2, 32}), New(kBF16, {3, 2}), New(kI32, {3, 2}), 4, sequences};
  ExpectOk(valid);
  using A = IndexerSelectArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.weights = New(kF32, {3, 2});
      },
      "indexer_select: weights: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.selected = New(DType::kI64, {3, 2});
      },
      "selected: dtype I64, want I32");
  ExpectViolation<A>(
      valid, [](A& a) { a.ratio = 0; }, "ratio: 0");
  sequences[0].keys.num_rows = 4;
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].keys: 4 rows, want at least 5");
  sequences[0].keys = {std::span(pages).first(1), 4, 5, 32, kBF16};
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].keys: 1 page, want at least 2");
  sequences[0].keys = {pages, 4, 5, 64, kBF16};
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].keys: width 64, want 32");
  sequences[0].num_tokens = 2;
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences: 2 tokens in all, want 3");
}

TEST_F(ContractTest, Attention) {
  void* const pages[] = {New(kBF16, {8, 16}).data};
  const RingRows ring{New(kBF16, {10, 16}).data, 10, 16, kBF16};
  std::vector<AttentionSequence> sequences = {{0, 3, 13, ring, {pages, 8, 4, 16, kBF16}}};
  const AttentionArgs valid{New(kBF16, {3, 2, 16}),
                            New(kF32, {2}),
                            New(kI32, {3, 5}),
                            New(kBF16, {3, 2, 16}),
                            0.25F,
                            8,
                            4,
                            sequences};
  ExpectOk(valid);
  AttentionArgs dense = valid;
  dense.selected = {};
  ExpectOk(dense);
  AttentionArgs window_only = dense;
  window_only.ratio = 0;
  ExpectOk(window_only);
  using A = AttentionArgs;
  ExpectViolation<A>(
      valid, [&](A& a) { a.sink = New(kF32, {3}); }, "attention: sink: shape [3], want [2]");
  ExpectViolation<A>(
      valid, [](A& a) { a.o = a.q; }, "o: overlaps q");
  ExpectViolation<A>(
      valid, [](A& a) { a.softmax_scale = 0; }, "softmax_scale: 0");
  ExpectViolation<A>(
      valid, [](A& a) { a.window_size = 0; }, "window_size: 0");
  ExpectViolation<A>(
      valid, [](A& a) { a.ratio = 0; }, "selected: given, want null when ratio is 0");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.selected = New(kI32, {2, 5});
      },
      "selected: shape [2, 5], want [3, *]");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.q); }, "q: strides");
  sequences[0].window.capacity = 9;
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].window: capacity 9, want at least 10");
  sequences[0].window = ring;
  sequences[0].entries.num_rows = 3;
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].entries: 3 rows, want at least 4");
  sequences[0].entries = {pages, 3, 4, 16, kBF16};
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].entries: 1 page, want at least 2");
  ExpectOk(window_only);  // Entries are unused without a ratio.
}

TEST_F(ContractTest, AttentionPart) {
  void* const pages[] = {New(kBF16, {8, 16}).data};
  const RingRows ring{New(kBF16, {10, 16}).data, 10, 16, kBF16};
  // 4 entries in all, of which shard 1 of 3 has one.
  std::vector<AttentionSequence> sequences = {{0, 3, 13, ring, {pages, 8, 1, 16, kBF16}}};
  const AttentionPartArgs valid{
      New(kBF16, {3, 2, 16}), New(kI32, {3, 5}), New(kF32, {3, 2, 18}), 0.25F, 8, 4, {1, 3}, sequences};
  ExpectOk(valid);
  using A = AttentionPartArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.part = New(kF32, {3, 2, 16});
      },
      "attention_part: part: shape [3, 2, 16], want [3, 2, 18]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.part = New(kBF16, {3, 2, 18});
      },
      "part: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.shard = {3, 3};
      },
      "shard: 3, want 0 to 2");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.shard = {0, 0};
      },
      "shard: 0, want at least 1 shard");
  ExpectViolation<A>(
      valid, [](A& a) { a.window_size = -1; }, "window_size: -1");
  ExpectViolation<A>(
      valid, [](A& a) { a.ratio = 0; }, "selected: given, want null when ratio is 0");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.shard = {0, 3};
      },
      "sequences[0].entries: 1 row, want at least 2");
  A no_window = valid;
  no_window.window_size = 0;
  sequences[0].window = {};
  ExpectOk(no_window);
  ExpectViolation<A>(
      valid, [](A&) {}, "sequences[0].window: width 0");
}

TEST_F(ContractTest, MergeAttention) {
  const MergeAttentionArgs valid{New(kF32, {4, 3, 2, 18}), New(kF32, {2}), New(kBF16, {3, 2, 16})};
  ExpectOk(valid);
  using A = MergeAttentionArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.parts = New(kF32, {4, 3, 2, 16});
      },
      "merge_attention: parts: shape [4, 3, 2, 16], want [*, 3, 2, 18]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.sink = New(kF32, {3}); }, "sink: shape [3], want [2]");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.o = TensorView::Contiguous(a.parts.data, kBF16, {3, 2, 16});
      },
      "o: overlaps parts");
}

TEST_F(ContractTest, IndexerCandidates) {
  void* const pages[] = {New(kBF16, {4, 32}).data};
  // 5 entries in all, of which shard 0 of 2 has three.
  std::vector<IndexerSequence> sequences = {{0, 3, 20, {pages, 4, 3, 32, kBF16}}};
  const IndexerCandidatesArgs valid{
      New(kBF16, {3, 2, 32}), New(kBF16, {3, 2}), New(DType::kI64, {3, 2}), 4, {0, 2}, sequences};
  ExpectOk(valid);
  using A = IndexerCandidatesArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.candidates = New(kI32, {3, 2});
      },
      "indexer_candidates: candidates: dtype I32, want I64");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.shard = {-1, 2};
      },
      "shard: -1, want 0 to 1");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.shard = {0, 1};
      },
      "sequences[0].keys: 3 rows, want at least 5");
}

TEST_F(ContractTest, MergeCandidates) {
  const MergeCandidatesArgs valid{New(DType::kI64, {3, 8}), New(kI32, {3, 2})};
  ExpectOk(valid);
  using A = MergeCandidatesArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.selected = New(kI32, {4, 2});
      },
      "merge_candidates: selected: shape [4, 2], want [3, *]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.candidates = New(kI32, {3, 8});
      },
      "candidates: dtype I32, want I64");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.candidates = New(DType::kI64, {3, 7});
      },
      "candidates: 7 a token, want lists of 2");
  const auto empty = [&](const A& a) { return Validate(a).ok(); };
  EXPECT_TRUE(empty({New(DType::kI64, {3, 0}), New(kI32, {3, 0})}));
}

TEST_F(ContractTest, GatherRows) {
  std::vector<std::byte> page(64);
  void* const pages[] = {page.data(), page.data()};
  const auto paged = [&](int64_t num_rows) {
    return PagedRows{.pages = pages, .rows_per_page = 2, .num_rows = num_rows, .width = 8, .format = kBF16};
  };
  using A = GatherRowsArgs;
  std::vector<PagedRows> sources = {paged(3), paged(0), paged(1)};
  const A valid{sources, New(kBF16, {4, 8})};
  ExpectOk(valid);
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.rows = New(kBF16, {5, 8});
      },
      "rows: 1 row more than the sources");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.rows = New(kBF16, {3, 8});
      },
      "sources[2]: 1 row, want 0 to the 0 that rows has left");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.rows = New(kF32, {4, 8});
      },
      "sources[0]: dtype BF16, want F32");
  sources[0] = paged(5);
  EXPECT_THAT(Validate(A{sources, New(kBF16, {6, 8})}).message(),
              HasSubstr("sources[0]: 2 pages, want at least 3"));
  // Packed rows, of 8 bytes: 4 of codes, 2 of scales, 2 of zeros.
  for (PagedRows& source : sources) source.format = CacheFormat::Fp4(8, 4);
  sources[0] = sources[1];
  EXPECT_TRUE(Validate(A{sources, New(DType::kU8, {1, 8})}).ok());
  EXPECT_THAT(Validate(A{sources, New(kBF16, {1, 8})}).message(), HasSubstr("packed rows, want rows in u8"));
  EXPECT_THAT(Validate(A{sources, New(DType::kU8, {1, 9})}).message(),
              HasSubstr("8 bytes a row, want 9 of packed rows"));
  sources[2].format = CacheFormat::Fp4(8, 8);
  EXPECT_THAT(Validate(A{sources, New(DType::kU8, {1, 8})}).message(), HasSubstr("rows of another format"));
}

TEST_F(ContractTest, RowsThatAreNotRotated) {
  const HadamardFp4Args valid{
      .x = New(kBF16, {3, 96}), .rotate = false, .group = 16, .scale = CacheScale::kE4m3};
  ExpectOk(valid);
  using A = HadamardFp4Args;
  ExpectViolation<A>(
      valid, [](A& a) { a.rotate = true; }, "x: width 96, want a power of two");
  ExpectViolation<A>(
      valid, [](A& a) { a.group = 64; }, "x: width 96, want a multiple of the group, 64");
  ExpectViolation<A>(
      valid, [](A& a) { a.group = 0; }, "group: 0, want at least 1");
}

TEST_F(ContractTest, BlocksOfEntries) {
  void* const pages[] = {New(kBF16, {8, 32}).data};
  const std::vector<IndexerSequence> sequences = {{0, 3, 3, {pages, 8, 6, 32, kBF16}}};
  const IndexerSelectArgs valid{.q = New(kBF16, {3, 2, 32}),
                                .weights = New(kBF16, {3, 2}),
                                .selected = New(kI32, {3, 2}),
                                .ratio = 1,
                                .sequences = sequences,
                                .best = New(kI32, {3, 4}),
                                .block_size = 2};
  ExpectOk(valid);
  using A = IndexerSelectArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.within = New(kI32, {3, 4});
      },
      "best: blocks beside those of within");
  ExpectViolation<A>(
      valid, [](A& a) { a.block_size = 0; }, "block_size: 0, want at least 1");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.best = New(kF32, {3, 4});
      },
      "best: dtype F32, want I32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.best = New(kI32, {2, 4});
      },
      "best: shape");
  ExpectViolation<A>(
      valid, [](A& a) { a.best = a.selected; }, "best");
}

TEST_F(ContractTest, GivenWeightsOfStreams) {
  const HcHeadArgs valid{
      .streams = New(kBF16, {3, 4, 8}), .y = New(kBF16, {3, 8}), .given = New(kF32, {3, 4})};
  ExpectOk(valid);
  using A = HcHeadArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.fn = New(kF32, {4, 32});
      },
      "fn: weights to compute others from");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.given = New(kF32, {3, 5});
      },
      "given: shape");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.given = New(kBF16, {3, 4});
      },
      "given: dtype BF16, want F32");
}

}  // namespace
}  // namespace dsv4::ops
