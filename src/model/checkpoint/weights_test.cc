// Tests of the loader: every format and dialect, slices for ranks, missing, extra and misshapen tensors.
#include "model/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/number_formats.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint_testing.h"
#include "model/checkpoint/stored_linear.h"

namespace dsv4::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// --- comparing loaded models ------------------------------------------------------------------------------------------

using NamedBytes = std::vector<std::pair<std::string, std::string>>;

// Everything a ModelWeights holds, as bytes by release name.
class Flattener {
 public:
  explicit Flattener(const ModelWeights& weights) {
    Add("embed", weights.embed);
    Add("head", weights.head);
    Add("norm", weights.norm);
    Add("hc_head", weights.hc_head);
    for (const LayerWeights& layer : weights.layers) Add(layer);
  }
  NamedBytes all;

 private:
  void Add(const std::string& name, const TensorView& view) {
    all.emplace_back(
        name + " " + view.shape.ToString(),
        view.is_null() ? "" : std::string(view.as<const char>(), static_cast<size_t>(view.num_bytes())));
  }
  void Add(const std::string& name, const Weight& weight) {
    Add(name + ".data", weight.data);
    Add(name + ".scale", weight.scale);
    const double global =
        weight.global_scale_divides ? 1 / static_cast<double>(weight.global_scale) : weight.global_scale;
    all.emplace_back(name + ".about", std::to_string(static_cast<int>(weight.format)) + " " +
                                          std::to_string(global) + " " + std::to_string(weight.block_rows) +
                                          " " + std::to_string(weight.block_cols));
  }
  void Add(const std::string& name, const HyperConnectionWeights& hc) {
    Add(name + "_fn", hc.fn);
    Add(name + "_base", hc.base);
    Add(name + "_scale", hc.scale);
  }
  void Add(const std::string& name, const CompressorWeights& compressor) {
    Add(name + ".wkv", compressor.wkv);
    Add(name + ".wgate", compressor.wgate);
    Add(name + ".ape", compressor.ape);
    Add(name + ".norm", compressor.norm);
  }
  void Add(const std::string& name, const ExpertWeights& expert) {
    Add(name + ".w1", expert.w1);
    Add(name + ".w2", expert.w2);
    Add(name + ".w3", expert.w3);
  }
  void Add(const LayerWeights& layer) {
    Add("attn_norm", layer.attn_norm);
    Add("ffn_norm", layer.ffn_norm);
    Add("hc_attn", layer.hc_attn);
    Add("hc_ffn", layer.hc_ffn);
    Add("wq_a", layer.wq_a);
    Add("q_norm", layer.q_norm);
    Add("wq_b", layer.wq_b);
    Add("wkv", layer.wkv);
    Add("kv_norm", layer.kv_norm);
    Add("attn_sink", layer.attn_sink);
    Add("wo_a", layer.wo_a);
    Add("wo_b", layer.wo_b);
    if (layer.compressor) Add("compressor", *layer.compressor);
    if (layer.indexer) {
      Add("indexer.wq_b", layer.indexer->wq_b);
      Add("indexer.weights_proj", layer.indexer->weights_proj);
    }
    if (layer.key_compressor) Add("indexer.compressor", *layer.key_compressor);
    Add("gate", layer.gate);
    Add("gate_bias", layer.gate_bias);
    Add("tid2eid", layer.tid2eid);
    for (const ExpertWeights& expert : layer.experts) Add("expert", expert);
    Add("shared_expert", layer.shared_expert);
  }
};

NamedBytes Flatten(const Result<ModelWeights>& weights) {
  EXPECT_TRUE(weights.has_value()) << (weights ? "" : weights.error().message());
  return weights ? Flattener(*weights).all : NamedBytes();
}

void ExpectLoadsAs(EditableCheckpoint& checkpoint, const NamedBytes& wanted) {
  const TemporaryDirectory temporary;
  checkpoint.Write(temporary / "m");
  const NamedBytes got = Flatten(LoadDirectory(temporary / "m"));
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(got[i] == wanted[i]) << got[i].first << " vs " << wanted[i].first;
}

NamedBytes LoadEdited(EditableCheckpoint& checkpoint) {
  const TemporaryDirectory temporary;
  checkpoint.Write(temporary / "m");
  return Flatten(LoadDirectory(temporary / "m"));
}

// --- dialects ---------------------------------------------------------------------------------------------------------
// The names are written out here, apart from the tensor table, so that a wrong row of the table fails.

using Renames = std::vector<std::pair<std::string, std::string>>;

std::string Apply(const Renames& renames, std::string name) {
  for (const auto& [pattern, replacement] : renames)
    name = std::regex_replace(name, std::regex(pattern), replacement);
  return name;
}

const Renames kToTransformers = {
    {R"(^embed\.)", "model.embed_tokens."},
    {R"(^head\.)", "lm_head."},
    {R"(^norm\.)", "model.norm."},
    {R"(^hc_head_)", "model.hc_head.hc_"},
    {R"(^layers\.)", "model.layers."},
    {R"(\.attn_norm\.)", ".input_layernorm."},
    {R"(\.ffn_norm\.)", ".post_attention_layernorm."},
    {R"(\.hc_(attn|ffn)_)", ".$1_hc."},
    {R"(\.attn\.attn_sink)", ".self_attn.sinks"},
    {R"(\.attn\.indexer\.compressor\.)", ".self_attn.compressor.indexer."},
    {R"(\.attn\.indexer\.weights_proj)", ".self_attn.compressor.indexer.scorer.weights_proj"},
    {R"(\.attn\.indexer\.wq_b)", ".self_attn.compressor.indexer.q_b_proj"},
    {R"(\.attn\.)", ".self_attn."},
    {R"((compressor(\.indexer)?)\.norm\.)", "$1.kv_norm."},
    {R"((compressor(\.indexer)?)\.ape$)", "$1.position_bias"},
    {R"((compressor(\.indexer)?)\.wkv)", "$1.kv_proj"},
    {R"((compressor(\.indexer)?)\.wgate)", "$1.gate_proj"},
    {R"(\.wq_a)", ".q_a_proj"},
    {R"(\.q_norm)", ".q_a_norm"},
    {R"(\.wq_b)", ".q_b_proj"},
    {R"(\.wkv)", ".kv_proj"},
    {R"(\.wo_a)", ".o_a_proj"},
    {R"(\.wo_b)", ".o_b_proj"},
    {R"(\.ffn\.gate\.bias)", ".mlp.gate.e_score_correction_bias"},
    {R"(\.ffn\.)", ".mlp."},
    {R"(\.w1\.)", ".gate_proj."},
    {R"(\.w2\.)", ".down_proj."},
    {R"(\.w3\.)", ".up_proj."},
};

const Renames kToSavePretrained = {
    {R"(^embed\.)", "model.embed_tokens."},  {R"(^norm\.)", "model.norm."},
    {R"(^hc_head_)", "model.hc_head.hc_"},   {R"(^layers\.)", "model.layers."},
    {R"(\.attn\.kv_norm\.)", ".attn.norm."},
};

class EveryFormat : public ::testing::TestWithParam<SyntheticFormat> {};

TEST_P(EveryFormat, LoadsTheSameFromEveryNameDialect) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(GetParam());
  const NamedBytes release = LoadEdited(checkpoint);
  for (const Renames& renames : {kToSavePretrained, kToTransformers}) {
    EditableCheckpoint renamed = checkpoint;
    renamed.Rename([&](const std::string& name) { return Apply(renames, name); });
    ExpectLoadsAs(renamed, release);
  }
  // V3-style: the release's names below "model.", FP8 scales as transformers calls them.
  EditableCheckpoint renamed = checkpoint;
  renamed.Rename([](const std::string& name) {
    return "model." +
           std::regex_replace(name, std::regex(R"((wq_a|w1|wo_b)\.scale$)"), "$1.weight_scale_inv");
  });
  ExpectLoadsAs(renamed, release);
}

TEST_P(EveryFormat, DequantizesToFiniteNumbersOfTheRightSize) {
  const TemporaryDirectory temporary;
  const SyntheticOptions options = {.num_layers = {}, .vocab_size = {}, .format = GetParam()};
  ASSERT_TRUE(WriteSyntheticCheckpoint(temporary / "m", options).ok());
  const auto weights = LoadDirectory(temporary / "m");
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  ASSERT_EQ(weights->layers.size(), 4U);
  const auto deviation = [](const Weight& weight) {
    double sum = 0;
    std::vector<float> row(static_cast<size_t>(weight.cols));
    for (int64_t r = 0; r < weight.rows; ++r) {
      DequantizeRow(weight, r, row.data());
      for (const float value : row) sum += static_cast<double>(value) * static_cast<double>(value);
    }
    return std::sqrt(sum / static_cast<double>(weight.rows));
  };
  for (const LayerWeights& layer : weights->layers) {
    for (const Weight* weight :
         {&layer.wq_a, &layer.wo_a, &layer.gate, &layer.shared_expert.w2, &layer.experts[3].w1}) {
      // Norm of a row; 1 keeps the size of the input. Half of the scales are halved, and a small matrix may
      // have one.
      const double norm = deviation(*weight);
      EXPECT_GT(norm, 0.4);
      EXPECT_LT(norm, 1.5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryFormat,
                         ::testing::Values(SyntheticFormat::kBf16, SyntheticFormat::kF32,
                                           SyntheticFormat::kFp8, SyntheticFormat::kFp8Base,
                                           SyntheticFormat::kRelease, SyntheticFormat::kNvFp4Experts,
                                           SyntheticFormat::kNvFp4, SyntheticFormat::kNvFp4Ct));

// Joins the experts' tensors as transformers holds them: w1's rows, then w3's, for every expert.
void FuseExperts(EditableCheckpoint& checkpoint, int64_t num_layers, int64_t num_experts,
                 const std::vector<std::pair<std::string, std::string>>& suffixes) {
  for (int64_t l = 0; l < num_layers; ++l) {
    const std::string scope = "layers." + std::to_string(l) + ".ffn.experts.";
    for (const auto& [suffix, fused_suffix] : suffixes) {
      EditableTensor in = {
          {"model.layers." + std::to_string(l) + ".mlp.experts.gate_up_proj" + fused_suffix, {}, {}}, ""};
      EditableTensor out = {
          {"model.layers." + std::to_string(l) + ".mlp.experts.down_proj" + fused_suffix, {}, {}}, ""};
      for (int64_t e = 0; e < num_experts; ++e) {
        for (const char* part : {"w1", "w3", "w2"}) {
          const std::string name = scope + std::to_string(e) + "." + part + suffix;
          const EditableTensor tensor = checkpoint.At(name);
          EditableTensor& fused = part[1] == '2' ? out : in;
          fused.spec.dtype = tensor.spec.dtype;
          fused.spec.dims = {num_experts};
          fused.spec.dims.insert(fused.spec.dims.end(), tensor.spec.dims.begin(), tensor.spec.dims.end());
          fused.bytes += tensor.bytes;
          checkpoint.Remove(name);
        }
      }
      if (in.spec.dims.size() == 1)
        in.spec.dims.push_back(2);  // One number each for w1 and w3.
      else
        in.spec.dims[1] *= 2;
      checkpoint.tensors.push_back(in);
      checkpoint.tensors.push_back(out);
    }
  }
}

TEST(FusedExperts, LoadAsSingleOnes) {
  using Suffixes = std::vector<std::pair<std::string, std::string>>;
  const std::vector<std::pair<SyntheticFormat, Suffixes>> cases = {
      {SyntheticFormat::kBf16, {{".weight", ""}}},
      {SyntheticFormat::kFp8, {{".weight", ""}, {".scale", "_scale_inv"}}},
      {SyntheticFormat::kRelease, {{".weight", ""}, {".scale", "_scale"}}},
      {SyntheticFormat::kNvFp4Experts,
       {{".weight", ""},
        {".weight_scale", "_weight_scale"},
        {".weight_scale_2", "_weight_scale_2"},
        {".input_scale", "_input_scale"}}},
      {SyntheticFormat::kNvFp4Ct,
       {{".weight_packed", ".weight_packed"},
        {".weight_scale", ".weight_scale"},
        {".weight_global_scale", ".weight_global_scale"}}},
  };
  for (const auto& [format, suffixes] : cases) {
    EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(format);
    // A global scale that differs between w1 and w3 must stay with its half.
    for (EditableTensor& tensor : checkpoint.tensors) {
      if (tensor.spec.name.ends_with("w3.weight_scale_2")) tensor.bytes.assign("\0\0\0\x3c", 4);
    }
    const NamedBytes single = LoadEdited(checkpoint);
    FuseExperts(checkpoint, 4, 8, suffixes);
    ExpectLoadsAs(checkpoint, single);
  }
}

TEST(StoredLinear, RowsThatSplitAScaleBlockAreRefused) {
  const std::string zeros(256 * 128, '\0');
  const auto bytes = std::as_bytes(std::span(zeros));
  const io::StoredTensor weight = {"w", "F8_E4M3", DType::kF8E4M3, {256, 128}, bytes, 0};
  const io::StoredTensor scale = {"s", "F8_E8M0", DType::kF8E8M0, {3, 1}, bytes.first(3), 0};
  const LinearParts parts = {TensorPart::Whole(&weight), TensorPart::Whole(&scale), {}, {}};
  QuantizationConfig quantization;
  quantization.weight_block_rows = 96;
  quantization.weight_block_cols = 128;
  const auto stored = DescribeLinear(parts, 256, 128, quantization);
  ASSERT_TRUE(stored.has_value()) << stored.error().message();
  EXPECT_EQ(stored->Rows(96, 256)->scale_rows, 2);
  EXPECT_THAT(stored->Rows(128, 256).error().message(),
              HasSubstr("expert rows begin at 128, inside a scale block of 96 rows"));
}

TEST(StoredLinear, OneScalePerRowOrPerTensorIsAGridToo) {
  const std::string zeros(256 * 128 * 4, '\0');
  const auto bytes = std::as_bytes(std::span(zeros));
  const io::StoredTensor weight = {"w", "F8_E4M3", DType::kF8E4M3, {256, 128}, bytes.first(256 * 128), 0};
  const io::StoredTensor row_scale = {"s", "F32", DType::kF32, {256}, bytes.first(1024), 0};
  const io::StoredTensor one_scale = {"s", "F32", DType::kF32, {}, bytes.first(4), 0};
  const auto rows =
      DescribeLinear({TensorPart::Whole(&weight), TensorPart::Whole(&row_scale), {}, {}}, 256, 128, {});
  EXPECT_EQ(rows->block_rows, 1);
  EXPECT_EQ(rows->block_cols, 128);
  const auto one =
      DescribeLinear({TensorPart::Whole(&weight), TensorPart::Whole(&one_scale), {}, {}}, 256, 128, {});
  EXPECT_EQ(one->block_rows, 256);
  const auto half = one->Rows(128, 256);
  EXPECT_EQ(half->block_rows, 128);
  std::vector<Buffer> copies;
  ScaleChecks checks;
  EXPECT_TRUE(LoadLinear(*half, ActivationQuant::kNone, copies, checks).has_value());
  EXPECT_TRUE(checks.Finish().ok());
}

// --- what must be refused ---------------------------------------------------------------------------------------------

TEST(TensorTable, EveryMissingTensorIsNamed) {
  const EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
  // Layer 2 is CSA; layer 0 is hash-routed. One of each kind is enough.
  for (const char* name : {"embed.weight",
                           "head.weight",
                           "norm.weight",
                           "hc_head_fn",
                           "hc_head_base",
                           "hc_head_scale",
                           "layers.2.attn_norm.weight",
                           "layers.2.ffn_norm.weight",
                           "layers.2.hc_attn_fn",
                           "layers.2.hc_attn_base",
                           "layers.2.hc_attn_scale",
                           "layers.2.hc_ffn_fn",
                           "layers.2.hc_ffn_base",
                           "layers.2.hc_ffn_scale",
                           "layers.2.attn.attn_sink",
                           "layers.2.attn.wq_a.weight",
                           "layers.2.attn.q_norm.weight",
                           "layers.2.attn.wq_b.weight",
                           "layers.2.attn.wkv.weight",
                           "layers.2.attn.kv_norm.weight",
                           "layers.2.attn.wo_a.weight",
                           "layers.2.attn.wo_b.weight",
                           "layers.2.attn.compressor.wkv.weight",
                           "layers.2.attn.compressor.wgate.weight",
                           "layers.2.attn.compressor.ape",
                           "layers.2.attn.compressor.norm.weight",
                           "layers.2.attn.indexer.wq_b.weight",
                           "layers.2.attn.indexer.weights_proj.weight",
                           "layers.2.attn.indexer.compressor.wkv.weight",
                           "layers.2.attn.indexer.compressor.wgate.weight",
                           "layers.2.attn.indexer.compressor.ape",
                           "layers.2.attn.indexer.compressor.norm.weight",
                           "layers.2.ffn.gate.weight",
                           "layers.2.ffn.gate.bias",
                           "layers.0.ffn.gate.tid2eid",
                           "layers.2.ffn.shared_experts.w1.weight",
                           "layers.2.ffn.shared_experts.w2.weight",
                           "layers.2.ffn.shared_experts.w3.weight",
                           "layers.2.ffn.experts.5.w1.weight",
                           "layers.2.ffn.experts.5.w2.weight",
                           "layers.2.ffn.experts.5.w3.weight"}) {
    EditableCheckpoint edited = checkpoint;
    edited.Remove(name);
    EXPECT_THAT(LoadErrorOf(edited), AllOf(HasSubstr("1 missing"), HasSubstr(name)));
  }
}

TEST(TensorTable, MissingTensorsAreNamedInTheFilesOwnDialect) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kBf16);
  checkpoint.Rename([](const std::string& name) { return Apply(kToTransformers, name); });
  EditableCheckpoint edited = checkpoint;
  edited.Remove("model.layers.0.self_attn.q_a_proj.weight");
  EXPECT_THAT(LoadErrorOf(edited), HasSubstr("model.layers.0.self_attn.q_a_proj.weight"));
  edited = checkpoint;
  edited.Remove("lm_head.weight");
  EXPECT_THAT(LoadErrorOf(edited), HasSubstr("lm_head.weight"));
}

TEST(TensorTable, ExtraTensorsAreNamedAndCounted) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
  for (const char* name :
       {"layers.1.attn.indexer.wq_b.weight", "layers.4.attn_norm.weight", "layers.0.ffn.gate.bias",
        "layers.0.ffn.gate.bias_vl", "head.bias", "model.embed_tokens.weight",
        "layers.0.attn.wq_a.weight_scale", "layers.0.ffn.experts.8.w1.weight"}) {
    EditableCheckpoint edited = checkpoint;
    edited.tensors.push_back({{name, DType::kF32, {1}}, "1234"});
    EXPECT_THAT(LoadErrorOf(edited), AllOf(HasSubstr("1 extra"), HasSubstr(name)));
  }
  for (int i = 0; i < 9; ++i) checkpoint.tensors.push_back({{"x" + std::to_string(i), DType::kU8, {1}}, "x"});
  EXPECT_THAT(LoadErrorOf(checkpoint), AllOf(HasSubstr("9 extra (x0; x1; x2; x3; x4; ...)")));
}

TEST(TensorTable, DraftAndVisionTensorsAreSkipped) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
  const NamedBytes plain = LoadEdited(checkpoint);
  for (const char* name : {"mtp.0.attn.wq_a.weight", "model.mtp.0.e_proj.weight",
                           "vision.blocks.0.norm1.weight", "aligner.w1.weight", "image_start"}) {
    checkpoint.tensors.push_back({{name, DType::kF32, {1}}, "1234"});
  }
  ExpectLoadsAs(checkpoint, plain);
  // A vision checkpoint also has router biases for image tokens, in hash-routed layers too.
  checkpoint.config_json.insert(checkpoint.config_json.find('{') + 1, "\"vision_n_layers\": 32,");
  for (const char* name :
       {"layers.0.ffn.gate.bias", "layers.0.ffn.gate.bias_vl", "layers.3.ffn.gate.bias_vl"}) {
    checkpoint.tensors.push_back({{name, DType::kF32, {8}}, std::string(32, '\0')});
  }
  ExpectLoadsAs(checkpoint, plain);
}

// In every format; experts of a draft block stay MXFP4 where the trunk's became NVFP4.
TEST(Mtp, SyntheticDraftBlocksAreWhole) {
  for (const auto name : SyntheticFormatNames()) {
    const TemporaryDirectory temporary;
    const SyntheticFormat format = *SyntheticFormatFromName(name);
    ASSERT_TRUE(WriteSyntheticCheckpoint(temporary / "m",
                                         {.num_layers = 2, .vocab_size = {}, .format = format, .mtp = true})
                    .ok());
    const Result<ModelConfig> config = LoadModelConfig(temporary / "m");
    const auto weights = LoadWeights(*io::Checkpoint::Open(temporary / "m"), *config,
                                     {.numerics = Numerics::kRelease, .max_layers = {}, .mtp = true});
    ASSERT_TRUE(weights.has_value()) << weights.error().ToString();
    ASSERT_TRUE(weights->mtp.has_value()) << name << ": " << weights->no_mtp;
    const Weight& expert = weights->mtp->layer.experts.front().w1;
    if (format == SyntheticFormat::kNvFp4Experts) {
      EXPECT_EQ(expert.format, WeightFormat::kMxFp4);
    }
    EXPECT_EQ(weights->mtp->e_proj.rows, config->hidden_size);
  }
}

// A draft block that is not whole is no error: drafts are left out, and this says why.
TEST(Mtp, WhyThereIsNoDraftBlockIsSaid) {
  const auto why = [](const std::vector<std::string>& names) {
    EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
    for (const std::string& name : names) checkpoint.tensors.push_back({{name, DType::kF32, {1}}, "1234"});
    const TemporaryDirectory temporary;
    checkpoint.Write(temporary / "m");
    const Result<ModelConfig> config = LoadModelConfig(temporary / "m");
    const auto weights =
        LoadWeights(*io::Checkpoint::Open(temporary / "m"), *config,
                    {.numerics = Numerics::kRelease, .max_layers = std::nullopt, .mtp = true});
    EXPECT_TRUE(weights.has_value()) << weights.error().ToString();
    EXPECT_FALSE(weights->mtp.has_value());
    return weights->no_mtp;
  };
  EXPECT_EQ(why({}), "the checkpoint has no draft tensors (mtp.*)");
  EXPECT_THAT(why({"mtp.0.attn_norm.weight"}),
              AllOf(HasSubstr("missing (mtp.0.norm.weight"), HasSubstr("1 not as the config wants")));
  EXPECT_THAT(why({"mtp.0.main_norm.weight"}), HasSubstr("DSpark"));
}

TEST(TensorTable, MisshapenTensorsAreNamed) {
  const EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
  const auto error_with_dims = [&](const char* name, std::vector<int64_t> dims) {
    EditableCheckpoint edited = checkpoint;
    edited.At(name).spec.dims = std::move(dims);
    return LoadErrorOf(edited);
  };
  EXPECT_THAT(error_with_dims("layers.0.attn.wkv.weight", {64, 256}),
              HasSubstr("tensor layers.0.attn.wkv.weight: shape [64, 256], config wants [128, 128]"));
  EXPECT_THAT(error_with_dims("layers.0.attn.wq_b.scale", {1, 4}),
              HasSubstr("tensor layers.0.attn.wq_b.scale: shape [1, 4]"));
  EXPECT_THAT(error_with_dims("layers.0.ffn.experts.0.w1.scale", {4, 128}),
              HasSubstr("mxfp4 wants [128, 4]"));
  EXPECT_THAT(error_with_dims("layers.0.ffn.experts.0.w1.weight", {64, 128}),
              HasSubstr("mxfp4 (two elements a byte) wants [128, 64]"));
  EXPECT_THAT(error_with_dims("norm.weight", {2, 64}),
              HasSubstr("tensor norm.weight: shape [2, 64], config wants [128]"));
  EXPECT_THAT(error_with_dims("layers.2.attn.compressor.ape", {256, 4}), HasSubstr("config wants [4, 256]"));
}

TEST(ExpertIds, AreReadAsI64OrI32AndChecked) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kBf16);
  const NamedBytes wide = LoadEdited(checkpoint);
  EditableTensor& ids = checkpoint.At("layers.0.ffn.gate.tid2eid");
  EditableCheckpoint bad = checkpoint;
  bad.At(ids.spec.name).bytes[8 * 5] = 8;
  EXPECT_THAT(LoadErrorOf(bad), HasSubstr("tid2eid: token 2 names expert 8, wanted 0 to 7"));
  bad.At(ids.spec.name).bytes.replace(8 * 5, 8, std::string(8, '\xff'));
  EXPECT_THAT(LoadErrorOf(bad), HasSubstr("names expert -1"));

  std::string narrow;
  for (size_t i = 0; i < ids.bytes.size(); i += 8) narrow += ids.bytes.substr(i, 4);
  ids.bytes = narrow;
  ids.spec.dtype = DType::kI32;
  ExpectLoadsAs(checkpoint, wide);
}

// --- what the loader decides ------------------------------------------------------------------------------------------

TEST(LoadWeights, ActivationRoundingFollowsFormatAndNumerics) {
  const TemporaryDirectory temporary;
  EditableCheckpoint::Synthetic(SyntheticFormat::kNvFp4Experts).Write(temporary / "nvfp4");
  EditableCheckpoint::Synthetic(SyntheticFormat::kRelease).Write(temporary / "release");
  const auto release = LoadDirectory(temporary / "release");
  ASSERT_TRUE(release.has_value()) << release.error().message();
  const LayerWeights& csa = release->layers[2];
  EXPECT_EQ(csa.wq_a.activation, ActivationQuant::kFp8Block);
  EXPECT_EQ(csa.wo_b.activation, ActivationQuant::kFp8Block);
  EXPECT_EQ(csa.indexer->wq_b.activation, ActivationQuant::kFp8Block);
  EXPECT_EQ(csa.experts[0].w2.activation, ActivationQuant::kFp8Block);
  EXPECT_EQ(csa.wo_a.activation, ActivationQuant::kNone);
  EXPECT_EQ(csa.gate.activation, ActivationQuant::kNone);
  EXPECT_EQ(csa.compressor->wkv.activation, ActivationQuant::kNone);
  EXPECT_EQ(csa.indexer->weights_proj.activation, ActivationQuant::kNone);
  EXPECT_EQ(release->head.activation, ActivationQuant::kNone);

  const auto nvfp4 = LoadDirectory(temporary / "nvfp4");
  EXPECT_EQ(nvfp4->layers[0].experts[0].w1.activation, ActivationQuant::kNone);
  EXPECT_EQ(nvfp4->layers[0].wq_a.activation, ActivationQuant::kFp8Block);

  const auto plain =
      LoadDirectory(temporary / "release", {.numerics = Numerics::kPlain, .max_layers = {}, .progress = {}});
  EXPECT_EQ(plain->layers[2].wq_a.activation, ActivationQuant::kNone);
  EXPECT_EQ(plain->layers[2].experts[0].w2.activation, ActivationQuant::kNone);
}

TEST(LoadWeights, MaxLayersLoadsAPrefixButChecksTheRest) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kRelease);
  const TemporaryDirectory temporary;
  checkpoint.Write(temporary / "m");
  std::vector<std::pair<int64_t, int64_t>> progress;
  const LoadOptions two = {
      .numerics = Numerics::kRelease, .max_layers = 2, .progress = [&](const LoadProgress& p) {
        progress.emplace_back(p.layers, p.num_layers);
        return Status();
      }};
  const auto weights = LoadDirectory(temporary / "m", two);
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  EXPECT_EQ(weights->layers.size(), 2U);
  EXPECT_EQ(progress, (std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {2, 2}}));
  for (const int64_t bad : {0, 5}) {
    EXPECT_THAT(LoadErrorOf(checkpoint, {.numerics = Numerics::kRelease, .max_layers = bad, .progress = {}}),
                HasSubstr("max_layers"));
  }
  const LoadOptions ended = {
      .numerics = Numerics::kRelease, .max_layers = 2, .progress = [&](const LoadProgress& p) {
        return p.layers == 1 ? Cancelled("enough") : Internal("a layer too many");
      }};
  EXPECT_THAT(LoadErrorOf(checkpoint, ended), HasSubstr("enough"));
  checkpoint.Remove("layers.3.attn.wkv.weight");
  EXPECT_THAT(LoadErrorOf(checkpoint, two), HasSubstr("layers.3.attn.wkv.weight"));
}

TEST(LoadWeights, TiedEmbeddingsServeAsHead) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kBf16);
  checkpoint.config_json = std::regex_replace(
      checkpoint.config_json, std::regex(R"("tie_word_embeddings": false)"), "\"tie_word_embeddings\": true");
  checkpoint.Remove("head.weight");
  const TemporaryDirectory temporary;
  checkpoint.Write(temporary / "m");
  const auto weights = LoadDirectory(temporary / "m");
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  EXPECT_EQ(weights->head.data.data, weights->embed.data.data);
}

TEST(LoadWeights, TiedEmbeddingsAndAnotherHeadAreAContradiction) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kBf16);
  checkpoint.config_json = std::regex_replace(
      checkpoint.config_json, std::regex(R"("tie_word_embeddings": false)"), "\"tie_word_embeddings\": true");
  EXPECT_THAT(LoadErrorOf(checkpoint), HasSubstr("tensor head.weight: another one than the embedding's"));
}

TEST(LoadWeights, BorrowsTheFileInsteadOfCopying) {
  const TemporaryDirectory temporary;
  EditableCheckpoint::Synthetic(SyntheticFormat::kRelease).Write(temporary / "m");
  const auto weights = LoadDirectory(temporary / "m");
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  const auto file = weights->checkpoint->files()[0].bytes();
  const auto inside = [&](const void* data) {
    return data >= file.data() && data < file.data() + file.size();
  };
  EXPECT_TRUE(inside(weights->embed.data.data));
  EXPECT_TRUE(inside(weights->layers[0].experts[7].w2.scale.data));
  EXPECT_TRUE(inside(weights->layers[0].hc_attn.fn.data));
  EXPECT_FALSE(inside(weights->norm.data));  // BF16 in the file.
}

// Written by tools that know nothing of this code.
class GoldenCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenCheckpoint, Loads) {
  const auto weights = LoadDirectory(std::string("tests/golden/models/") + GetParam());
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  EXPECT_FALSE(weights->layers.empty());
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCheckpoint,
                         ::testing::Values("bf16", "fp8_base", "fp8_mxfp4", "nvfp4_all", "nvfp4_ct",
                                           "nvfp4_experts", "ordinary", "tf_narrow", "tf_wide"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace dsv4::model
