// checkpoint: healthy goldens pass; tensors with a lost scale, zeros or constants are named.
#include <gtest/gtest.h>

#include <set>

#include "diag/checks/checkpoint_check.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

using diag::CheckReport;
using diag::Verdict;

CheckReport Check(const ModelParts& parts) {
  const Result<CheckReport> report = diag::CheckCheckpoint(parts.config, parts.weights);
  EXPECT_TRUE(report.has_value()) << report.error().message();
  return *report;
}

// Their files hold input scales of 977, to prove that the engine never uses them.
const std::set<std::string> kAbsurdInputScales = {"dspark", "nvfp4_all", "nvfp4_experts"};

TEST(CheckpointTest, AbsurdInputScalesAreAllThatIsFoundInAGolden) {
  for (const std::string& golden : kAbsurdInputScales) {
    const CheckReport report = Check(LoadParts(golden, model::Numerics::kPlain));
    ASSERT_EQ(report.verdict, Verdict::kFinding) << golden;
    int num_found = 0;
    for (const std::string& line : report.evidence)
      num_found += line.find("input_scale is 977") != std::string::npos ? 1 : 0;
    EXPECT_EQ(num_found, 20) << ToText(report);  // As many as are shown; weights come before scales.
  }
}

TEST(CheckpointTest, HealthyGoldensPass) {
  for (const std::string& golden : GoldenModels()) {
    if (kAbsurdInputScales.contains(golden)) continue;
    const CheckReport report = Check(LoadParts(golden, model::Numerics::kPlain));
    EXPECT_EQ(report.verdict, Verdict::kPass) << golden << "\n" << ToText(report);
  }
}

TEST(CheckpointTest, NvFp4TranscodesAreCounted) {
  const CheckReport report = Check(LoadParts("nvfp4_experts", model::Numerics::kPlain));
  EXPECT_NE(report.evidence[1].find("NVFP4 linears"), std::string::npos) << report.evidence[1];
  EXPECT_FALSE(report.evidence[1].starts_with("0 ")) << report.evidence[1];
}

TEST(CheckpointTest, LostAndInvertedScalesAreFound) {
  for (const auto& [mistake, golden] :
       std::vector<std::pair<std::string, std::string>>{{"25-tensor-scale-dropped", "nvfp4_experts"},
                                                        {"25-global-scale-inverse", "nvfp4_ct"},
                                                        {"25-e8m0-inverse", "fp8_mxfp4"}}) {
    ModelParts parts = LoadParts(golden, model::Numerics::kPlain);
    AllSeededMistakes().at(mistake).mutation.parts(parts);
    EXPECT_EQ(Check(parts).verdict, Verdict::kFinding) << mistake;
  }
}

TEST(CheckpointTest, OneExpertOutOfLineIsNamed) {
  ModelParts parts = LoadParts("nvfp4_experts", model::Numerics::kPlain);
  Weight& weight = parts.weights.layers[1].experts[2].w3;
  weight.global_scale *= weight.global_scale_divides ? 1 / 20.0F : 20.0F;
  const CheckReport report = Check(parts);
  ASSERT_EQ(report.verdict, Verdict::kFinding);
  EXPECT_EQ(report.location->tensor, "layers.1.ffn.experts.2.w3");
  EXPECT_EQ(report.location->layer, 1);
}

// A weight of the same size whose every value is `value`.
void Fill(ModelParts& parts, Weight& weight, float value) {
  const Buffer buffer =
      *HostMemory().Allocate(static_cast<size_t>(weight.rows * weight.cols) * sizeof(float));
  std::fill_n(static_cast<float*>(buffer.data()), weight.rows * weight.cols, value);
  parts.weights.copies.push_back(buffer);
  weight.format = WeightFormat::kPlain;
  weight.data = TensorView::Contiguous(buffer.data(), DType::kF32, {weight.rows, weight.cols});
  weight.scale = {};
}

TEST(CheckpointTest, ZeroAndConstantTensorsAreNamed) {
  for (const float value : {0.0F, 0.02F}) {
    ModelParts parts = LoadParts("bf16", model::Numerics::kPlain);
    Fill(parts, parts.weights.layers[1].wkv, value);
    const CheckReport report = Check(parts);
    ASSERT_EQ(report.verdict, Verdict::kFinding);
    EXPECT_EQ(report.headline,
              value == 0 ? "layers.1.attn.wkv is all zero" : "layers.1.attn.wkv is constant");
  }
}

}  // namespace
}  // namespace dsv4::testing
