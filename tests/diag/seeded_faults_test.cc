// Each seeded fault is found by the check made for it, which names the right layer and op. A check that
// passes on every faulty model would be a check that cannot fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <limits>

#include "diag/checks/decode_prefill_check.h"
#include "diag/checks/residual_check.h"
#include "diag/checks/scale_invariance_check.h"
#include "diag/checks/visible_check.h"
#include "tests/diag/subjects.h"

namespace dsv4::testing {
namespace {

using diag::CheckReport;
using diag::Verdict;

// The first layer of such attention in a golden model.
int FirstLayer(const model::ModelConfig& config, std::string_view attention) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (model::AttentionName(config.layers[i]) == attention) return static_cast<int>(i);
  }
  return -1;
}

struct Fault {
  std::string mistake;  // Name in tests/golden/mistakes.json.
  std::string tensor;
  std::string op;
  std::optional<std::string_view> attention;  // In whose first layer it must be found; layer 0 without it.
  std::string golden = "tf_narrow";           // A model on which the mistake shows.
};

void ExpectFound(const Result<CheckReport>& report, const DiagnosedModel& model, const Fault& fault) {
  ASSERT_TRUE(report.has_value()) << report.error().message();
  ASSERT_EQ(report->verdict, Verdict::kFinding) << ToText(*report);
  ASSERT_TRUE(report->location.has_value());
  EXPECT_EQ(report->location->tensor, fault.tensor) << report->headline;
  EXPECT_EQ(report->location->op, fault.op) << report->headline;
  const int layer = fault.attention ? FirstLayer(model.model->config(), *fault.attention) : 0;
  EXPECT_EQ(report->location->layer, layer) << report->headline;
  std::cout << "  " << fault.mistake << ": " << report->headline << "\n";
}

std::string FaultName(const ::testing::TestParamInfo<Fault>& test) {
  std::string name = test.param.mistake;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

DiagnosedModel Seeded(const std::string& mistake, const std::string& golden) {
  return DiagnoseGolden(golden, model::Numerics::kPlain, AllSeededMistakes().at(mistake).mutation);
}

class VisibleFaults : public ::testing::TestWithParam<Fault> {};

TEST_P(VisibleFaults, AreLocalised) {
  const DiagnosedModel model = Seeded(GetParam().mistake, GetParam().golden);
  ExpectFound(diag::CheckVisible(model.subject(), model.tokens, {}), model, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Attention, VisibleFaults,
                         ::testing::Values(Fault{"13-no-sink", "attn.o", "attention", {}},
                                           Fault{"13-sink-scaled", "attn.o", "attention", {}},
                                           Fault{"13-sink-per-chunk", "attn.o", "attention", {}, "tf_wide"},
                                           Fault{"15-count-off-by-one", "attn.o", "attention", "csa"},
                                           Fault{"15-count-per-chunk", "attn.o", "attention", "csa"},
                                           Fault{"15-incomplete-block", "attn.o", "attention", "csa"},
                                           Fault{"15-outside-window", "attn.o", "attention", "csa"},
                                           Fault{"16-window-127", "attn.o", "attention", {}},
                                           Fault{"16-window-129", "attn.o", "attention", {}},
                                           Fault{"16-ring-overwritten", "attn.o", "attention", {}, "tf_wide"},
                                           Fault{"18-hca-selected", "attn.o", "attention", "hca"}),
                         FaultName);

class DecodeFaults : public ::testing::TestWithParam<Fault> {};

TEST_P(DecodeFaults, AreLocalised) {
  const DiagnosedModel model = Seeded(GetParam().mistake, GetParam().golden);
  ExpectFound(diag::CheckDecodePrefill(model.subject(), std::span(model.tokens).first(160), {.chunk = 150}),
              model, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    State, DecodeFaults,
    ::testing::Values(Fault{"19-remainder-lost", "attn.compressor.pooled", "compressor_pool", "csa"},
                      Fault{"19-previous-lost", "attn.compressor.pooled", "compressor_pool", "csa"}),
    FaultName);

TEST(ScaleInvarianceFaults, AMissingFinalNormIsFound) {
  const DiagnosedModel model = Seeded("27-head-unnormed", "tf_narrow");
  const Result<CheckReport> report =
      diag::CheckScaleInvariance(model.subject(), std::span(model.tokens).first(40));
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->verdict, Verdict::kFinding) << ToText(*report);
  ASSERT_TRUE(report->location.has_value());
  EXPECT_EQ(report->location->tensor, "head.norm");
}

// A copy of a weight with every value changed.
TensorView Scaled(ModelParts& parts, const TensorView& view, float factor) {
  const Buffer copy = *HostMemory().Allocate(static_cast<size_t>(view.num_bytes()));
  const TensorView changed = TensorView::Contiguous(copy.data(), view.dtype, view.shape);
  std::vector<double> values = Values(view);
  for (double& value : values) value *= factor;
  SetValues(changed, values);
  parts.weights.copies.push_back(copy);
  return changed;
}

TEST(ResidualFaults, ANormThatOverflowsIsFoundInItsLayer) {
  Mutation mutation;
  mutation.parts = [](ModelParts& parts) {
    TensorView& norm = parts.weights.layers[1].ffn_norm;
    norm = Scaled(parts, norm, std::numeric_limits<float>::infinity());
  };
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain, mutation);
  const Result<CheckReport> report = diag::CheckResidual(model.subject(), std::span(model.tokens).first(40));
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->verdict, Verdict::kFinding);
  EXPECT_EQ(report->location->layer, 1);
  EXPECT_EQ(report->location->tensor, "ffn.streams");
  EXPECT_TRUE(report->ends_run);
}

TEST(ResidualFaults, DecodeThatLosesMagnitudeIsFoundInItsLayer) {
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  int calls = 0;
  diag::OpHooks hooks;
  // Half the output of layer 0's shared sum when a single token is computed.
  hooks.moe_combine = [&](const auto& inner, const ops::MoeCombineArgs& args) -> Status {
    DSV4_RETURN_IF_ERROR(inner(args));
    const bool first_layer = calls++ % static_cast<int>(model.model->num_layers()) == 0;
    if (args.y.shape[0] != 1 || !first_layer) return {};
    std::vector<double> values = Values(args.y);
    for (double& value : values) value *= 0.5;
    SetValues(args.y, values);
    return {};
  };
  const diag::HookedBackend::Scope scope(*model.backend, std::move(hooks));
  const Result<CheckReport> report = diag::CheckResidual(model.subject(), std::span(model.tokens).first(40));
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->verdict, Verdict::kFinding) << ToText(*report);
  EXPECT_EQ(report->location->layer, 0);
  EXPECT_EQ(report->location->tensor, "ffn.streams");
}

TEST(SelectionFaults, AChoiceThatIsNotTheBestIsFound) {
  const DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  // CheckVisible brings its own hooks, so the fault sits in the table below them.
  Mutation mutation;
  mutation.ops = [](ops::OpTable& table) {
    table.indexer_select = [](ops::OpContext& context, const ops::IndexerSelectArgs& args) -> Status {
      DSV4_RETURN_IF_ERROR(Right().indexer_select(context, args));
      const int64_t top_k = args.selected.shape[1];
      for (int64_t t = 0; t < args.selected.shape[0]; ++t) {  // The oldest entries instead of the best.
        auto* row = args.selected.as<int32_t>() + t * top_k;
        for (int64_t i = 0; i < top_k && row[i] >= 0; ++i) row[i] = static_cast<int32_t>(i);
      }
      return {};
    };
  };
  const DiagnosedModel faulty = DiagnoseGolden("tf_narrow", model::Numerics::kPlain, mutation);
  const Result<CheckReport> report = diag::CheckVisible(faulty.subject(), faulty.tokens, {});
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->verdict, Verdict::kFinding);
  EXPECT_EQ(report->location->op, "indexer_select");
  EXPECT_EQ(report->location->layer, FirstLayer(model.model->config(), "csa"));
}

}  // namespace
}  // namespace dsv4::testing
