// The config and the tensors of a DSpark drafter, on the golden model that has one. It is read correctly, and
// a part of it is refused. Its drafts are tested in draft_golden_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "io/mapped_file.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint_testing.h"
#include "model/checkpoint/dspark_source.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/config/dspark_config.h"

namespace dsv4::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kGolden = "tests/golden/models/dspark";  // Tests run in the source root.

ModelConfig GoldenConfig() { return *LoadModelConfig(kGolden); }

// The golden's config with one key set to something else, or left out (null).
Json ConfigWith(const char* key, const Json& value) {
  Json json = *ParseJson(*io::ReadTextFile(kGolden + "/config.json"), "config.json");
  json[key] = value;
  return json;
}

std::string ConfigError(const char* key, const Json& value) {
  const auto parsed = ParseDsparkConfig(ConfigWith(key, value), "config.json", GoldenConfig());
  return parsed ? "no error" : parsed.error().message();
}

// Error of resolving after `edit`; empty where the drafter is whole.
std::string ResolveError(const std::function<void(EditableCheckpoint&)>& edit) {
  EditableCheckpoint checkpoint = EditableCheckpoint::Read(kGolden);
  edit(checkpoint);
  const TemporaryDirectory temporary;
  checkpoint.Write(temporary / "m");
  const ModelConfig config = GoldenConfig();
  const auto opened = io::Checkpoint::Open(temporary / "m");
  const auto resolved = ResolveDspark(**opened, config, *config.dspark);
  return resolved ? "" : resolved.error().message();
}

TEST(DsparkConfig, IsReadFromTheKeys) {
  const ModelConfig config = GoldenConfig();
  ASSERT_TRUE(config.dspark.has_value()) << config.dspark_fault;
  EXPECT_EQ(config.dspark->block_size, 5);
  EXPECT_EQ(config.dspark->noise_token_id, 95);
  EXPECT_EQ(config.dspark->markov_rank, 32);
  EXPECT_THAT(config.dspark->target_layer_ids, ElementsAre(0, 1, 2));
}

// A folder beside the checkpoint says nothing of it.
TEST(DsparkConfig, TapsAreTheTrunks) {
  const auto tap = [](const std::string& golden) {
    const std::string directory = "tests/golden/" + golden;
    ModelConfig trunk = *LoadModelConfig(directory);
    trunk.dspark.reset();
    const Json keys = {{"dspark_block_size", 4},
                       {"dspark_noise_token_id", 1},
                       {"dspark_markov_rank", 8},
                       {"dspark_target_layer_ids", {1}}};
    return (*ParseDsparkConfig(keys, "dspark/config.json", trunk))->taps_inputs;
  };
  EXPECT_TRUE(tap("v41/shared"));
  EXPECT_FALSE(tap("models/dspark"));
}

TEST(DsparkConfig, NoKeyIsNoDrafter) {
  const ModelConfig config = *LoadModelConfig("tests/golden/models/fp8_mxfp4");
  EXPECT_FALSE(config.dspark.has_value());
  EXPECT_EQ(config.dspark_fault, "");
}

TEST(DsparkConfig, FaultsNameTheKey) {
  EXPECT_THAT(ConfigError("dspark_markov_rank", nullptr),
              AllOf(HasSubstr("dspark_markov_rank"), HasSubstr("missing")));
  EXPECT_THAT(ConfigError("dspark_block_size", 0),
              AllOf(HasSubstr("dspark_block_size"), HasSubstr("holds 0")));
  EXPECT_THAT(ConfigError("dspark_noise_token_id", 96), HasSubstr("from 0 to 95"));
  EXPECT_THAT(ConfigError("dspark_noise_token_id", "95"), HasSubstr("holds \"95\""));
  EXPECT_THAT(ConfigError("dspark_target_layer_ids", Json::array()), HasSubstr("1 to 3 layers"));
  EXPECT_THAT(ConfigError("dspark_target_layer_ids", {0, 3}), HasSubstr("holds 3"));
  EXPECT_THAT(ConfigError("dspark_target_layer_ids", {0, 18446744073709551615ULL}), HasSubstr("from 0 to 2"));
  EXPECT_THAT(ConfigError("dspark_target_layer_ids", 2), HasSubstr("holds 2"));
}

// V4.1 says how many there are.
TEST(Dspark, AnotherNumberOfStagesIsRefusedByTheKey) {
  const std::shared_ptr<const io::Checkpoint> checkpoint = *io::Checkpoint::Open("tests/golden/v41/dspark");
  ModelConfig config = *LoadModelConfig("tests/golden/v41/dspark");
  EXPECT_EQ(config.num_nextn_predict_layers, 3);
  EXPECT_TRUE(FindDspark(checkpoint, config).has_value());
  config.num_nextn_predict_layers = 2;
  EXPECT_THAT(FindDspark(checkpoint, config).error().message(),
              HasSubstr("key num_nextn_predict_layers: holds 2, wanted 3"));
}

TEST(Dspark, StagesAreThoseOfTheTensors) {
  const ModelConfig config = GoldenConfig();
  EXPECT_EQ(config.num_nextn_predict_layers, 1);  // As 0731 has it.
  const auto checkpoint = io::Checkpoint::Open(kGolden);
  const auto resolved = ResolveDspark(**checkpoint, config, *config.dspark);
  ASSERT_TRUE(resolved.has_value()) << resolved.error().message();
  ASSERT_EQ(resolved->stages.size(), 3U);
  for (const ResolvedLayer& stage : resolved->stages) {
    ASSERT_EQ(stage.experts.size(), 4U);
    EXPECT_EQ(stage.experts[3].w1.format, WeightFormat::kMxFp4);  // The trunk's are NVFP4.
    EXPECT_EQ(stage[TensorId::kWqA].linear.format, WeightFormat::kFp8Block);
  }
  const ResolvedLayer& first = resolved->stages.front();
  const ResolvedLayer& last = resolved->stages.back();
  EXPECT_TRUE(first[TensorId::kDsparkMainProj].linear.found());
  EXPECT_EQ(first[TensorId::kNorm].tensor, nullptr);
  EXPECT_TRUE(last[TensorId::kDsparkMarkovW1].linear.found());
  EXPECT_TRUE(last[TensorId::kDsparkConfidence].linear.found());
  EXPECT_NE(last[TensorId::kNorm].tensor, nullptr);
  EXPECT_FALSE(last[TensorId::kDsparkMainProj].linear.found());
}

TEST(Dspark, FilesOfItsOwnWillDo) {
  EXPECT_EQ(ResolveError([](EditableCheckpoint& checkpoint) {
              std::erase_if(checkpoint.tensors,
                            [](const EditableTensor& t) { return !t.spec.name.starts_with("mtp."); });
            }),
            "");
}

TEST(Dspark, PartsAreRefusedByName) {
  const auto without = [](const std::string& name) {
    return ResolveError([&](EditableCheckpoint& checkpoint) { checkpoint.Remove(name); });
  };
  for (const std::string name :
       {"mtp.0.main_proj.weight", "mtp.0.main_norm.weight", "mtp.2.norm.weight",
        "mtp.2.markov_head.markov_w1.weight", "mtp.2.markov_head.markov_w2.weight",
        "mtp.2.confidence_head.proj.weight", "mtp.1.ffn.shared_experts.w1.weight",
        "mtp.2.ffn.experts.3.w3.weight", "mtp.1.attn.attn_sink", "mtp.2.hc_head_fn"}) {
    EXPECT_THAT(without(name), HasSubstr("1 missing (" + name));
  }
  const auto without_stage = [](const std::string& prefix) {
    return ResolveError([&](EditableCheckpoint& checkpoint) {
      std::erase_if(checkpoint.tensors,
                    [&](const EditableTensor& t) { return t.spec.name.starts_with(prefix); });
    });
  };
  EXPECT_THAT(without_stage("mtp.1."), HasSubstr("missing (mtp.1."));
  EXPECT_THAT(without_stage("mtp.2."), HasSubstr("mtp.1.norm.weight"));  // The second stage is the last then.
  EXPECT_THAT(without_stage("mtp."), HasSubstr("0 DSpark stages"));
}

TEST(Dspark, ShapesAreThoseOfTheConfig) {
  const auto with_dims = [](const char* name, std::vector<int64_t> dims) {
    return ResolveError(
        [&](EditableCheckpoint& checkpoint) { checkpoint.At(name).spec.dims = std::move(dims); });
  };
  EXPECT_THAT(with_dims("mtp.2.markov_head.markov_w1.weight", {32, 96}),
              AllOf(HasSubstr("1 not as the config wants"), HasSubstr("markov_w1")));
  EXPECT_THAT(with_dims("mtp.0.main_proj.weight", {384, 128}), HasSubstr("main_proj"));
  EXPECT_THAT(ResolveError([](EditableCheckpoint& checkpoint) {
                checkpoint.Rename([](const std::string& name) {
                  return name.starts_with("mtp.1.") ? "mtp.99" + name.substr(5) : name;
                });
              }),
              HasSubstr("wanted 1 to 16"));
}

}  // namespace
}  // namespace dsv4::model
