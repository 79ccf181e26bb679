// V4.1 in the layouts of its conversions: experts in NVFP4 (NVIDIA's names, compressed-tensors' names), dense
// linears in NVFP4, the tensors of the vision tower.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/number_formats.h"
#include "formats/quantize.h"
#include "model/checkpoint/checkpoint_testing.h"
#include "model/checkpoint/resolved_checkpoint.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

constexpr int kNumExperts = 4;
constexpr int kNumLayers = 4;

EditableCheckpoint Original() { return EditableCheckpoint::Read("tests/golden/v41/shared"); }

std::string ExpertName(int layer, int expert, const std::string& matrix) {
  return "layers." + std::to_string(layer) + ".ffn.experts." + std::to_string(expert) + "." + matrix;
}

void Add(EditableCheckpoint& checkpoint, const std::string& name, DType dtype, std::vector<int64_t> dims,
         std::string bytes) {
  checkpoint.tensors.push_back({{name, dtype, std::move(dims)}, std::move(bytes)});
}

std::string FloatBytes(float value) {
  const auto bits = std::bit_cast<std::array<char, 4>>(value);
  return {bits.begin(), bits.end()};
}

enum class Suffixes : uint8_t { kModelOpt, kCompressedTensors };

// An MXFP4 matrix as NVFP4 of the same values: two block scales for each of its own, times a power of two.
void TranscodeToNvFp4(EditableCheckpoint& checkpoint, const std::string& name, Suffixes suffixes) {
  const EditableTensor scale = checkpoint.At(name + ".scale");
  checkpoint.Remove(name + ".scale");
  int largest = 0;
  for (const char code : scale.bytes) largest = std::max(largest, int{static_cast<uint8_t>(code)});
  std::string blocks;
  for (const char code : scale.bytes) {
    const int exponent = int{static_cast<uint8_t>(code)} - largest + 8;  // The largest is 2^8.
    ASSERT_GE(exponent, -6) << name;
    blocks += std::string(2, static_cast<char>((exponent + 7) << 3));
  }
  const float global = std::ldexp(1.0F, largest - 127 - 8);
  const int64_t rows = scale.spec.dims[0];
  const int64_t cols = scale.spec.dims[1] * 2;
  EditableTensor& weight = checkpoint.At(name + ".weight");
  weight.spec.dtype = DType::kU8;
  if (suffixes == Suffixes::kModelOpt) {
    Add(checkpoint, name + ".weight_scale", DType::kF8E4M3, {rows, cols}, blocks);
    Add(checkpoint, name + ".weight_scale_2", DType::kF32, {}, FloatBytes(global));
    Add(checkpoint, name + ".input_scale", DType::kF32, {}, FloatBytes(0.5F));
  } else {
    weight.spec.name = name + ".weight_packed";
    Add(checkpoint, name + ".weight_scale", DType::kF8E4M3, {rows, cols}, blocks);
    Add(checkpoint, name + ".weight_global_scale", DType::kF32, {1}, FloatBytes(1.0F / global));
  }
}

void TranscodeExperts(EditableCheckpoint& checkpoint, Suffixes suffixes) {
  for (int layer = 0; layer < kNumLayers; ++layer) {
    for (int expert = 0; expert < kNumExperts; ++expert) {
      for (const char* matrix : {"w1", "w2", "w3"})
        TranscodeToNvFp4(checkpoint, ExpertName(layer, expert, matrix), suffixes);
    }
  }
}

// An FP8 matrix as NVFP4, whose values are others.
void RequantizeToNvFp4(EditableCheckpoint& checkpoint, const std::string& name,
                       Suffixes suffixes = Suffixes::kModelOpt) {
  const int64_t rows = checkpoint.At(name + ".weight").spec.dims[0];
  const int64_t cols = checkpoint.At(name + ".weight").spec.dims[1];
  std::vector<float> values;
  for (int64_t i = 0; i < rows * cols; ++i) values.push_back(static_cast<float>(i % 13 - 6) / 8.0F);
  const QuantizedMatrix matrix = QuantizeNvFp4(values, rows, cols);
  checkpoint.Remove(name + ".scale");
  EditableTensor& weight = checkpoint.At(name + ".weight");
  weight.spec.dtype = DType::kU8;
  weight.spec.dims = {rows, cols / 2};
  weight.bytes = std::string(matrix.data.begin(), matrix.data.end());
  Add(checkpoint, name + ".weight_scale", DType::kF8E4M3, {rows, cols / 16},
      std::string(matrix.scale.begin(), matrix.scale.end()));
  if (suffixes == Suffixes::kModelOpt) {
    Add(checkpoint, name + ".weight_scale_2", DType::kF32, {}, FloatBytes(matrix.global_scale));
  } else {
    checkpoint.At(name + ".weight").spec.name = name + ".weight_packed";
    Add(checkpoint, name + ".weight_global_scale", DType::kF32, {1}, FloatBytes(1 / matrix.global_scale));
  }
}

std::vector<float> ValuesOf(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.rows * weight.cols));
  for (int64_t row = 0; row < weight.rows; ++row)
    DequantizeRow(weight, row, values.data() + row * weight.cols);
  return values;
}

Result<ModelWeights> Load(EditableCheckpoint& checkpoint, const TemporaryDirectory& directory,
                          Numerics numerics = Numerics::kRelease) {
  checkpoint.Write(directory / "m");
  LoadOptions options;
  options.numerics = numerics;
  return LoadDirectory(directory / "m", options);
}

TEST(V41Layouts, TheReleasesOwn) {
  const TemporaryDirectory directory;
  EditableCheckpoint original = Original();
  const auto weights = Load(original, directory);
  ASSERT_TRUE(weights) << weights.error().ToString();
  const LayerWeights& layer = weights->layers[1];
  EXPECT_EQ(layer.wq_a.format, WeightFormat::kFp8Block);
  EXPECT_EQ(layer.wq_a.block_rows, 32);
  EXPECT_EQ(layer.wq_a.block_cols, 32);
  EXPECT_EQ(layer.wq_a.activation, ActivationQuant::kFp8Columns32);
  EXPECT_EQ(layer.wo_a.activation, ActivationQuant::kNone);
  EXPECT_EQ(layer.gate.activation, ActivationQuant::kNone);
  EXPECT_EQ(layer.experts[2].w1.format, WeightFormat::kMxFp4);
  EXPECT_EQ(layer.experts[2].w1.activation, ActivationQuant::kFp8Columns32);
  EXPECT_EQ(layer.shared_expert.w2.activation, ActivationQuant::kFp8Columns32);
  const TemporaryDirectory plain_directory;
  const auto plain = Load(original, plain_directory, Numerics::kPlain);
  ASSERT_TRUE(plain) << plain.error().ToString();
  EXPECT_EQ(plain->layers[1].wq_a.activation, ActivationQuant::kNone);
}

// Experts alone are NVFP4: same values, activations as they are.
TEST(V41Layouts, ExpertsInNvFp4) {
  const TemporaryDirectory first;
  EditableCheckpoint original = Original();
  const auto right = Load(original, first);
  ASSERT_TRUE(right) << right.error().ToString();
  for (const Suffixes suffixes : {Suffixes::kModelOpt, Suffixes::kCompressedTensors}) {
    const TemporaryDirectory directory;
    EditableCheckpoint converted = Original();
    TranscodeExperts(converted, suffixes);
    const auto weights = Load(converted, directory);
    ASSERT_TRUE(weights) << weights.error().ToString();
    for (size_t layer = 0; layer < kNumLayers; ++layer) {
      const LayerWeights& got = weights->layers[layer];
      EXPECT_EQ(got.wq_b.format, WeightFormat::kFp8Block);
      EXPECT_EQ(got.shared_expert.w1.format, WeightFormat::kFp8Block);
      EXPECT_EQ(got.shared_expert.w1.activation, ActivationQuant::kFp8Columns32);
      for (size_t expert = 0; expert < kNumExperts; ++expert) {
        const ExpertWeights& of = got.experts[expert];
        const ExpertWeights& want = right->layers[layer].experts[expert];
        for (const auto& [weight, wanted] :
             {std::pair{&of.w1, &want.w1}, std::pair{&of.w2, &want.w2}, std::pair{&of.w3, &want.w3}}) {
          EXPECT_EQ(weight->format, WeightFormat::kNvFp4);
          EXPECT_EQ(weight->activation, ActivationQuant::kNone);
          EXPECT_EQ(weight->global_scale_divides, suffixes == Suffixes::kCompressedTensors);
          EXPECT_EQ(ValuesOf(*weight), ValuesOf(*wanted)) << "layer " << layer << ", expert " << expert;
        }
      }
    }
  }
}

// Every tensor has a format of its own: dense linears in NVFP4 beside MXFP4 experts and dense linears in FP8.
TEST(V41Layouts, DenseInNvFp4BesideOthers) {
  const TemporaryDirectory directory;
  EditableCheckpoint mixed = Original();
  for (const char* name : {"layers.1.attn.wq_a", "layers.1.attn.wo_b", "layers.2.ffn.shared_experts.w1"})
    RequantizeToNvFp4(mixed, name);
  TranscodeToNvFp4(mixed, ExpertName(2, 3, "w2"), Suffixes::kModelOpt);
  const auto weights = Load(mixed, directory);
  ASSERT_TRUE(weights) << weights.error().ToString();
  EXPECT_EQ(weights->layers[1].wq_a.format, WeightFormat::kNvFp4);
  EXPECT_EQ(weights->layers[1].wq_a.activation, ActivationQuant::kNone);
  EXPECT_EQ(weights->layers[1].wo_b.format, WeightFormat::kNvFp4);
  EXPECT_EQ(weights->layers[1].wq_b.format, WeightFormat::kFp8Block);
  EXPECT_EQ(weights->layers[0].wq_a.format, WeightFormat::kFp8Block);
  EXPECT_EQ(weights->layers[2].shared_expert.w1.format, WeightFormat::kNvFp4);
  EXPECT_EQ(weights->layers[2].shared_expert.w2.format, WeightFormat::kFp8Block);
  EXPECT_EQ(weights->layers[2].experts[3].w2.format, WeightFormat::kNvFp4);
  EXPECT_EQ(weights->layers[2].experts[3].w1.format, WeightFormat::kMxFp4);
}

constexpr const char* kEngramTable = "layers.1.engram.embed";

// N-gram tables in every form that a linear has; scales of FP8 are those of one row.
TEST(V41Layouts, NgramTablesInTheFormsOfLinears) {
  const auto load = [](const std::function<void(EditableCheckpoint&)>& change) {
    const TemporaryDirectory directory;
    EditableCheckpoint checkpoint = EditableCheckpoint::Read("tests/golden/v41/engram");
    change(checkpoint);
    auto weights = Load(checkpoint, directory);
    EXPECT_TRUE(weights) << weights.error().ToString();
    return std::pair(weights->layers[1].engram->table.format, ValuesOf(weights->layers[1].engram->table));
  };
  const auto as_released = load([](auto&) {});
  EXPECT_EQ(as_released.first, WeightFormat::kFp8Block);
  const auto other_scales = load([](EditableCheckpoint& checkpoint) {
    EditableTensor& scale = checkpoint.At(std::string(kEngramTable) + ".scale");
    std::string floats;
    for (const char code : scale.bytes) floats += FloatBytes(FloatFromE8m0(static_cast<uint8_t>(code)));
    scale.bytes = floats;
    scale.spec.dtype = DType::kF32;
  });
  EXPECT_EQ(other_scales, as_released);
  const auto with_suffixes = [&](Suffixes suffixes) {
    return load(
        [&](EditableCheckpoint& checkpoint) { RequantizeToNvFp4(checkpoint, kEngramTable, suffixes); });
  };
  const auto multiplied = with_suffixes(Suffixes::kModelOpt);
  EXPECT_EQ(multiplied.first, WeightFormat::kNvFp4);
  for (size_t i = 0; i < multiplied.second.size(); ++i)
    ASSERT_NEAR(multiplied.second[i], (static_cast<double>(i % 13) - 6) / 8, 0.13) << i;
  const auto divided = with_suffixes(Suffixes::kCompressedTensors);
  for (size_t i = 0; i < divided.second.size(); ++i)
    ASSERT_NEAR(divided.second[i], multiplied.second[i], 1e-6) << i;
  const auto mxfp4 = load([](EditableCheckpoint& checkpoint) {
    RequantizeToNvFp4(checkpoint, kEngramTable);
    const std::vector<int64_t> dims = checkpoint.At(std::string(kEngramTable) + ".weight_scale").spec.dims;
    checkpoint.Remove(std::string(kEngramTable) + ".weight_scale");
    checkpoint.Remove(std::string(kEngramTable) + ".weight_scale_2");
    Add(checkpoint, std::string(kEngramTable) + ".scale", DType::kF8E8M0, {dims[0], dims[1] / 2},
        std::string(static_cast<size_t>(dims[0] * dims[1] / 2), '\x7F'));
  });
  EXPECT_EQ(mxfp4.first, WeightFormat::kMxFp4);
}

TEST(V41Layouts, HalfATableIsNamed) {
  for (const char* part : {".weight_scale", ".weight_scale_2"}) {
    EditableCheckpoint checkpoint = EditableCheckpoint::Read("tests/golden/v41/engram");
    RequantizeToNvFp4(checkpoint, kEngramTable);
    checkpoint.Remove(kEngramTable + std::string(part));
    EXPECT_THAT(LoadErrorOf(checkpoint), HasSubstr(std::string(kEngramTable) + ".weight")) << part;
  }
  // Scales of the model's blocks of 32 x 32 in place of those of rows.
  EditableCheckpoint checkpoint = EditableCheckpoint::Read("tests/golden/v41/engram");
  EditableTensor& scale = checkpoint.At(std::string(kEngramTable) + ".scale");
  scale.spec.dims[0] = (scale.spec.dims[0] + 31) / 32;
  scale.bytes.resize(static_cast<size_t>(scale.spec.dims[0] * scale.spec.dims[1]));
  EXPECT_THAT(LoadErrorOf(checkpoint), HasSubstr(std::string(kEngramTable) + ".scale: shape ["));
}

// Converters leave the block size out; scales of 32 x 32 say it themselves.
TEST(V41Layouts, BlocksOf32FollowFromTheScales) {
  const TemporaryDirectory directory;
  EditableCheckpoint converted = Original();
  TranscodeExperts(converted, Suffixes::kModelOpt);
  auto config = nlohmann::ordered_json::parse(converted.config_json);
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  converted.config_json = config.dump();
  const auto weights = Load(converted, directory);
  ASSERT_TRUE(weights) << weights.error().ToString();
  EXPECT_EQ(weights->layers[1].wq_b.block_rows, 32);
  EXPECT_EQ(weights->layers[1].wq_b.block_cols, 32);
  EXPECT_EQ(weights->layers[1].wq_b.activation, ActivationQuant::kFp8Columns32);
}

TEST(V41Layouts, VisionIsSkippedByNameAndNothingElseIs) {
  EditableCheckpoint with_vision = Original();
  for (const char* name :
       {"vision.blocks.0.attn.wq.weight", "aligner.0.weight", "image_newline", "image_start"})
    Add(with_vision, name, DType::kBF16, {2, 2}, std::string(8, '\0'));
  EXPECT_EQ(LoadErrorOf(with_vision), "no error");
  Add(with_vision, "visions.weight", DType::kBF16, {2, 2}, std::string(8, '\0'));
  EXPECT_THAT(LoadErrorOf(with_vision), HasSubstr("visions.weight"));
}

TEST(V41Layouts, HalfALayoutIsNamed) {
  EditableCheckpoint converted = Original();
  const std::string name = ExpertName(1, 2, "w3");
  TranscodeToNvFp4(converted, name, Suffixes::kModelOpt);
  converted.Remove(name + ".weight_scale");
  EXPECT_THAT(LoadErrorOf(converted), HasSubstr(name));
  converted = Original();
  converted.Remove("layers.1.attn.wq_a.scale");
  EXPECT_THAT(LoadErrorOf(converted), HasSubstr("layers.1.attn.wq_a"));
  // Scales of 128 x 128 on a weight whose config says 32 x 32.
  converted = Original();
  EditableTensor& scale = converted.At("layers.1.attn.wq_b.scale");
  scale.spec.dims = {2, 1};
  scale.bytes.resize(2);
  EXPECT_THAT(LoadErrorOf(converted), HasSubstr("layers.1.attn.wq_b.scale: shape [2, 1]"));
}

// Tensors describe themselves; a config that says otherwise is worth a line.
TEST(V41Layouts, ExpertsThatAreNotWhatTheConfigSays) {
  const auto lines = [](const char* dtype) {
    const auto checkpoint = io::Checkpoint::Open("tests/golden/v41/shared");
    ModelConfig config = *LoadModelConfig("tests/golden/v41/shared");
    config.expert_dtype = dtype;
    return ResolveCheckpoint(**checkpoint, config)->disagreements;
  };
  EXPECT_TRUE(lines("fp4").empty());
  ASSERT_EQ(lines("fp8").size(), 1U);
  EXPECT_THAT(lines("fp8")[0], HasSubstr("experts that are not what expert_dtype \"fp8\" says"));
}

}  // namespace
}  // namespace dsv4::model
