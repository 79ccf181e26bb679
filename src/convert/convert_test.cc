// Tests of conversion: all formats to all, lossless pairs, config files, dialects, interruptions and damaged
// outputs.
#include "convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "convert/destination.h"
#include "formats/quantize.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint_testing.h"
#include "model/checkpoint/resolved_checkpoint.h"

namespace dsv4::convert {
namespace {

namespace fs = std::filesystem;
using model::EditableCheckpoint;
using model::SyntheticFormat;
using ::testing::HasSubstr;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Every file of a directory by its relative path.
std::map<std::string, std::string> Files(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(directory).string()] = ReadFile(entry.path());
  }
  return files;
}

void WriteSynthetic(const std::string& directory, SyntheticFormat format, uint64_t seed = 0) {
  const Status written = model::WriteSyntheticCheckpoint(
      directory, {.num_layers = {}, .vocab_size = {}, .format = format, .seed = seed});
  ASSERT_TRUE(written.ok()) << written.message();
}

ConvertOptions Options(RequestedFormat experts, RequestedFormat dense) {
  ConvertOptions options;
  options.formats = {.experts = experts, .dense = dense};
  return options;
}

// Every linear's values by the release's name, dequantised.
std::map<std::string, std::vector<float>> AllValues(const std::string& directory) {
  const auto weights = model::LoadDirectory(directory);
  EXPECT_TRUE(weights.has_value()) << weights.error().message();
  std::map<std::string, std::vector<float>> values;
  if (!weights) return values;
  const auto add = [&](const std::string& name, const Weight& weight) {
    std::vector<float>& out = values[name];
    out.resize(static_cast<size_t>(weight.rows * weight.cols));
    for (int64_t row = 0; row < weight.rows; ++row)
      DequantizeRow(weight, row, out.data() + row * weight.cols);
  };
  add("head", weights->head);
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    const model::LayerWeights& layer = weights->layers[i];
    const std::string scope = std::to_string(i) + ".";
    add(scope + "wq_a", layer.wq_a);
    add(scope + "wo_a", layer.wo_a);
    add(scope + "wo_b", layer.wo_b);
    add(scope + "shared.w2", layer.shared_expert.w2);
    if (layer.compressor) add(scope + "compressor.wkv", layer.compressor->wkv);
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      add(scope + std::to_string(e) + ".w1", layer.experts[e].w1);
      add(scope + std::to_string(e) + ".w2", layer.experts[e].w2);
      add(scope + std::to_string(e) + ".w3", layer.experts[e].w3);
    }
  }
  return values;
}

TEST(Convert, EverythingToEverythingLoadsAndSaysWhatItIs) {
  constexpr SyntheticFormat kSources[] = {
      SyntheticFormat::kBf16,    SyntheticFormat::kF32,     SyntheticFormat::kFp8,
      SyntheticFormat::kFp8Base, SyntheticFormat::kRelease, SyntheticFormat::kNvFp4Experts,
      SyntheticFormat::kNvFp4,   SyntheticFormat::kNvFp4Ct,
  };
  const std::vector<RequestedFormat> targets = {std::nullopt, WeightFormat::kPlain, WeightFormat::kFp8Block,
                                                WeightFormat::kMxFp4, WeightFormat::kNvFp4};
  for (const SyntheticFormat source : kSources) {
    const TemporaryDirectory temporary;
    WriteSynthetic(temporary / "source", source);
    const auto before = AllValues(temporary / "source");
    for (size_t i = 0; i < targets.size(); ++i) {
      const RequestedFormat dense = targets[i] == WeightFormat::kMxFp4 ? WeightFormat::kFp8Block : targets[i];
      SCOPED_TRACE(testing::Message() << "from " << static_cast<int>(source) << " to " << i);
      const std::string directory = temporary / std::to_string(i);
      const auto report = Convert(temporary / "source", directory, Options(targets[i], dense));
      ASSERT_TRUE(report.has_value()) << report.error().message();
      EXPECT_FALSE(fs::exists(directory + ".partial"));
      const auto checkpoint = io::Checkpoint::Open(directory);
      const auto config = model::LoadModelConfig(directory);
      ASSERT_TRUE(checkpoint.has_value() && config.has_value());
      const auto resolved = model::ResolveCheckpoint(**checkpoint, *config);
      ASSERT_TRUE(resolved.has_value()) << resolved.error().message();
      EXPECT_TRUE(resolved->disagreements.empty()) << resolved->disagreements.front();
      for (const model::ResolvedLayer& layer : resolved->layers) {
        if (dense) {
          EXPECT_EQ(layer[model::TensorId::kWqA].linear.format, *dense);
        }
        for (const model::ResolvedExpert& expert : layer.experts) {
          if (targets[i]) {
            EXPECT_EQ(expert.w1.format, *targets[i]);
            EXPECT_EQ(expert.w2.format, *targets[i]);
          }
        }
      }
      for (const io::StoredTensor& tensor : (*checkpoint)->tensors()) {
        EXPECT_THAT(tensor.name, ::testing::MatchesRegex("(layers\\.[0-9]+\\.|embed|head|norm|hc_head).*"));
      }
      // Values that the report calls lossless are the source's.
      const auto after = AllValues(directory);
      int64_t num_different = 0;
      for (const auto& [name, values] : before) num_different += values != after.at(name) ? 1 : 0;
      if (report->lossless()) {
        EXPECT_EQ(num_different, 0);
      } else {
        EXPECT_GT(num_different, 0);
      }
      if (!targets[i]) {
        EXPECT_TRUE(report->lossless());
      }
      for (const ModuleReport& module : report->modules) {
        EXPECT_LT(module.comparison.relative_rms(), 0.14) << module.module << " " << module.to;
        EXPECT_EQ(module.comparison.num_clipped, 0) << module.module;
      }
    }
  }
}

TEST(Convert, TheReleasesFormatsGoToNvFp4AndBf16WithoutLoss) {
  const TemporaryDirectory temporary;
  WriteSynthetic(temporary / "release", SyntheticFormat::kRelease);
  const auto nvfp4 =
      Convert(temporary / "release", temporary / "nvfp4", Options(WeightFormat::kNvFp4, std::nullopt));
  ASSERT_TRUE(nvfp4.has_value()) << nvfp4.error().message();
  EXPECT_TRUE(nvfp4->lossless());
  // And back: every tensor's bytes.
  const auto back =
      Convert(temporary / "nvfp4", temporary / "back", Options(WeightFormat::kMxFp4, std::nullopt));
  ASSERT_TRUE(back.has_value()) << back.error().message();
  EXPECT_TRUE(back->lossless());
  EditableCheckpoint before = EditableCheckpoint::Read(temporary / "release");
  EditableCheckpoint after = EditableCheckpoint::Read(temporary / "back");
  ASSERT_EQ(before.tensors.size(), after.tensors.size());
  for (const model::EditableTensor& tensor : before.tensors) {
    EXPECT_EQ(after.At(tensor.spec.name).bytes, tensor.bytes) << tensor.spec.name;
    EXPECT_EQ(after.At(tensor.spec.name).spec.dtype, tensor.spec.dtype) << tensor.spec.name;
  }
  const auto bf16 =
      Convert(temporary / "release", temporary / "bf16", Options(WeightFormat::kPlain, WeightFormat::kPlain));
  ASSERT_TRUE(bf16.has_value()) << bf16.error().message();
  EXPECT_TRUE(bf16->lossless());
  EXPECT_THAT(ReadFile(temporary / "bf16/config.json"), ::testing::Not(HasSubstr("quantization_config")));
}

TEST(Convert, TheConfigSaysWhatIsThere) {
  const TemporaryDirectory temporary;
  WriteSynthetic(temporary / "source", SyntheticFormat::kRelease);
  const auto config_of = [&](const std::string& name, RequestedFormat experts, RequestedFormat dense) {
    const auto report = Convert(temporary / "source", temporary / name, Options(experts, dense));
    EXPECT_TRUE(report.has_value()) << report.error().message();
    return *ParseJson(ReadFile(temporary / (name + "/config.json")), name);
  };
  const Json experts = config_of("a", WeightFormat::kNvFp4, std::nullopt)["quantization_config"];
  EXPECT_EQ(experts["quant_method"], "fp8");
  EXPECT_EQ(experts["quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(experts["moe_quant_algo"], "NVFP4");
  EXPECT_EQ(experts["quantized_layers"].size(), 4U);
  EXPECT_TRUE(experts["quantized_layers"].contains("layers.3.ffn.experts"));
  EXPECT_EQ(experts["weight_block_size"], Json({128, 128}));
  const Json dense = config_of("b", std::nullopt, WeightFormat::kNvFp4);
  EXPECT_EQ(dense["expert_dtype"], "fp4");
  EXPECT_FALSE(dense["quantization_config"].contains("moe_quant_algo"));
  EXPECT_TRUE(dense["quantization_config"]["quantized_layers"].contains("layers.2.attn.indexer.wq_b"));
  const Json all = config_of("c", WeightFormat::kNvFp4, WeightFormat::kNvFp4)["quantization_config"];
  EXPECT_EQ(all["quant_method"], "modelopt");
  EXPECT_EQ(all["quant_algo"], "NVFP4");
  EXPECT_TRUE(fs::exists(temporary / "c/hf_quant_config.json"));
  EXPECT_EQ(config_of("d", WeightFormat::kFp8Block, std::nullopt)["expert_dtype"], "fp8");
  EXPECT_FALSE(fs::exists(temporary / "d/hf_quant_config.json"));
}

TEST(Convert, W1AndW3ShareAGlobalScale) {
  const TemporaryDirectory temporary;
  WriteSynthetic(temporary / "source", SyntheticFormat::kBf16);
  EditableCheckpoint source = EditableCheckpoint::Read(temporary / "source");
  std::string& bytes = source.At("layers.0.ffn.experts.0.w3.weight").bytes;
  bytes[1] = 0x41;  // One weight far above the others.
  source.Write(temporary / "edited");
  const auto report =
      Convert(temporary / "edited", temporary / "out", Options(WeightFormat::kNvFp4, WeightFormat::kNvFp4));
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EditableCheckpoint out = EditableCheckpoint::Read(temporary / "out");
  const auto global = [&](const std::string& name) { return out.At(name + ".weight_scale_2").bytes; };
  EXPECT_EQ(global("layers.0.ffn.experts.0.w1"), global("layers.0.ffn.experts.0.w3"));
  EXPECT_NE(global("layers.0.ffn.experts.0.w1"), global("layers.0.ffn.experts.0.w2"));
  EXPECT_EQ(global("layers.1.ffn.shared_experts.w1"), global("layers.1.ffn.shared_experts.w3"));
}

TEST(Convert, EveryDialectBecomesTheReleases) {
  for (const fs::directory_entry& entry : fs::directory_iterator("tests/golden/models")) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    SCOPED_TRACE(entry.path().string());
    const TemporaryDirectory temporary;
    const auto kept = Convert(entry.path().string(), temporary / "kept", Options({}, {}));
    ASSERT_TRUE(kept.has_value()) << kept.error().message();
    EXPECT_TRUE(kept->lossless());
    EXPECT_EQ(AllValues(entry.path().string()), AllValues(temporary / "kept"));
    const auto converted = Convert(entry.path().string(), temporary / "converted",
                                   Options(WeightFormat::kFp8Block, WeightFormat::kFp8Block));
    ASSERT_TRUE(converted.has_value()) << converted.error().message();
    EXPECT_FALSE(AllValues(temporary / "converted").empty());
  }
}

TEST(Convert, DraftTensorsAreCopiedAsTheyAre) {
  const TemporaryDirectory temporary;
  const auto report = Convert("tests/golden/models/fp8_mxfp4", temporary / "out",
                              Options(WeightFormat::kNvFp4, WeightFormat::kPlain));
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EditableCheckpoint before = EditableCheckpoint::Read("tests/golden/models/fp8_mxfp4");
  EditableCheckpoint after = EditableCheckpoint::Read(temporary / "out");
  int64_t num_draft = 0;
  for (const model::EditableTensor& tensor : before.tensors) {
    if (!tensor.spec.name.starts_with("mtp.")) continue;
    ++num_draft;
    EXPECT_EQ(after.At(tensor.spec.name).bytes, tensor.bytes) << tensor.spec.name;
  }
  EXPECT_GT(num_draft, 0);
  EXPECT_EQ(report->num_draft_and_vision, num_draft);
}

// N-gram tables stay as they are, whatever they are.
TEST(Convert, TablesOfRowsAreCopiedInEveryForm) {
  constexpr const char* kTable = "layers.1.engram.embed";
  for (const char* suffix : {".scale", ".weight_scale_2", ".weight_global_scale"}) {
    SCOPED_TRACE(suffix);
    const TemporaryDirectory temporary;
    EditableCheckpoint source = EditableCheckpoint::Read("tests/golden/v41/engram");
    if (suffix != std::string(".scale")) {
      const std::vector<int64_t> dims = source.At(kTable + std::string(".weight")).spec.dims;
      const QuantizedMatrix matrix =
          QuantizeNvFp4(std::vector<float>(static_cast<size_t>(dims[0] * dims[1]), 0.5F), dims[0], dims[1]);
      source.Remove(kTable + std::string(".weight"));
      source.Remove(kTable + std::string(".scale"));
      const auto add = [&](const std::string& end, DType dtype, std::vector<int64_t> shape, auto& bytes) {
        source.tensors.push_back(
            {{kTable + end, dtype, std::move(shape)}, std::string(std::begin(bytes), std::end(bytes))});
      };
      const bool divides = suffix == std::string(".weight_global_scale");
      add(divides ? ".weight_packed" : ".weight", DType::kU8, {dims[0], dims[1] / 2}, matrix.data);
      add(".weight_scale", DType::kF8E4M3, {dims[0], dims[1] / 16}, matrix.scale);
      const char one[4] = {0, 0, '\x80', '\x3F'};
      add(suffix, DType::kF32, {}, one);
    }
    source.Write(temporary / "source");
    const auto report =
        Convert(temporary / "source", temporary / "out", Options(WeightFormat::kNvFp4, WeightFormat::kPlain));
    ASSERT_TRUE(report.has_value()) << report.error().message();
    EditableCheckpoint out = EditableCheckpoint::Read(temporary / "out");
    int num_parts = 0;
    for (const model::EditableTensor& tensor : source.tensors) {
      if (!tensor.spec.name.starts_with(kTable)) continue;
      ++num_parts;
      EXPECT_EQ(out.At(tensor.spec.name).bytes, tensor.bytes) << tensor.spec.name;
      EXPECT_EQ(out.At(tensor.spec.name).spec.dims, tensor.spec.dims) << tensor.spec.name;
    }
    EXPECT_EQ(num_parts, suffix == std::string(".scale") ? 2 : 3);
    const auto weights = model::LoadDirectory(temporary / "out");
    EXPECT_TRUE(weights.has_value()) << weights.error().message();
  }
}

TEST(Convert, FilesDependOnNeitherThreadsNorInterruptions) {
  const TemporaryDirectory temporary;
  WriteSynthetic(temporary / "source", SyntheticFormat::kFp8);
  ConvertOptions options = Options(WeightFormat::kNvFp4, WeightFormat::kNvFp4);
  options.max_shard_bytes = 1 << 20;
  options.batch_bytes = 100'000;
  const auto whole = Convert(temporary / "source", temporary / "whole", options);
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  EXPECT_GT(whole->num_shards, 2);
  options.num_threads = 3;
  int64_t runs = 0;
  for (Result<ConvertReport> report = Error(Internal("")); !report; ++runs) {
    ASSERT_LT(runs, 100);
    // Stops after two batches beyond what it finds done.
    int64_t batches = 0;
    options.progress = [&](const Progress& progress) {
      return progress.done_bytes == progress.resumed_bytes || ++batches < 2;
    };
    report = Convert(temporary / "source", temporary / "pieces", options);
    if (!report) {
      EXPECT_EQ(report.error().code(), StatusCode::kCancelled);
      EXPECT_FALSE(fs::exists(temporary / "pieces"));
      continue;
    }
    EXPECT_GT(report->resumed_bytes, report->source_bytes / 2);
    ASSERT_EQ(report->modules.size(), whole->modules.size());
    for (size_t i = 0; i < whole->modules.size(); ++i) {
      EXPECT_EQ(report->modules[i].comparison.error_squares, whole->modules[i].comparison.error_squares);
      EXPECT_EQ(report->modules[i].worst_tensor, whole->modules[i].worst_tensor);
    }
  }
  EXPECT_GT(runs, 3);
  EXPECT_EQ(Files(temporary / "whole"), Files(temporary / "pieces"));
}

class Resume : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteSynthetic(temporary_ / "source", SyntheticFormat::kRelease);
    options_ = Options(WeightFormat::kNvFp4, std::nullopt);
    options_.batch_bytes = 100'000;
  }
  void Interrupt() {
    options_.progress = [](const Progress& progress) {
      return progress.done_bytes * 2 < progress.total_bytes;
    };
    const auto report = Run();
    ASSERT_EQ(report.error().code(), StatusCode::kCancelled);
    options_.progress = {};
  }
  Result<ConvertReport> Run() { return Convert(temporary_ / "source", temporary_ / "out", options_); }

  TemporaryDirectory temporary_;
  ConvertOptions options_;
};

TEST_F(Resume, OtherOptionsAreRefusedAndTouchNothing) {
  Interrupt();
  const auto before = Files(temporary_ / "out.partial");
  options_.formats.rule = BlockScaleRule::kAmax;
  const auto report = Run();
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(report.error().message(), HasSubstr("scales mse"));
  EXPECT_EQ(Files(temporary_ / "out.partial"), before);
  options_.formats.rule = BlockScaleRule::kLeastSquares;
  EXPECT_TRUE(Run().has_value());
}

TEST_F(Resume, AnotherSourceIsRefused) {
  Interrupt();
  const auto before = Files(temporary_ / "out.partial");
  fs::rename(temporary_ / "source", temporary_ / "original");
  // The same headers, other numbers.
  WriteSynthetic(temporary_ / "source", SyntheticFormat::kRelease, /*seed=*/1);
  EXPECT_THAT(Run().error().message(), HasSubstr("source has changed"));
  // Other headers.
  fs::remove_all(temporary_ / "source");
  WriteSynthetic(temporary_ / "source", SyntheticFormat::kFp8);
  EXPECT_THAT(Run().error().message(), HasSubstr("another source"));
  EXPECT_EQ(Files(temporary_ / "out.partial"), before);
  fs::remove_all(temporary_ / "source");
  fs::rename(temporary_ / "original", temporary_ / "source");
  EXPECT_TRUE(Run().has_value());
}

TEST_F(Resume, WhatWasLostOrDamagedIsDoneAgain) {
  const auto whole = Convert(temporary_ / "source", temporary_ / "whole", options_);
  ASSERT_TRUE(whole.has_value());
  Interrupt();
  const std::string shard = temporary_ / "out.partial/model.safetensors";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(shard) / 4));
    file << std::string(100'000, '\x55');
  }
  // A line that a crash cut short.
  std::ofstream(temporary_ / "out.partial/dsv4-convert.journal", std::ios::app) << "{\"unit\": 7, \"sou";
  const auto report = Run();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_GT(report->resumed_bytes, 0);
  EXPECT_EQ(Files(temporary_ / "whole"), Files(temporary_ / "out"));
}

TEST_F(Resume, ADirectoryThatIsNotOursStays) {
  fs::create_directories(temporary_ / "out.partial");
  std::ofstream(temporary_ / "out.partial/precious") << "x";
  EXPECT_EQ(Run().error().code(), StatusCode::kFailedPrecondition);
  std::ofstream(temporary_ / "out.partial/dsv4-convert.journal") << "my diary\n";
  EXPECT_THAT(Run().error().message(), HasSubstr("not a journal"));
  EXPECT_EQ(Files(temporary_ / "out.partial").size(), 2U);
}

TEST_F(Resume, OneProcessAtATime) {
  Result<ConvertReport> second = Error(Internal("never ran"));
  options_.progress = [&](const Progress&) {
    ConvertOptions quiet = options_;
    quiet.progress = {};
    second = Convert(temporary_ / "source", temporary_ / "out", quiet);
    return false;
  };
  EXPECT_EQ(Run().error().code(), StatusCode::kCancelled);
  EXPECT_THAT(second.error().message(), HasSubstr("another process"));
}

TEST(Destination, RefusesWhatIsTaken) {
  const TemporaryDirectory temporary;
  WriteSynthetic(temporary / "source", SyntheticFormat::kBf16);
  fs::create_directories(temporary / "taken");
  std::ofstream(temporary / "taken/precious") << "x";
  EXPECT_EQ(Convert(temporary / "source", temporary / "taken", {}).error().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Convert(temporary / "source", temporary / "source", {}).error().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_THAT(Convert(temporary / "source", temporary / "source/inside", {}).error().message(),
              HasSubstr("inside the source"));
  fs::create_directories(temporary / "empty");
  EXPECT_TRUE(Convert(temporary / "source", temporary / "empty/", {}).has_value());
}

TEST(Destination, SaysHowMuchRoomIsMissing) {
  const TemporaryDirectory temporary;
  const auto destination = Destination::Prepare(temporary / "source", temporary / "out");
  ASSERT_TRUE(destination.has_value());
  const Status status = destination->Create(int64_t{1} << 60);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("GB more, the disk has"));
  EXPECT_FALSE(fs::exists(temporary / "out.partial"));
}

TEST(Destination, OtherFilesComeAlong) {
  const TemporaryDirectory temporary;
  WriteSynthetic(temporary / "source", SyntheticFormat::kNvFp4Experts);
  fs::create_directories(temporary / "source/encoding");
  fs::create_directories(temporary / "source/.cache");
  std::ofstream(temporary / "elsewhere.json") << "{}";
  fs::create_symlink(temporary / "elsewhere.json", temporary / "source/tokenizer.json");
  std::ofstream(temporary / "source/encoding/encoder.py") << "pass";
  std::ofstream(temporary / "source/.cache/secret") << "x";
  std::ofstream(temporary / "source/hf_quant_config.json") << "stale";
  std::ofstream(temporary / "source/other.safetensors") << "weights";
  const auto report = Convert(temporary / "source", temporary / "out", Options(WeightFormat::kMxFp4, {}));
  ASSERT_TRUE(report.has_value()) << report.error().message();
  std::set<std::string> names;
  for (const auto& [name, text] : Files(temporary / "out")) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "encoding/encoder.py", "model.safetensors",
                                          "tokenizer.json"}));
  EXPECT_EQ(ReadFile(temporary / "out/tokenizer.json"), "{}");
}

// Faulty sources: an error that names the tensor, and nothing left behind.
class FaultySource : public ::testing::Test {
 protected:
  Status ConvertFaulty(EditableCheckpoint& checkpoint, RequestedFormat experts, RequestedFormat dense) {
    const TemporaryDirectory temporary;
    checkpoint.Write(temporary / "source");
    const auto report = Convert(temporary / "source", temporary / "out", Options(experts, dense));
    EXPECT_FALSE(fs::exists(temporary / "out"));
    EXPECT_FALSE(fs::exists(temporary / "out.partial"));
    return report ? Status() : report.error();
  }
};

TEST_F(FaultySource, IsNamedAndLeavesNothing) {
  const auto release = [] { return EditableCheckpoint::Synthetic(SyntheticFormat::kRelease); };
  EditableCheckpoint nan_scale = release();
  nan_scale.At("layers.1.ffn.experts.2.w2.scale").bytes[5] = '\xFF';
  EXPECT_THAT(ConvertFaulty(nan_scale, WeightFormat::kNvFp4, {}).message(),
              HasSubstr("layers.1.ffn.experts.2.w2"));
  EXPECT_THAT(ConvertFaulty(nan_scale, {}, {}).message(), HasSubstr("layers.1.ffn.experts.2.w2"));

  EditableCheckpoint nan_element = release();
  nan_element.At("layers.3.attn.wo_b.weight").bytes[130] = '\x7F';
  EXPECT_THAT(ConvertFaulty(nan_element, {}, WeightFormat::kPlain).message(),
              HasSubstr("layers.3.attn.wo_b.weight: row 1"));

  EditableCheckpoint infinite = release();
  infinite.At("layers.0.ffn.experts.0.w1.scale").bytes[0] = '\xFE';
  infinite.At("layers.0.ffn.experts.0.w1.weight").bytes[0] = '\x77';
  EXPECT_EQ(ConvertFaulty(infinite, WeightFormat::kNvFp4, {}).code(), StatusCode::kDataLoss);

  EditableCheckpoint norm = release();
  norm.At("layers.2.attn_norm.weight").bytes[1] = '\x7F';
  norm.At("layers.2.attn_norm.weight").bytes[0] = '\xFF';
  EXPECT_THAT(ConvertFaulty(norm, {}, {}).message(), HasSubstr("layers.2.attn_norm.weight"));

  EditableCheckpoint ids = release();
  ids.At("layers.0.ffn.gate.tid2eid").bytes[1] = '\x7F';
  EXPECT_THAT(ConvertFaulty(ids, {}, {}).message(), HasSubstr("tid2eid"));

  EditableCheckpoint missing = release();
  missing.Remove("layers.1.attn.wkv.scale");
  EXPECT_THAT(ConvertFaulty(missing, {}, {}).message(), HasSubstr("layers.1.attn.wkv"));
}

TEST_F(FaultySource, ColumnsThatAFormatCannotCut) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Synthetic(SyntheticFormat::kBf16);
  Json config = *ParseJson(checkpoint.config_json, "config.json");
  // 136 columns: whole bytes of 4-bit elements, no whole blocks.
  config["moe_intermediate_size"] = 136;
  for (model::EditableTensor& tensor : checkpoint.tensors) {
    const std::string& name = tensor.spec.name;
    if (name.find("experts") == std::string::npos) continue;
    tensor.spec.dims[name.ends_with("w2.weight") ? 1 : 0] = 136;
    tensor.bytes.resize(static_cast<size_t>(tensor.spec.num_bytes()));
  }
  checkpoint.config_json = config.dump();
  const Status status = ConvertFaulty(checkpoint, WeightFormat::kNvFp4, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("136 columns, nvfp4 wants a multiple of 16"));
}

}  // namespace
}  // namespace dsv4::convert
