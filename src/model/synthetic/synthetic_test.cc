// Tests of synthetic checkpoints: memory equal to files, ranks' parts, the loader, names and errors.
#include "model/synthetic/synthetic.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/arch/architecture.h"
#include "model/checkpoint/checkpoint_testing.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

bool AllZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(SyntheticCheckpoint, InMemoryIsByteForByteTheFile) {
  for (const std::string_view format : SyntheticFormatNames()) {
    const SyntheticOptions options = {
        .num_layers = 3, .vocab_size = 520, .format = *SyntheticFormatFromName(format), .seed = 7};
    const TemporaryDirectory temporary;
    ASSERT_TRUE(WriteSyntheticCheckpoint(temporary / "m", options).ok()) << format;
    const auto written = io::Checkpoint::Open(temporary / "m");
    for (const int num_threads : {1, 3}) {
      const auto made = MakeSyntheticCheckpoint("synthetic", options, num_threads);
      ASSERT_TRUE(made.has_value()) << made.error().message();
      ASSERT_EQ((*made)->files().size(), 1U);
      const auto got = (*made)->files()[0].bytes();
      const auto want = (*written)->files()[0].bytes();
      std::vector<std::span<const std::byte>> all;
      for (const io::StoredTensor& tensor : (*made)->tensors()) all.push_back(tensor.bytes);
      (*made)->Fetch(all);
      EXPECT_TRUE(std::ranges::equal(got, want)) << format << ", " << num_threads << " threads";
    }
  }
}

constexpr size_t kHugePage = size_t{2} << 20;

TEST(SyntheticCheckpoint, NumbersAreThereFromFetchToRelease) {
  const auto checkpoint = *MakeSyntheticCheckpoint("synthetic:mini", {.shape = "mini"}, 2);
  const io::StoredTensor& tensor = *checkpoint->Find("embed.weight");
  const io::StoredTensor& other = *checkpoint->Find("head.weight");
  const std::span<const std::byte> all[] = {tensor.bytes};
  const std::span<const std::byte> part[] = {tensor.bytes.subspan(100, 7)};
  EXPECT_TRUE(AllZero(tensor.bytes));
  checkpoint->Fetch(part);  // Makes all of it.
  const std::vector<std::byte> made(tensor.bytes.begin(), tensor.bytes.end());
  EXPECT_FALSE(AllZero(std::span(made).last(1000)));
  EXPECT_TRUE(AllZero(other.bytes));

  checkpoint->Fetch(all);
  checkpoint->Release(part);  // One user is left.
  EXPECT_TRUE(std::ranges::equal(tensor.bytes, made));
  checkpoint->Release(all);
  // Whole huge pages have gone. Before the first of them there may be what is none of the numbers.
  EXPECT_TRUE(AllZero(tensor.bytes.subspan(kHugePage, tensor.bytes.size() - 2 * kHugePage)));
  checkpoint->Fetch(all);
  EXPECT_TRUE(std::ranges::equal(tensor.bytes, made));
}

// A page that two tensors share goes with the second one: else it would keep the huge page that it lies in.
TEST(SyntheticCheckpoint, PagesBetweenTensorsGoToo) {
  const auto checkpoint = *MakeSyntheticCheckpoint("synthetic:mini,nvfp4-experts",
                                                   *ParseSyntheticName("synthetic:mini,nvfp4-experts"), 2);
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (int expert = 0; expert < 4; ++expert) {
    std::vector<std::span<const std::byte>> ranges;
    for (const char* name :
         {"w1.weight", "w1.weight_scale", "w2.weight", "w2.weight_scale", "w3.weight", "w3.weight_scale"}) {
      const io::StoredTensor* const tensor =
          checkpoint->Find(fmt::format("layers.0.ffn.experts.{}.{}", expert, name));
      ASSERT_NE(tensor, nullptr) << name;
      ranges.push_back(tensor->bytes);
      if (begin == nullptr || tensor->bytes.data() < begin) begin = tensor->bytes.data();
      end = std::max(end, tensor->bytes.data() + tensor->bytes.size());
    }
    checkpoint->Fetch(ranges);
    EXPECT_FALSE(AllZero(ranges.front()));
    checkpoint->Release(ranges);
  }
  ASSERT_GT(end - begin, static_cast<std::ptrdiff_t>(4 * kHugePage));
  EXPECT_TRUE(AllZero({begin + kHugePage, end - kHugePage}));
}

// Numbers of a rank are made by it, and no others.
TEST(SyntheticCheckpoint, ARankMakesItsOwnNumbers) {
  const SyntheticOptions options{.shape = "mini"};
  const auto config = ParseModelConfig(*SyntheticConfig(options), "config");
  const auto is_there = [](const io::Checkpoint& checkpoint, const std::string& name) {
    const io::StoredTensor* const tensor = checkpoint.Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    return tensor != nullptr && !AllZero(tensor->bytes);
  };
  const std::string first = "layers.0.ffn.experts.0.w1.weight";
  const std::string last = fmt::format("layers.0.ffn.experts.{}.w1.weight", config->n_routed_experts - 1);
  const std::string last_layer = fmt::format("layers.{}.attn.wq_a.weight", config->num_hidden_layers - 1);
  struct Case {
    Placement placement;
    int rank;
    bool first, last, last_layer, embed;
  };
  const Case cases[] = {
      {.placement = {.num_shards = 2},
       .rank = 0,
       .first = true,
       .last = false,
       .last_layer = true,
       .embed = true},
      {.placement = {.num_shards = 2},
       .rank = 1,
       .first = false,
       .last = true,
       .last_layer = true,
       .embed = true},
      {.placement = {.num_stages = 2},
       .rank = 0,
       .first = true,
       .last = true,
       .last_layer = false,
       .embed = true},
      {.placement = {.num_stages = 2},
       .rank = 1,
       .first = false,
       .last = false,
       .last_layer = true,
       .embed = false},
  };
  for (const Case& c : cases) {
    const auto checkpoint = *MakeSyntheticCheckpoint("synthetic:mini", options, 2);
    ASSERT_TRUE(LoadWeights(checkpoint, *config, {.placement = c.placement, .rank = c.rank}).has_value());
    SCOPED_TRACE(fmt::format("{}, rank {}", ToString(c.placement), c.rank));
    EXPECT_EQ(is_there(*checkpoint, first), c.first);
    EXPECT_EQ(is_there(*checkpoint, last), c.last);
    EXPECT_EQ(is_there(*checkpoint, last_layer), c.last_layer);
    EXPECT_EQ(is_there(*checkpoint, "embed.weight"), c.embed);
  }
}

TEST(SyntheticCheckpoint, NumbersThatWereSeenPassOn) {
  const SyntheticOptions options{.shape = "mini"};
  const auto config = ParseModelConfig(*SyntheticConfig(options), "config");
  const auto checkpoint = *MakeSyntheticCheckpoint("synthetic:mini", options, 2);
  const auto bytes_of = [&](size_t layer) {
    return checkpoint->Find(fmt::format("layers.{}.attn.wq_b.weight", layer))->bytes;
  };
  size_t num_layers = 0;
  const auto loaded = [&](ModelWeights& weights) -> Status {
    num_layers = weights.layers.size();
    for (size_t layer = 0; layer < num_layers; ++layer)  // Inner pages.
      EXPECT_EQ(AllZero(bytes_of(layer).subspan(4096).first(4096)), layer + 1 < num_layers) << layer;
    return {};
  };
  ASSERT_TRUE(LoadWeights(checkpoint, *config, {.loaded = loaded, .numbers_pass = true}).has_value());
  EXPECT_EQ(num_layers, static_cast<size_t>(config->num_hidden_layers));
  EXPECT_TRUE(AllZero(bytes_of(num_layers - 1).subspan(4096).first(4096)));

  const auto nothing = *MakeSyntheticCheckpoint("synthetic:mini", options, 2);
  ASSERT_TRUE(LoadWeights(nothing, *config, {.sizes_only = true}).has_value());
  EXPECT_TRUE(AllZero(nothing->Find("embed.weight")->bytes));
}

TEST(SyntheticCheckpoint, InMemoryGoesThroughTheLoader) {
  const SyntheticOptions options;
  const auto config = ParseModelConfig(*SyntheticConfig(options), "config");
  const auto checkpoint = MakeSyntheticCheckpoint("synthetic:tiny", options, 2);
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
