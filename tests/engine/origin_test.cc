// The origin of a model's states: another one for any other byte or number that the model is made of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "backend/cpu/cpu_backend.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/temporary_directory_testing.h"
#include "io/content_digest.h"
#include "model/arch/architecture.h"
#include "model/runtime/model.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::test {
namespace {

namespace fs = std::filesystem;
using model::Model;
using model::ModelOptions;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kForever = io::ContentDigest::kForever;

class OriginTest : public ::testing::Test {
 protected:
  OriginTest() {
    model::SyntheticOptions options{.shape = "tiny", .num_layers = 4, .mtp = true};
    options.format = model::SyntheticFormat::kNvFp4Experts;
    const Status written = model::WriteSyntheticCheckpoint(directory_ / "model", options);
    EXPECT_TRUE(written.ok()) << written.ToString();
  }

  Result<std::unique_ptr<Model>> Load(const ModelOptions& options = {},
                                      const ops::Backend* backend = nullptr) {
    return Model::Load(directory_ / "model", backend != nullptr ? *backend : backend_, options);
  }
  uint64_t Origin(const ModelOptions& options = {}, const ops::Backend* backend = nullptr) {
    const auto model = Load(options, backend);
    EXPECT_TRUE(model.has_value()) << model.error().ToString();
    const Result<uint64_t> origin = (*model)->Origin(kForever);
    EXPECT_TRUE(origin.has_value()) << origin.error().ToString();
    return origin.value_or(0);
  }
  fs::path File() const { return directory_ / "model/model.safetensors"; }

  const TemporaryDirectory directory_;
  const ops::Backend backend_ = *backend::MakeCpuBackend({.num_threads = 1});
};

// Every tensor, whichever it is: one bit of one byte, which leaves most of them valid.
TEST_F(OriginTest, OneByteOfAnyTensorMakesAnother) {
  std::set<uint64_t> seen = {Origin(), Origin()};
  ASSERT_EQ(seen.size(), 1U);
  std::map<std::string, std::pair<size_t, size_t>> places;
  {
    const auto checkpoint = *io::Checkpoint::Open(directory_ / "model");
    const std::byte* const begin = checkpoint->files()[0].bytes().data();
    for (const io::StoredTensor& tensor : checkpoint->tensors())
      places[tensor.name] = {static_cast<size_t>(tensor.bytes.data() - begin), tensor.bytes.size()};
  }
  std::mt19937 random(3);
  std::set<std::string> kinds;
  size_t num_loaded = 0;
  for (const auto& [name, place] : places) {
    // One of each layer's many experts.
    std::string kind = name;
    if (const size_t at = kind.find("experts."); at != std::string::npos)
      kind.erase(at, kind.find('.', at + 8) - at);
    if (!kinds.insert(kind).second) continue;
    std::fstream file(File(), std::ios::in | std::ios::out | std::ios::binary);
    const auto offset = static_cast<std::streamoff>(place.first + random() % place.second);
    file.seekg(offset);
    const int byte = file.get();
    const auto put = [&](int value) {
      file.seekp(offset);
      file.put(static_cast<char>(value));
      file.flush();
    };
    put(byte ^ 1);
    if (const auto model = Load()) {  // Else the loader has found it.
      const Result<uint64_t> origin = (*model)->Origin(kForever);
      ASSERT_TRUE(origin.has_value()) << origin.error().ToString();
      EXPECT_TRUE(seen.insert(*origin).second) << name;
      ++num_loaded;
    }
    put(byte);
  }
  EXPECT_GT(num_loaded, kinds.size() / 2);
  EXPECT_TRUE(seen.contains(Origin()));
}

TEST_F(OriginTest, NumbersOfTheConfigurationMakeAnother) {
  const std::string path = directory_ / "model/config.json";
  const Json config = *ParseJson(*ReadFile(path), path);
  std::set<uint64_t> seen = {Origin()};
  const auto expect_another = [&](const std::string& what, const Json& changed) {
    std::ofstream(path) << changed.dump();
    EXPECT_TRUE(seen.insert(Origin()).second) << what;
  };
  for (const auto& [key, value] : std::map<std::string, Json>{{"rms_norm_eps", 2e-6},
                                                              {"hc_eps", 3e-6},
                                                              {"hc_sinkhorn_iters", 7},
                                                              {"rope_theta", 12345.0},
                                                              {"compress_rope_theta", 54321.0},
                                                              {"routed_scaling_factor", 1.25},
                                                              {"swiglu_limit", 5.0},
                                                              {"sliding_window", 16},
                                                              {"index_topk", 8},
                                                              {"max_position_embeddings", 4096}}) {
    ASSERT_TRUE(config.contains(key)) << key;
    Json changed = config;
    changed[key] = value;
    ASSERT_NE(changed, config) << key;
    expect_another(key, changed);
  }
  for (const char* key : {"factor", "beta_fast", "beta_slow", "original_max_position_embeddings"}) {
    Json changed = config;
    ASSERT_TRUE(changed["rope_scaling"].contains(key)) << key;
    changed["rope_scaling"][key] = 2 * changed["rope_scaling"][key].get<int>();
    expect_another(key, changed);
  }
  // Options that leave the numbers alone change nothing.
  Json changed = config;
  changed["transformers_version"] = "99";
  std::ofstream(path) << changed.dump();
  EXPECT_TRUE(seen.contains(Origin()));
}

TEST_F(OriginTest, OptionsAndBackendsMakeOthers) {
  std::set<uint64_t> seen = {Origin()};
  EXPECT_TRUE(seen.insert(Origin({.numerics = model::Numerics::kPlain})).second);
  EXPECT_TRUE(seen.insert(Origin({.max_layers = 3})).second);
  EXPECT_TRUE(seen.insert(Origin({.clamp_shared_expert = false})).second);
  EXPECT_TRUE(seen.insert(Origin({.mtp = true})).second);  // Its states have a drafter's rows.
  EXPECT_TRUE(seen.insert(Origin({.cache_rows = model::CacheRows::kWide})).second);
  const ops::Backend scalar = *backend::MakeCpuBackend({.num_threads = 1, .isa = backend::cpu::Isa::kScalar});
  EXPECT_TRUE(seen.insert(Origin({}, &scalar)).second);
  ops::Backend other = backend_;
  other.modes = "other products";
  EXPECT_TRUE(seen.insert(Origin({}, &other)).second);
  // Threads, and the time of hashing, are not in it.
  const ops::Backend threads = *backend::MakeCpuBackend({.num_threads = 2});
  EXPECT_TRUE(seen.contains(Origin({}, &threads)));
  EXPECT_TRUE(seen.contains(Origin({.hash_weights = true})));
}

TEST_F(OriginTest, WeightsThatAreMadeHaveTheirSeedsOrigin) {
  const auto origin = [&](const model::SyntheticOptions& options) {
    const auto checkpoint = *model::MakeSyntheticCheckpoint("made", options, 1);
    auto config = *model::ParseModelConfig(*model::SyntheticConfig(options), "made");
    return *(*Model::FromCheckpoint(std::move(config), checkpoint, backend_, {}))->Origin(kForever);
  };
  const model::SyntheticOptions options{.shape = "tiny", .num_layers = 2};
  EXPECT_EQ(origin(options), origin(options));
  EXPECT_NE(origin(options), origin({.shape = "tiny", .num_layers = 2, .seed = 1}));
  EXPECT_NE(origin(options),
            origin({.shape = "tiny", .num_layers = 2, .format = model::SyntheticFormat::kFp8}));
}

// A model that runs from its files goes on with what was written there: nothing it computes has an origin
// then.
TEST_F(OriginTest, AFileChangedUnderTheModelEndsItsOrigin) {
  const auto model = Load();
  ASSERT_TRUE(model.has_value());
  ASSERT_TRUE((*model)->Origin(kForever).has_value());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::fstream(File(), std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('x');
  const auto origin = (*model)->Origin(std::chrono::milliseconds(0));
  ASSERT_FALSE(origin.has_value());
  EXPECT_EQ(origin.error().code(), StatusCode::kDataLoss);
  EXPECT_THAT(origin.error().message(), HasSubstr("model.safetensors: was changed after it was opened"));
}

}  // namespace
}  // namespace dsv4::test
