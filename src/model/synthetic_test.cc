#include "model/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/checkpoint_testing.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

int64_t TotalBytes(const io::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const io::StoredTensor& tensor : checkpoint.tensors())
    bytes += static_cast<int64_t>(tensor.bytes.size());
  return bytes;
}

TEST(SyntheticCheckpoint, InMemoryIsByteForByteTheFile) {
  for (const std::string_view format : SyntheticFormatNames()) {
    const SyntheticOptions options = {
        .num_layers = 3, .vocab_size = 520, .format = *SyntheticFormatFromName(format), .seed = 7};
    const TemporaryDirectory temporary;
    ASSERT_TRUE(WriteSyntheticCheckpoint(temporary / "m", options).ok()) << format;
    const auto written = io::Checkpoint::Open(temporary / "m");
    for (const int num_threads : {1, 3}) {
      ThreadPool threads(num_threads);
      int64_t last_progress = 0;
      const auto made = MakeSyntheticCheckpoint(
          "synthetic", options, {threads, [&](int64_t done, int64_t) { last_progress = done; }});
      ASSERT_TRUE(made.has_value()) << made.error().message();
      ASSERT_EQ((*made)->files().size(), 1U);
      const auto got = (*made)->files()[0].bytes();
      const auto want = (*written)->files()[0].bytes();
      EXPECT_TRUE(std::ranges::equal(got, want)) << format << ", " << num_threads << " threads";
      if (num_threads == 1) {
        EXPECT_EQ(last_progress, TotalBytes(**made));
      }
    }
  }
}

TEST(SyntheticCheckpoint, InMemoryGoesThroughTheLoader) {
  ThreadPool threads(2);
  const SyntheticOptions options;
  const auto config = ParseModelConfig(*SyntheticConfig(options), "config");
  const auto checkpoint = MakeSyntheticCheckpoint("synthetic:tiny", options, {threads, {}});
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_TRUE(LoadWeights(*checkpoint, *config, {}).has_value());

  ModelConfig other = *config;
  other.moe_intermediate_size *= 2;
  const auto misfit = LoadWeights(*checkpoint, other, {});
  ASSERT_FALSE(misfit.has_value());
  EXPECT_THAT(misfit.error().message(), HasSubstr("layers.0.ffn.experts.0.w1.weight"));
}

TEST(SyntheticName, IsParsed) {
  const auto plain = ParseSyntheticName("synthetic:mini");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->shape, "mini");
  EXPECT_EQ(plain->format, SyntheticFormat::kRelease);
  EXPECT_EQ(plain->seed, 0U);
  for (const std::string_view text : {"synthetic:flash,nvfp4,seed=12", "synthetic:flash,seed=12,nvfp4"}) {
    const auto full = ParseSyntheticName(text);
    ASSERT_TRUE(full.has_value()) << text;
    EXPECT_EQ(full->shape, "flash");
    EXPECT_EQ(full->format, SyntheticFormat::kNvFp4);
    EXPECT_EQ(full->seed, 12U);
  }
}

TEST(SyntheticName, ErrorsNameTheField) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"mini", "does not begin with synthetic:"},
      {"synthetic:", "unknown shape ''"},
      {"synthetic:huge", "unknown shape 'huge'"},
      {"synthetic:tiny,int3", "bad field 'int3'"},
      {"synthetic:tiny,bf16,fp8", "bad field 'fp8'"},
      {"synthetic:tiny,seed=", "bad field 'seed='"},
      {"synthetic:tiny,seed=-1", "bad field 'seed=-1'"},
      {"synthetic:tiny,seed=1x", "bad field 'seed=1x'"},
      {"synthetic:tiny,seed=1,seed=2", "bad field 'seed=2'"},
      {"synthetic:tiny,seed=99999999999999999999", "bad field"},
      {"synthetic:tiny,", "ends with a comma"},
      {"synthetic:tiny,,bf16", "bad field ''"},
  };
  for (const auto& [text, message] : cases) {
    const auto parsed = ParseSyntheticName(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_THAT(parsed.error().message(), HasSubstr(std::string(message))) << text;
    EXPECT_THAT(parsed.error().message(), HasSubstr("wanted synthetic:SHAPE"));
  }
}

}  // namespace
}  // namespace dsv4::model
