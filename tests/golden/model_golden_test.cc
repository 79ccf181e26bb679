// Whole models on every backend against transformers and against the NumPy oracle, prefill and decode, in
// every checkpoint format. README.md explains the goldens and their bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <span>

#include "tests/golden/model_runs.h"

namespace dsv4::testing {
namespace {

using model::Numerics;

// Every length the specification names, and a decode from the first token.
const std::vector<std::vector<int64_t>> kCuts = {{1000}, {128}, {37}, {7}, {1}};

void ExpectWithin(std::span<const float> got, std::span<const float> want, int64_t vocab_size,
                  CosineBound bound, const std::string& what) {
  const Comparison comparison = CheckCosines(RowCosines(got, want, vocab_size), bound);
  EXPECT_TRUE(comparison.passed) << what << ": " << comparison.message;
  std::cout << "  " << what << ": " << comparison.message << "\n";
}

void ExpectBitEqual(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << what;
}

// Runs one prefill, compares it with the golden, and demands the same bits of every other cut.
void ExpectGolden(const std::string& golden, const std::string& backend, Numerics numerics,
                  const std::string& file, CosineBound bound, model::Observer* observer = nullptr) {
  const std::unique_ptr<model::Model> model = LoadGolden(golden, numerics, {}, backend);
  const std::vector<int32_t> tokens = GoldenTokens(golden);
  const std::vector<float> prefill = RunPieces(*model, tokens, kCuts[0], observer);
  ExpectWithin(prefill, GoldenLogits(golden, file), model->config().vocab_size, bound, golden + " " + file);
  for (size_t i = 1; i < kCuts.size(); ++i) {
    ExpectBitEqual(RunPieces(*model, tokens, kCuts[i]), prefill,
                   golden + " in pieces of " + std::to_string(kCuts[i][0]));
  }
}

using GoldenOnBackend = std::tuple<std::string, std::string>;
std::string TestName(const ::testing::TestParamInfo<GoldenOnBackend>& test) {
  return std::get<0>(test.param) + "_on_" + std::get<1>(test.param);
}

class Transformers : public ::testing::TestWithParam<GoldenOnBackend> {};

TEST_P(Transformers, PlainPrefillAndDecode) {
  const auto& [golden, backend] = GetParam();
  ExpectGolden(golden, backend, Numerics::kPlain, "logits.prefill.npy", PlainBound());

  const Json info = ReadJson(ModelDirectory(golden) / "golden.json");
  const auto decode_from = info.at("decode_from").get<int64_t>();
  const std::unique_ptr<model::Model> model = LoadGolden(golden, Numerics::kPlain, {}, backend);
  const std::vector<float> all = RunPieces(*model, GoldenTokens(golden), {decode_from, 1});
  const int64_t vocab_size = model->config().vocab_size;
  ExpectWithin(std::span(all).subspan(static_cast<size_t>(decode_from * vocab_size)),
               GoldenLogits(golden, "logits.decode.npy"), vocab_size, PlainBound(),
               golden + " logits.decode.npy");
}

INSTANTIATE_TEST_SUITE_P(Goldens, Transformers,
                         ::testing::Combine(::testing::ValuesIn(TransformersGoldens()),
                                            ::testing::ValuesIn(GoldenBackends())),
                         TestName);

// Counts tokens whose last chosen and first rejected expert score almost the same: where two correct
// implementations may choose differently.
class NearTies final : public model::Observer {
 public:
  explicit NearTies(const ModelParts& parts) : parts_(parts) {}

  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override {
    if (layer < 0 || name != "ffn.router.logits") return;
    const TensorView& bias = parts_.weights.layers[static_cast<size_t>(layer)].gate_bias;
    if (bias.is_null()) return;
    const std::vector<float> logits = HostFloats(tensor);
    const int64_t experts = tensor.shape[1];
    const auto k = static_cast<size_t>(parts_.config.num_experts_per_tok);
    for (int64_t t = 0; t < tensor.shape[0]; ++t) {
      std::vector<double> scores;
      for (int64_t e = 0; e < experts; ++e) {
        scores.push_back(std::sqrt(std::log1p(std::exp(logits[static_cast<size_t>(t * experts + e)]))) +
                         bias.as<const float>()[e]);
      }
      std::sort(scores.rbegin(), scores.rend());
      ++decisions_;
      if (scores[k - 1] - scores[k] < kGap) ++ties_;
    }
  }

  int64_t decisions() const { return decisions_; }
  int64_t ties() const { return ties_; }

  // The most that one bf16 step of a router input of order one can move a score by.
  static constexpr double kGap = 1.0 / 128;

 private:
  const ModelParts& parts_;
  int64_t decisions_ = 0;
  int64_t ties_ = 0;
};

class ReleaseFormats : public ::testing::TestWithParam<GoldenOnBackend> {};

TEST_P(ReleaseFormats, PlainPrefillAndDecode) {
  const auto& [golden, backend] = GetParam();
  ExpectGolden(golden, backend, Numerics::kPlain, "logits.plain.npy", PlainBound());
}

TEST_P(ReleaseFormats, ReleasePrefillAndDecode) {
  const auto& [golden, backend] = GetParam();
  const ModelParts parts = LoadParts(golden, Numerics::kRelease);
  NearTies near_ties(parts);
  ExpectGolden(golden, backend, Numerics::kRelease, "logits.release.npy", ReleaseBound(), &near_ties);
  std::cout << "  router near-ties (gap below " << NearTies::kGap << "): " << near_ties.ties() << " of "
            << near_ties.decisions() << " scored decisions\n";
  RecordProperty("router_near_ties", static_cast<int>(near_ties.ties()));
}

// Cache rows that are kept as the codes they were rounded to are the same numbers as rows in bf16.
TEST_P(ReleaseFormats, PackedCacheRowsChangeNoBit) {
  const auto& [golden, backend] = GetParam();
  const std::unique_ptr<model::Model> packed = LoadGolden(golden, Numerics::kRelease, {}, backend);
  const std::unique_ptr<model::Model> wide = LoadGolden(
      golden, Numerics::kRelease,
      {.parts = {},
       .ops = {},
       .options = [](model::ModelOptions& options) { options.cache_rows = model::CacheRows::kWide; }},
      backend);
  EXPECT_FALSE(wide->cache_layout().entry_format.packed());
  if (MakeGoldenBackend(backend).packs_rows) {
    EXPECT_TRUE(packed->cache_layout().entry_format.packed());
    EXPECT_LT(kv::BytesPerToken(packed->cache_layout()), 0.75 * kv::BytesPerToken(wide->cache_layout()));
  }
  const std::vector<int32_t> tokens = GoldenTokens(golden);
  const std::vector<float> want = RunPieces(*wide, tokens, {1000});
  ExpectBitEqual(RunPieces(*packed, tokens, {1000}), want, golden + " at once");
  ExpectBitEqual(RunPieces(*packed, tokens, {37, 1, 5}), want, golden + " in pieces");
}

INSTANTIATE_TEST_SUITE_P(Goldens, ReleaseFormats,
                         ::testing::Combine(::testing::ValuesIn(ReleaseGoldens()),
                                            ::testing::ValuesIn(GoldenBackends())),
                         TestName);

// An ordinary random model amplifies rounding, so only the first positions can agree to the last bits. An
// implementation with a rounding point left out never gets there.
class Ordinary : public ::testing::TestWithParam<std::string> {};

TEST_P(Ordinary, ShortPromptsAgreeToTheLastBits) {
  const std::string golden = "ordinary";
  for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
    const std::unique_ptr<model::Model> model = LoadGolden(golden, numerics, {}, GetParam());
    std::vector<float> logits;
    for (const std::vector<int32_t>& prompt : ShortPrompts(golden)) {
      const std::vector<float> rows = RunPieces(*model, prompt, {1000});
      logits.insert(logits.end(), rows.begin(), rows.end());
      ExpectBitEqual(RunPieces(*model, prompt, {1}), rows, "a short prompt token by token");
    }
    const bool plain = numerics == Numerics::kPlain;
    const std::vector<double> cosines =
        RowCosines(logits, GoldenLogits(golden, plain ? "short.plain.npy" : "short.release.npy"),
                   model->config().vocab_size);
    ASSERT_FALSE(cosines.empty());
    const auto good = std::count_if(cosines.begin(), cosines.end(), [](double c) { return c > 0.99999; });
    std::cout << "  ordinary, " << (plain ? "plain: " : "release: ") << good << " of " << cosines.size()
              << " positions above 0.99999, median " << Percentile(cosines, 50) << "\n";
    EXPECT_GE(good, static_cast<int64_t>(plain ? cosines.size() : cosines.size() / 4));
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Ordinary, ::testing::ValuesIn(GoldenBackends()),
                         [](const auto& backend) { return backend.param; });

TEST(Goldens, AreAllRun) {
  const size_t num_run = TransformersGoldens().size() + ReleaseGoldens().size() + 1;
  EXPECT_EQ(num_run, GoldenModels().size());
  EXPECT_EQ(TransformersGoldens().size(), 2U);
}

}  // namespace
}  // namespace dsv4::testing
