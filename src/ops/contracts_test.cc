// Every op's Validate: a valid call passes, an empty one too, and each violation is reported with what, which, got and
// wanted (field-lessons.md N7 and N8).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "formats/quantize.h"
#include "ops/op_table.h"

namespace dsv4::ops {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;
constexpr DType kI32 = DType::kI32;

// Hands out tensors that do not overlap; Validate never reads them.
class ContractTest : public ::testing::Test {
 protected:
  TensorView New(DType dtype, Shape shape) {
    TensorView view = TensorView::Contiguous(static_cast<void*>(memory_.data() + used_), dtype, shape);
    used_ += static_cast<size_t>((view.num_bytes() + 63) / 64 * 64);
    EXPECT_LE(used_, memory_.size());
    return view;
  }

  template <typename Args>
  void ExpectOk(const Args& args) {
    const Status status = Validate(args);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  // `mutate` makes one thing wrong in a copy of `valid`.
  template <typename Args>
  void ExpectViolation(const Args& valid, const std::function<void(Args&)>& mutate, const std::string& text) {
    Args args = valid;
    mutate(args);
    const Status status = Validate(args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_THAT(status.message(), StartsWith("op "));
  }

  static void Slice(TensorView& view) { view.strides[0] += 8; }

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 20);
  size_t used_ = 0;
};

TEST_F(ContractTest, PrepareWeight) {
  const std::vector<float> values(64, 1.0F);
  const QuantizedMatrix matrix = QuantizeMxFp4(values, 2, 32);
  Weight source = matrix.View();
  Weight prepared;
  const PrepareWeightArgs valid{&source, &prepared};
  ExpectOk(valid);
  using A = PrepareWeightArgs;
  ExpectViolation<A>(
      valid, [](A& a) { a.source = nullptr; }, "prepare_weight: source: null");
  ExpectViolation<A>(
      valid, [](A& a) { a.prepared = nullptr; }, "prepare_weight: prepared: null");
  source.cols = 64;
  ExpectViolation<A>(
      valid, [](A&) {}, "source: data: shape [2, 16], want [2, 32]");
  source = matrix.View();
  source.data.device = source.scale.device = {DeviceType::kCuda, 0};
  ExpectViolation<A>(
      valid, [](A&) {}, "source: on a device, want host memory");
}

TEST_F(ContractTest, Embed) {
  const EmbedArgs valid{New(kI32, {3}), New(kBF16, {10, 8}), New(kBF16, {3, 4, 8})};
  ExpectOk(valid);
  ExpectOk(EmbedArgs{New(kI32, {0}), valid.table, New(kBF16, {0, 4, 8})});
  using A = EmbedArgs;
  ExpectViolation<A>(
      valid, [](A& a) { a.token_ids.dtype = DType::kI64; }, "embed: token_ids: dtype I64, want I32");
  ExpectViolation<A>(
      valid, [](A& a) { a.table.dtype = kI32; }, "table: dtype I32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.streams = New(kBF16, {3, 4, 9});
      },
      "streams: shape [3, 4, 9], want [3, *, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.streams = New(kBF16, {2, 4, 8});
      },
      "streams: shape [2, 4, 8], want [3, *, 8]");
  ExpectViolation<A>(
      valid, [](A& a) { a.table.data = nullptr; }, "table: null");
}

TEST_F(ContractTest, RmsNorm) {
  const RmsNormArgs valid{New(kBF16, {3, 8}), New(kF32, {8}), New(kF32, {3, 8}), 1e-6F};
  ExpectOk(valid);
  RmsNormArgs strided = valid;
  strided.x = New(kBF16, {3, 16});
  strided.x.shape = {3, 8};
  ExpectOk(strided);
  RmsNormArgs in_place = valid;
  in_place.y = in_place.x;
  ExpectOk(in_place);
  using A = RmsNormArgs;
  ExpectViolation<A>(
      valid, [&](A& a) { a.weight = New(kF32, {7}); }, "op rms_norm: weight: shape [7], want [8]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.weight = New(kBF16, {8}); }, "weight: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.x = New(kBF16, {3, 8, 1});
      },
      "x: shape [3, 8, 1], want [*, *]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {2, 8});
      },
      "y: shape [2, 8], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.x.strides = {1, 3, 0, 0};
      },
      "x: strides [1, 3]");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.y = a.x;
        a.y.data = a.x.as<std::byte>() + 2;
      },
      "y: overlaps x in part");
  ExpectViolation<A>(
      valid, [](A& a) { a.eps = 0.0F; }, "eps: 0, want a positive number");
  ExpectViolation<A>(
      valid, [](A& a) { a.eps = std::nanf(""); }, "eps: nan");
}

TEST_F(ContractTest, HeadRmsNorm) {
  const HeadRmsNormArgs valid{New(kBF16, {3, 2, 8}), New(kBF16, {3, 2, 8}), 1e-6F};
  ExpectOk(valid);
  using A = HeadRmsNormArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 2, 8});
      },
      "head_rms_norm: y: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {3, 2, 4});
      },
      "y: shape [3, 2, 4], want [3, 2, 8]");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.x); }, "x: strides [24, 8, 1]");
  ExpectViolation<A>(
      valid, [](A& a) { a.eps = -1.0F; }, "eps: -1");
}

TEST_F(ContractTest, Linear) {
  const std::vector<float> values(6 * 32, 1.0F);
  const QuantizedMatrix matrix = QuantizeNvFp4(values, 6, 32);
  Weight weight = matrix.View();
  const LinearArgs valid{New(kBF16, {3, 32}), &weight, New(kF32, {3, 6})};
  ExpectOk(valid);
  ExpectOk(LinearArgs{New(kBF16, {0, 32}), &weight, New(kF32, {0, 6})});
  using A = LinearArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.x = New(kBF16, {3, 31});
      },
      "linear: weight: [6, 32], want [*, 31]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 7});
      },
      "y: shape [3, 7], want [3, 6]");
  ExpectViolation<A>(
      valid, [](A& a) { a.weight = nullptr; }, "weight: null");
  ExpectViolation<A>(
      valid,
      [](A& a) {
        a.y = a.x;
        a.y.shape = {3, 6};
      },
      "y: overlaps x");
  ExpectViolation<A>(
      valid, [](A& a) { a.x.dtype = DType::kF16; }, "x: dtype F16, want BF16 or F32");
  weight.scale.shape = {6, 1};
  ExpectViolation<A>(
      valid, [](A&) {}, "op linear: weight: scale: shape [6, 1], want [6, 2]");
  weight = matrix.View();
  weight.scale.strides = {1, 6, 0, 0};
  ExpectViolation<A>(
      valid, [](A&) {}, "scale: not contiguous");
}

TEST_F(ContractTest, GroupedLinear) {
  const std::vector<float> values(6 * 32, 1.0F);
  const QuantizedMatrix matrix = QuantizeMxFp4(values, 6, 32);
  Weight weight = matrix.View();
  const GroupedLinearArgs valid{New(kBF16, {4, 2, 32}), &weight, New(kBF16, {4, 2, 3})};
  ExpectOk(valid);
  using A = GroupedLinearArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {4, 2, 4});
      },
      "grouped_linear: weight: [6, 32], want [8, 32]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {4, 3, 2});
      },
      "y: shape [4, 3, 2], want [4, 2, *]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {4, 2, 3});
      },
      "y: dtype F32, want BF16");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.x); }, "x: strides");
  weight.activation = ActivationQuant::kFp8Block;
  ExpectViolation<A>(
      valid, [](A&) {}, "weight: rounds its activations");
}

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

TEST_F(ContractTest, Scale) {
  const ScaleArgs valid{New(kBF16, {3, 5}), New(kBF16, {3, 5}), 0.5F};
  ExpectOk(valid);
  using A = ScaleArgs;
  ExpectViolation<A>(
      valid, [&](A& a) { a.y = New(kBF16, {15}); }, "scale: y: shape [15], want [3, 5]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 5});
      },
      "y: dtype F32, want BF16");
  ExpectViolation<A>(
      valid, [](A& a) { Slice(a.x); }, "x: strides");
}

TEST_F(ContractTest, HcPre) {
  const HcPreArgs valid{
      New(kBF16, {3, 4, 8}), New(kF32, {24, 32}),  New(kF32, {3}), New(kF32, {24}), New(kBF16, {3, 8}),
      New(kF32, {3, 4}),     New(kF32, {3, 4, 4}), 1e-6F,          1e-6F,           20};
  ExpectOk(valid);
  using A = HcPreArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.fn = New(kF32, {24, 8});
      },
      "hc_pre: fn: shape [24, 8], want [24, 32]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.scale = New(kF32, {1}); }, "scale: shape [1], want [3]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.base = New(kF32, {4}); }, "base: shape [4], want [24]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.u = New(kF32, {3, 8});
      },
      "u: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.post = New(kBF16, {3, 4});
      },
      "post: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.comb = New(kF32, {3, 16});
      },
      "comb: shape [3, 16], want [3, 4, 4]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.streams = New(kBF16, {3, 17, 8});
      },
      "hc_mult: 17, want 1 to 16");
  ExpectViolation<A>(
      valid, [](A& a) { a.sinkhorn_iters = 0; }, "sinkhorn_iters: 0");
  ExpectViolation<A>(
      valid, [](A& a) { a.norm_eps = 0; }, "norm_eps: 0");
  ExpectViolation<A>(
      valid, [](A& a) { a.hc_eps = -1; }, "hc_eps: -1");
}

TEST_F(ContractTest, HcPost) {
  const HcPostArgs valid{New(kBF16, {3, 8}), New(kBF16, {3, 4, 8}), New(kF32, {3, 4}), New(kF32, {3, 4, 4}),
                         New(kBF16, {3, 4, 8})};
  ExpectOk(valid);
  HcPostArgs in_place = valid;
  in_place.out = in_place.residual;
  ExpectOk(in_place);
  using A = HcPostArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {3, 9});
      },
      "hc_post: y: shape [3, 9], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.out = New(kBF16, {3, 8});
      },
      "out: shape [3, 8], want [3, 4, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.comb = New(kF32, {3, 4, 3});
      },
      "comb: shape [3, 4, 3], want [3, 4, 4]");
  ExpectViolation<A>(
      valid, [](A& a) { a.out.data = a.residual.as<std::byte>() + 64; }, "out: overlaps residual in part");
}

TEST_F(ContractTest, HcHead) {
  const HcHeadArgs valid{New(kBF16, {3, 4, 8}),
                         New(kF32, {4, 32}),
                         New(kF32, {1}),
                         New(kF32, {4}),
                         New(kBF16, {3, 8}),
                         1e-6F,
                         1e-6F};
  ExpectOk(valid);
  using A = HcHeadArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.fn = New(kF32, {24, 32});
      },
      "hc_head: fn: shape [24, 32], want [4, 32]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.scale = New(kF32, {3}); }, "scale: shape [3], want [1]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {3, 4, 8});
      },
      "y: shape [3, 4, 8], want [3, 8]");
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
      valid, [](A&) {}, "sequences[0].keys: 1 pages, want at least 2");
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
      valid, [](A&) {}, "sequences[0].entries: 1 pages, want at least 2");
  ExpectOk(window_only);  // Entries are unused without a ratio.
}

TEST_F(ContractTest, Router) {
  const RouterArgs scored{New(kF32, {3, 8}), New(kF32, {8}),    {},  {},
                          New(kI32, {3, 2}), New(kF32, {3, 2}), 1.5F};
  const RouterArgs hashed{
      New(kF32, {3, 8}), {},  New(DType::kI64, {100, 2}), New(kI32, {3}), New(kI32, {3, 2}),
      New(kF32, {3, 2}), 1.5F};
  ExpectOk(scored);
  ExpectOk(hashed);
  using A = RouterArgs;
  ExpectViolation<A>(
      hashed, [&](A& a) { a.bias = New(kF32, {8}); }, "router: bias: given, want null with hash_table");
  ExpectViolation<A>(
      hashed, [](A& a) { a.hash_table = {}; }, "token_ids: given, want null without hash_table");
  ExpectViolation<A>(
      hashed, [](A& a) { a.token_ids = {}; }, "token_ids: shape [], want [3]");
  ExpectViolation<A>(
      hashed,
      [&](A& a) {
        a.hash_table = New(kI32, {100, 3});
      },
      "hash_table: shape [100, 3], want [*, 2]");
  ExpectViolation<A>(
      scored, [&](A& a) { a.bias = New(kF32, {7}); }, "bias: shape [7], want [8]");
  ExpectViolation<A>(
      scored,
      [&](A& a) {
        a.indices = New(kI32, {3, 9});
      },
      "indices: top_k 9, want 1 to 8");
  ExpectViolation<A>(
      scored,
      [&](A& a) {
        a.indices = New(kI32, {3, 0});
      },
      "indices: top_k 0");
  ExpectViolation<A>(
      scored,
      [&](A& a) {
        a.weights = New(kBF16, {3, 2});
      },
      "weights: dtype BF16, want F32");
  ExpectViolation<A>(
      scored, [](A& a) { a.route_scale = std::numeric_limits<float>::infinity(); }, "route_scale: inf");
}

TEST_F(ContractTest, Swiglu) {
  const SwigluArgs valid{New(kBF16, {3, 8}), New(kBF16, {3, 8}), New(kF32, {3}), New(kBF16, {3, 8}), 10.0F};
  ExpectOk(valid);
  SwigluArgs free = valid;
  free.row_weights = {};
  free.limit = std::numeric_limits<float>::infinity();
  free.y = free.up;
  ExpectOk(free);
  using A = SwigluArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.up = New(kF32, {3, 8});
      },
      "swiglu: up: dtype F32, want BF16");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.up = New(kBF16, {3, 7});
      },
      "up: shape [3, 7], want [3, 8]");
  ExpectViolation<A>(
      valid, [&](A& a) { a.row_weights = New(kF32, {2}); }, "row_weights: shape [2], want [3]");
  ExpectViolation<A>(
      valid, [](A& a) { a.limit = 0.0F; }, "limit: 0, want a positive number or infinity");
  ExpectViolation<A>(
      valid, [](A& a) { a.limit = std::nanf(""); }, "limit: nan");
  ExpectViolation<A>(
      valid, [](A& a) { a.y.data = a.gate.as<std::byte>() + 4; }, "y: overlaps gate in part");
}

TEST_F(ContractTest, RoutedExperts) {
  const std::vector<float> values(64 * 32, 1.0F);
  const QuantizedMatrix in = QuantizeNvFp4(values, 64, 32);
  const QuantizedMatrix out = QuantizeFp8Block(values, 32, 64, 16, 16);
  std::vector<ExpertWeights> experts(3, {in.View(), out.View(), in.View()});
  const RoutedExpertsArgs valid{New(kBF16, {5, 32}), New(kI32, {5, 2}), New(kF32, {5, 2}), experts, 1.0F,
                                New(kF32, {5, 32})};
  ExpectOk(valid);
  using A = RoutedExpertsArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kBF16, {5, 32});
      },
      "routed_experts: y: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.weights = New(kF32, {5, 3});
      },
      "weights: shape [5, 3], want [5, 2]");
  ExpectViolation<A>(
      valid, [](A& a) { a.experts = {}; }, "experts: none");
  ExpectViolation<A>(
      valid, [](A& a) { a.limit = -1.0F; }, "limit: -1");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.x = New(kBF16, {5, 64});
        a.y = New(kF32, {5, 64});
      },
      "expert 0: w1: [64, 32], want [64, 64]");
  experts[2].w2 = in.View();
  ExpectViolation<A>(
      valid, [](A&) {}, "op routed_experts: expert 2: w2: [64, 32], want [32, 64]");
  experts[2].w2 = out.View();
  experts[1].w3.scale = out.View().scale;
  ExpectViolation<A>(
      valid, [](A&) {}, "expert 1: w3: scale: shape [2, 4], want [64, 2]");
}

TEST_F(ContractTest, MoeCombine) {
  const MoeCombineArgs valid{New(kF32, {3, 8}), New(kBF16, {3, 8}), New(kBF16, {3, 8})};
  ExpectOk(valid);
  MoeCombineArgs in_place = valid;
  in_place.y = in_place.shared;
  ExpectOk(in_place);
  using A = MoeCombineArgs;
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.routed = New(kBF16, {3, 8});
      },
      "moe_combine: routed: dtype BF16, want F32");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.shared = New(kBF16, {3, 4});
      },
      "shared: shape [3, 4], want [3, 8]");
  ExpectViolation<A>(
      valid,
      [&](A& a) {
        a.y = New(kF32, {3, 8});
      },
      "y: dtype F32, want BF16");
}

}  // namespace
}  // namespace dsv4::ops
