// Work that ops cannot avoid, against numbers worked out by hand.
#include "diag/op_cost.h"

#include <gtest/gtest.h>

#include "backend/reference/reference_backend.h"
#include "diag/op_profile.h"
#include "tests/diag/subjects.h"

namespace dsv4::diag {
namespace {

class OpCostTest : public ::testing::Test {
 protected:
  template <typename Args>
  OpCost Cost(const Args& args) {
    const Result<OpCost> cost = CostOf(*backend_.context, args);
    EXPECT_TRUE(cost.has_value());
    return cost.value_or(OpCost());
  }
  TensorView View(DType dtype, Shape shape) { return TensorView::Contiguous(memory_.data(), dtype, shape); }
  Weight NvFp4(int64_t rows, int64_t cols) {
    Weight weight;
    weight.format = WeightFormat::kNvFp4;
    weight.rows = rows;
    weight.cols = cols;
    weight.data = View(DType::kU8, {rows, cols / 2});
    weight.scale = View(DType::kF8E4M3, {rows, cols / 16});
    return weight;
  }

  ops::Backend backend_ = backend::MakeReferenceBackend(1);
  std::vector<int64_t> memory_ = std::vector<int64_t>(1 << 12);
};

TEST_F(OpCostTest, LinearReadsCodesAndScalesOnce) {
  const Weight weight = NvFp4(6, 32);
  const OpCost cost = Cost(ops::LinearArgs{View(DType::kBF16, {5, 32}), &weight, View(DType::kBF16, {5, 6})});
  EXPECT_EQ(cost.weight_bytes, 6 * 16 + 6 * 2);
  EXPECT_EQ(cost.cache_bytes, 0);
  EXPECT_EQ(cost.multiply_adds, 5 * 6 * 32);
  EXPECT_EQ(DetailOf(ops::LinearArgs{{}, &weight, {}}), "nvfp4 [6, 32]");
}

TEST_F(OpCostTest, ExpertsAreReadOncePerChoiceSet) {
  const ops::ExpertWeights expert = {NvFp4(32, 16), NvFp4(16, 32), NvFp4(32, 16)};
  const std::vector<ops::ExpertWeights> experts(8, expert);
  std::vector<int32_t> chosen = {1, 5, 5, 1, 7, 1};
  ops::RoutedExpertsArgs args;
  args.indices = TensorView::Contiguous(static_cast<void*>(chosen.data()), DType::kI32, {3, 2});
  args.experts = experts;
  const OpCost cost = Cost(args);
  const double bytes = 3 * (256 + 32);  // Each matrix has 512 elements.
  EXPECT_EQ(cost.weight_bytes, 3 * bytes);
  EXPECT_EQ(cost.multiply_adds, 6 * 3 * 512);

  // Experts 5 to 7 of 8: 5 is chosen twice, 7 once.
  ops::ExpertTermsArgs part;
  part.indices = args.indices;
  part.experts = std::span(experts).subspan(5);
  part.first_expert = 5;
  part.num_experts = 8;
  const OpCost part_cost = Cost(part);
  EXPECT_EQ(part_cost.weight_bytes, 2 * bytes);
  EXPECT_EQ(part_cost.multiply_adds, 3 * 3 * 512);
}

TEST_F(OpCostTest, AttentionReadsDistinctRows) {
  // Two queries at positions 99 and 100 with a window of 8: 9 ring rows; they choose entries 3, 4 and 4,
  // none.
  std::vector<int32_t> chosen = {3, 4, 4, -1};
  const ops::AttentionSequence sequence = {.num_tokens = 2, .first_position = 99};
  ops::AttentionArgs args;
  args.q = View(DType::kBF16, {2, 4, 16});
  args.selected = TensorView::Contiguous(static_cast<void*>(chosen.data()), DType::kI32, {2, 2});
  args.window_size = 8;
  args.ratio = 4;
  args.sequences = std::span(&sequence, 1);
  OpCost cost = Cost(args);
  EXPECT_EQ(cost.cache_bytes, (9 + 2) * 16 * 2);
  EXPECT_EQ(cost.multiply_adds, 2 * (8 + 8 + 2 + 1) * 4 * 16);

  args.selected = {};  // All entries: 25 are visible from positions 99 and 100.
  cost = Cost(args);
  EXPECT_EQ(cost.cache_bytes, (9 + 25) * 16 * 2);
  EXPECT_EQ(cost.multiply_adds, 2 * (8 + 8 + 25 + 25) * 4 * 16);

  // The second of two ranks has entries 1, 3, ..., 23.
  ops::AttentionPartArgs part;
  part.q = args.q;
  part.ratio = 4;
  part.shard = {1, 2};
  part.sequences = args.sequences;
  cost = Cost(part);
  EXPECT_EQ(cost.cache_bytes, 12 * 16 * 2);
  EXPECT_EQ(cost.multiply_adds, 2 * (12 + 12) * 4 * 16);
  part.selected = TensorView::Contiguous(static_cast<void*>(chosen.data()), DType::kI32, {2, 2});
  EXPECT_EQ(Cost(part).cache_bytes, 1 * 16 * 2);  // Entry 3.

  const ops::AttentionSequence start = {.num_tokens = 2, .first_position = 0};
  args.ratio = 0;
  args.sequences = std::span(&start, 1);
  cost = Cost(args);
  EXPECT_EQ(cost.cache_bytes, 2 * 16 * 2);
  EXPECT_EQ(cost.multiply_adds, 2 * (1 + 2) * 4 * 16);
}

TEST_F(OpCostTest, IndexerLooksOnlyWhereThereIsAChoice) {
  ops::IndexerSequence sequence = {.num_tokens = 2, .first_position = 42};  // 10 and 11 visible keys.
  ops::IndexerSelectArgs args;
  args.q = View(DType::kBF16, {2, 4, 16});
  args.selected = View(DType::kI32, {2, 10});
  args.ratio = 4;
  args.sequences = std::span(&sequence, 1);
  const OpCost cost = Cost(args);
  EXPECT_EQ(cost.cache_bytes, 11 * 16 * 2);
  EXPECT_EQ(cost.multiply_adds, 11 * 4 * 16);

  ops::IndexerCandidatesArgs part;
  part.q = args.q;
  part.candidates = View(DType::kI64, {2, 10});
  part.ratio = 4;
  part.shard = {1, 2};  // Keys 0 to 10, 5 of them.
  part.sequences = args.sequences;
  EXPECT_EQ(Cost(part).cache_bytes, 5 * 16 * 2);
  EXPECT_EQ(Cost(part).multiply_adds, 5 * 4 * 16);
}

TEST(OpProfile, AStepReadsEveryWeightThatItNeeds) {
  const testing::DiagnosedModel tiny = testing::DiagnoseTiny(model::Numerics::kRelease, 1);
  OpProfile profile(tiny.subject().context());
  {
    const HookedBackend::Scope scope(*tiny.backend, profile.Hooks());
    ASSERT_TRUE(RunTokens(tiny.subject(), tiny.tokens, {}, model::LogitsRows::kLast).has_value());
  }
  int64_t linears = 0;
  double seconds = 0;
  for (const OpTime& op : profile.ops()) {
    if (op.op == "linear") linears += op.calls;
    seconds += op.seconds;
  }
  EXPECT_GT(linears, 8 * tiny.model->num_layers());
  EXPECT_GT(seconds, 0);
  EXPECT_GT(profile.total_cost().weight_bytes, 0);
}

}  // namespace
}  // namespace dsv4::diag
