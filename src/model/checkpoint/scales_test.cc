// Siblings and scales that do not fit their tensor are named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/number_formats.h"
#include "model/checkpoint/checkpoint_testing.h"
#include "model/checkpoint/stored_linear.h"
#include "model/checkpoint/weights.h"

namespace dsv4::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StoredLinear, BlocksThatTheConfigDoesNotNameFollowFromTheShape) {
  const std::string zeros(256 * 192, '\0');
  const auto bytes = std::as_bytes(std::span(zeros));
  const io::StoredTensor weight = {"w", "F8_E4M3", DType::kF8E4M3, {256, 192}, bytes, 0};
  const auto describe = [&](std::vector<int64_t> dims, const QuantizationConfig& quantization = {}) {
    const auto count = static_cast<size_t>(dims[0] * dims[1]);
    const io::StoredTensor scale = {"s", "U8", DType::kU8, std::move(dims), bytes.first(count), 0};
    return DescribeLinear({TensorPart::Whole(&weight), TensorPart::Whole(&scale), {}, {}}, 256, 192,
                          quantization);
  };
  using Blocks = std::pair<int64_t, int64_t>;
  const auto blocks = [&](std::vector<int64_t> dims) {
    const auto stored = describe(std::move(dims));
    return stored ? Blocks(stored->block_rows, stored->block_cols) : Blocks(0, 0);
  };
  EXPECT_EQ(blocks({256, 6}), Blocks(1, 32));  // MXFP8.
  EXPECT_EQ(blocks({8, 6}), Blocks(32, 32));
  EXPECT_EQ(blocks({2, 2}), Blocks(128, 128));
  EXPECT_EQ(blocks({256, 3}), Blocks(1, 64));
  EXPECT_THAT(describe({5, 6}).error().message(), HasSubstr("weight_block_size [128, 128]"));
  // Format that the config names.
  QuantizationConfig named;
  named.weight_block_rows = named.weight_block_cols = 128;
  EXPECT_FALSE(describe({256, 6}, named).has_value());
}

TEST(StoredLinear, SiblingsThatDoNotFitAreNamed) {
  const EditableCheckpoint release = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
  const EditableCheckpoint nvfp4 = EditableCheckpoint::Synthetic(SyntheticFormat::kNvFp4);
  const auto error_of = [](EditableCheckpoint edited, const std::function<void(EditableCheckpoint&)>& edit) {
    edit(edited);
    return LoadErrorOf(edited);
  };
  EXPECT_THAT(error_of(release, [](auto& c) { c.Remove("layers.0.attn.wq_a.scale"); }),
              HasSubstr("tensor layers.0.attn.wq_a.weight: F8_E4M3 [128, 128]: has no scale beside it"));
  EXPECT_THAT(error_of(release, [](auto& c) { c.Remove("layers.0.ffn.experts.1.w2.scale"); }),
              HasSubstr("tensor layers.0.ffn.experts.1.w2.weight: I8 [128, 64]: has no block scales"));
  EXPECT_THAT(error_of(release,
                       [](auto& c) {
                         c.tensors.push_back({{"layers.0.ffn.gate.scale", DType::kF32, {1}}, "1234"});
                       }),
              HasSubstr("layers.0.ffn.gate.scale: F32 [1]: a scale, but"));
  EXPECT_THAT(
      error_of(nvfp4, [](auto& c) { c.Remove("layers.0.attn.wq_a.weight_scale_2"); }),
      HasSubstr("tensor layers.0.attn.wq_a.weight_scale: F8_E4M3 [128, 8]: mxfp4 block scales want F8_E8M0"));
  EXPECT_THAT(
      error_of(nvfp4,
               [](auto& c) {
                 c.tensors.push_back({{"layers.0.attn.wq_a.weight_global_scale", DType::kF32, {}}, "1234"});
               }),
      HasSubstr("two global scales"));
  EXPECT_THAT(
      error_of(nvfp4, [](auto& c) { c.At("layers.0.attn.wq_a.weight_scale_2").spec.dtype = DType::kI32; }),
      HasSubstr("a global scale wants one F32"));
  EXPECT_THAT(error_of(release,
                       [](auto& c) {
                         c.At("embed.weight").spec.dtype = DType::kI8;
                         c.At("embed.weight").spec.dims[1] *= 2;
                       }),
              HasSubstr("tensor embed.weight"));
}

TEST(Scales, NumbersThatAreNoScalesAreNamed) {
  const EditableCheckpoint release = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
  const EditableCheckpoint base = EditableCheckpoint::Synthetic(SyntheticFormat::kFp8Base);
  const EditableCheckpoint nvfp4 = EditableCheckpoint::Synthetic(SyntheticFormat::kNvFp4);
  const auto error_with = [](const EditableCheckpoint& checkpoint, const char* name, size_t at,
                             std::string bytes) {
    EditableCheckpoint edited = checkpoint;
    edited.At(name).bytes.replace(at, bytes.size(), bytes);
    return LoadErrorOf(edited);
  };
  const auto f32 = [](float value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  EXPECT_THAT(error_with(release, "layers.1.attn.wq_a.scale", 0, "\xff"),
              HasSubstr("layers.1.attn.wq_a.weight"));
  EXPECT_THAT(error_with(release, "layers.3.ffn.experts.7.w3.scale", 511, "\xff"),
              AllOf(HasSubstr("layers.3.ffn.experts.7.w3.weight"), HasSubstr("scale [127, 3]")));
  EXPECT_THAT(error_with(nvfp4, "layers.0.attn.wo_b.weight_scale", 9, "\x7f"),
              HasSubstr("layers.0.attn.wo_b.weight"));
  EXPECT_THAT(error_with(nvfp4, "layers.0.attn.wo_b.weight_scale", 9, "\xff"),
              HasSubstr("layers.0.attn.wo_b.weight"));
  EXPECT_THAT(error_with(nvfp4, "layers.0.attn.wo_b.weight_scale", 9, "\x80"),
              HasSubstr("layers.0.attn.wo_b.weight"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0F, -1.0F, nan, infinity}) {
    EXPECT_THAT(error_with(nvfp4, "layers.0.attn.wo_b.weight_scale_2", 0, f32(bad)),
                HasSubstr("layers.0.attn.wo_b.weight"));
  }
  for (const float bad : {-1.0F, nan, infinity}) {
    EXPECT_THAT(error_with(base, "layers.0.attn.wq_b.scale", 4, f32(bad)),
                HasSubstr("layers.0.attn.wq_b.weight"));
  }
  EXPECT_THAT(error_with(release, "layers.0.attn.attn_sink", 4, f32(nan)),
              HasSubstr("tensor layers.0.attn.attn_sink: element 1 is NaN"));
  EXPECT_THAT(error_with(release, "norm.weight", 2, "\xc0\x7f"),
              HasSubstr("tensor norm.weight: element 1 is NaN"));
}

// Scales that threads share; of several that are wrong the first is named, whichever thread finds it first.
TEST(Scales, TheFirstOfManyThatAreNoNumbersIsNamed) {
  constexpr int64_t kRows = 512;
  constexpr int64_t kScales = 64;
  constexpr size_t kWeights = 200;
  std::vector<std::vector<uint8_t>> scales(kWeights, std::vector<uint8_t>(kRows * kScales, 120));
  std::vector<std::string> names;
  for (size_t i = 0; i < kWeights; ++i) names.push_back("w" + std::to_string(i) + ".");
  ScaleChecks checks;
  const auto checked = [&] {
    for (size_t i = 0; i < kWeights; ++i) {
      Weight weight;
      weight.format = WeightFormat::kMxFp4;
      weight.scale = TensorView::Contiguous(static_cast<const void*>(scales[i].data()), DType::kF8E8M0,
                                            {kRows, kScales});
      checks.Add(weight, names[i]);
    }
    return checks.Finish();
  };
  EXPECT_TRUE(checked().ok());
  for (const size_t wrong : {199, 120, 7}) {
    scales[wrong].back() = 255;
    const Status status = checked();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(names[wrong]), HasSubstr("scale [511, 63]")));
  }
  EXPECT_TRUE(checks.Finish().ok()) << "nothing was added since";
}

}  // namespace
}  // namespace dsv4::model
