// V4.1's golden models on every backend of the host: both numerics, every cut, packed rows.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <tuple>
#include <vector>

#include "diag/recording.h"
#include "formats/quantize.h"
#include "tests/golden/model_runs.h"

namespace dsv4::testing {
namespace {

using model::Numerics;

std::string At(const std::string& name) { return "../v41/" + name; }

void ExpectBitEqual(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << what;
}

// A golden's model with the classes of its token ids, where it has n-gram tables.
std::unique_ptr<model::Model> LoadV41(const std::string& golden, Numerics numerics,
                                      const std::string& backend,
                                      const std::function<void(model::ModelOptions&)>& change = {},
                                      bool drafter = false) {
  const Json info = ReadJson(ModelDirectory(golden) / "golden.json");
  return LoadGolden(golden, numerics,
                    {.parts = {},
                     .ops = {},
                     .options =
                         [&](model::ModelOptions& options) {
                           if (info.contains("classes"))
                             options.token_classes = info.at("classes").get<std::vector<int32_t>>();
                           if (change) change(options);
                         }},
                    backend, drafter);
}

// A golden's tensors in the order of the graph, op by op.
diag::Recording Record(const std::string& golden, Numerics numerics, const std::string& backend_name) {
  const ops::Backend backend = MakeGoldenBackend(backend_name, 1);
  ModelParts parts = LoadParts(golden, numerics);
  model::ModelOptions options;
  options.numerics = numerics;
  const Json info = ReadJson(ModelDirectory(golden) / "golden.json");
  if (info.contains("classes")) options.token_classes = info.at("classes").get<std::vector<int32_t>>();
  auto model = model::Model::FromWeights(std::move(parts.config), std::move(parts.weights), backend, options);
  diag::Recording recording(*backend.context);
  if (model.has_value()) RunPieces(**model, GoldenTokens(golden), {1000}, &recording);
  return recording;
}

// The first tensors that are not the reference's, with their first row that is not.
void PrintFirstDifferences(const std::string& golden, Numerics numerics, const std::string& backend) {
  constexpr double kApart = 1e-3;
  constexpr int kMost = 8;
  const diag::Recording want = Record(golden, numerics, "reference");
  const diag::Recording got = Record(golden, numerics, backend);
  int printed = 0;
  for (const diag::RecordedTensor& tensor : want.tensors()) {
    const diag::RecordedTensor* const other = got.Find(tensor.layer, tensor.name);
    if (other == nullptr || other->num_rows != tensor.num_rows || printed == kMost) continue;
    for (int64_t row = 0; row < tensor.num_rows; ++row) {
      const std::span<const float> a = tensor.Row(row);
      const std::span<const float> b = other->Row(row);
      double difference = 0;
      double size = 0;
      size_t worst = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        difference += std::pow(double{a[i]} - double{b[i]}, 2);
        size += std::pow(double{a[i]}, 2);
        if (std::fabs(a[i] - b[i]) > std::fabs(a[worst] - b[worst])) worst = i;
      }
      if (difference <= kApart * kApart * size) continue;
      std::cout << "  layer " << tensor.layer << " " << tensor.name << ", row " << row << ", column " << worst
                << ": got " << b[worst] << ", want " << a[worst] << "; relative "
                << std::sqrt(difference / size) << "\n";
      ++printed;
      break;
    }
  }
}

class V41 : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  std::string golden() const { return At(std::get<0>(GetParam())); }
  std::string backend() const { return std::get<1>(GetParam()); }

  void ExpectGolden(Numerics numerics, const std::string& file, CosineBound bound) {
    const std::unique_ptr<model::Model> model = LoadV41(golden(), numerics, backend());
    const std::vector<int32_t> tokens = GoldenTokens(golden());
    const std::vector<float> prefill = RunPieces(*model, tokens, {1000});
    const Comparison comparison =
        CheckCosines(RowCosines(prefill, GoldenLogits(golden(), file), model->config().vocab_size), bound);
    EXPECT_TRUE(comparison.passed) << comparison.message;
    if (!comparison.passed) PrintFirstDifferences(golden(), numerics, backend());
    std::cout << "  " << golden() << " " << file << ": " << comparison.message << "\n";
    for (const int64_t piece : {37, 16, 7, 1})
      ExpectBitEqual(RunPieces(*model, tokens, {piece}), prefill, "in pieces of " + std::to_string(piece));
    ExpectBitEqual(RunPieces(*model, tokens, {20, 1, 3}), prefill, "in uneven pieces");
  }
};

TEST_P(V41, Plain) { ExpectGolden(Numerics::kPlain, "logits.plain.npy", PlainBound()); }

// One bit of one number of the first layer's attention moves "engram" to a median of 0.9992, and a GPU rounds
// some there the other way.
TEST_P(V41, Release) {
  const bool moves = backend() == "cuda" && golden() == At("engram");
  ExpectGolden(Numerics::kRelease, "logits.release.npy",
               moves ? CosineBound{.min = 0.95, .median = 0.999, .p5 = 0.985} : ReleaseBound());
}

// The oracle in double between the rounding points: a rounding in another place, or of another kind, shows in
// the first row that it changes.
// Sums of experts are in fp32 here alone, and sums of products on the CPU too, so that a row may differ.
TEST_P(V41, ReleaseToTheBit) {
  if (backend() == "cuda") GTEST_SKIP() << "a GPU's ops are in fp32";
  const std::unique_ptr<model::Model> model = LoadV41(golden(), Numerics::kRelease, backend());
  const std::vector<double> cosines =
      RowCosines(RunPieces(*model, GoldenTokens(golden()), {1000}),
                 GoldenLogits(golden(), "logits.exact.npy"), model->config().vocab_size);
  const bool reference = backend() == "reference";
  const Comparison comparison =
      CheckCosines(cosines, reference ? CosineBound{.min = 1 - 1e-12}
                                      : CosineBound{.min = -1, .median = 1 - 1e-5, .p5 = 1 - 1e-4});
  EXPECT_TRUE(comparison.passed) << comparison.message;
  std::cout << "  " << golden() << ": " << comparison.message << "\n";
}

TEST_P(V41, PackedCacheRowsChangeNoBit) {
  const std::unique_ptr<model::Model> packed = LoadV41(golden(), Numerics::kRelease, backend());
  const std::unique_ptr<model::Model> wide =
      LoadV41(golden(), Numerics::kRelease, backend(),
              [](model::ModelOptions& options) { options.cache_rows = model::CacheRows::kWide; });
  EXPECT_TRUE(packed->cache_layout().entry_format.packed());
  EXPECT_FALSE(wide->cache_layout().entry_format.packed());
  EXPECT_LT(kv::BytesPerToken(packed->cache_layout()), 0.4 * kv::BytesPerToken(wide->cache_layout()));
  const std::vector<int32_t> tokens = GoldenTokens(golden());
  ExpectBitEqual(RunPieces(*packed, tokens, {23, 1, 5}), RunPieces(*wide, tokens, {1000}), "packed");
}

template <typename T>
T Must(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << result.error().ToString();
  return std::move(*result);
}

std::vector<float> Step(model::Model& model, kv::SequenceState& state, std::span<const int32_t> tokens,
                        model::LogitsRows rows, model::Observer* observer = nullptr) {
  const model::SequenceChunk chunk{.state = &state, .tokens = tokens, .logits = rows};
  const model::StepOutput output = Must(model.Step(std::span(&chunk, 1), observer));
  return {output.logits.begin(), output.logits.end()};
}

// Forks, rewinds and kept states go on with the bits of a sequence that was read from its start.
TEST_P(V41, StatesGoOnAlike) {
  const std::unique_ptr<model::Model> model = LoadV41(golden(), Numerics::kRelease, backend());
  const std::vector<int32_t> tokens = GoldenTokens(golden());
  const int64_t vocab = model->config().vocab_size;
  const std::vector<float> want = RunPieces(*model, tokens, {1000});
  const auto at = [&](size_t begin, size_t end) {
    return std::vector<float>(want.begin() + static_cast<int64_t>(begin) * vocab,
                              want.begin() + static_cast<int64_t>(end) * vocab);
  };
  const std::span<const int32_t> all(tokens);
  kv::SequenceState state = Must(model->NewSequence());
  Step(*model, state, all.first(33), model::LogitsRows::kNone);
  const kv::Snapshot kept = Must(state.Snapshot());
  kv::SequenceState fork = Must(state.Fork());
  // Other tokens, taken back again.
  Step(*model, state, all.first(9), model::LogitsRows::kNone);
  ASSERT_TRUE(state.Rewind(14).ok());
  ExpectBitEqual(Step(*model, state, all.subspan(28, 12), model::LogitsRows::kAll), at(28, 40), "rewound");
  ExpectBitEqual(Step(*model, fork, all.subspan(33, 5), model::LogitsRows::kAll), at(33, 38), "forked");
  ASSERT_TRUE(state.Restore(kept).ok());
  ExpectBitEqual(Step(*model, state, all.subspan(33, 8), model::LogitsRows::kAll), at(33, 41), "restored");
  // A batch of three at other places.
  kv::SequenceState fresh = Must(model->NewSequence());
  const std::array<model::SequenceChunk, 3> chunks = {
      model::SequenceChunk{.state = &fresh, .tokens = all.first(21), .logits = model::LogitsRows::kAll},
      model::SequenceChunk{.state = &fork, .tokens = all.subspan(38, 1), .logits = model::LogitsRows::kAll},
      model::SequenceChunk{.state = &state, .tokens = all.subspan(41, 3), .logits = model::LogitsRows::kAll}};
  const model::StepOutput output = Must(model->Step(chunks));
  std::vector<float> together = at(0, 21);
  for (const std::vector<float>& rows : {at(38, 39), at(41, 44)})
    together.insert(together.end(), rows.begin(), rows.end());
  ExpectBitEqual({output.logits.begin(), output.logits.end()}, together, "a batch");
}

// Counts the rows that reach a layer.
class RowsOfLayer final : public model::Observer {
 public:
  explicit RowsOfLayer(int layer) : layer_(layer) {}
  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override {
    if (layer == layer_ && name == "attn.norm") rows_ += tensor.shape[0];
  }
  int64_t rows() const { return rows_; }

 private:
  int layer_;
  int64_t rows_ = 0;
};

// Layers behind the last maker of entries run on the end of a prompt alone. Nothing else changes: logits,
// drafts and all tokens behind, whatever was cut, rewound or forked.
TEST_P(V41, ThePromptsTailIsExact) {
  // The model chooses what is left out, not a kernel: reference tries all there is.
  const bool all_there_is = backend() == "reference";
  for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
    if (numerics == Numerics::kPlain && !all_there_is) continue;
    for (const int64_t most : {int64_t{1000}, int64_t{64}, int64_t{1}}) {
      if (most == 1000 && !all_there_is) continue;
      const std::unique_ptr<model::Model> model =
          LoadV41(golden(), numerics, backend(), [&](model::ModelOptions& options) {
            options.max_rewind_tokens = 3;
            options.max_chunk_tokens = most;
          });
      const auto& config = model->config();
      const auto last = static_cast<int>(config.num_hidden_layers - 1);
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < 260; ++i)
        tokens.push_back((i * 37 + i * i / 7) % static_cast<int32_t>(config.vocab_size));
      const std::span<const int32_t> all(tokens);
      kv::SequenceState whole = Must(model->NewSequence());
      RowsOfLayer of_whole(last);
      const std::vector<float> every =
          Step(*model, whole, all.first(240), model::LogitsRows::kAll, &of_whole);
      EXPECT_EQ(of_whole.rows(), 240);
      kv::SequenceState cut = Must(model->NewSequence());
      RowsOfLayer of_cut(last);
      const std::vector<float> end = Step(*model, cut, all.first(240), model::LogitsRows::kLast, &of_cut);
      ExpectBitEqual(end, {every.end() - config.vocab_size, every.end()}, "the last row");
      const bool has_tail = !config.layers.back().makes_entries();
      EXPECT_EQ(of_cut.rows() < 200, has_tail);
      kv::SequenceState fork = Must(cut.Fork());
      for (kv::SequenceState* state : {&cut, &whole}) {
        Step(*model, *state, all.first(2), model::LogitsRows::kNone);
        ASSERT_TRUE(state->Rewind(3).ok());
      }
      ExpectBitEqual(Step(*model, cut, all.subspan(239), model::LogitsRows::kAll),
                     Step(*model, whole, all.subspan(239), model::LogitsRows::kAll), "rewound and gone on");
      ASSERT_TRUE(whole.Rewind(3).ok());
      // A second prompt behind the first one, none of whose rows is in the same pass.
      kv::SequenceState again = Must(model->NewSequence());
      Step(*model, again, all.first(240), model::LogitsRows::kLast);
      Step(*model, fork, all.subspan(240), model::LogitsRows::kNone);
      Step(*model, again, all.subspan(240), model::LogitsRows::kAll);
      ExpectBitEqual(Step(*model, fork, all.first(150), model::LogitsRows::kLast),
                     Step(*model, again, all.first(150), model::LogitsRows::kLast), "a second prompt");
    }
  }
}

// Steps that are told what follows leave as much out as one step does, however the prompt is cut. Logits, the
// bytes of the state, and all tokens behind it are those of a prompt without omissions.
TEST_P(V41, APromptInStepsIsExact) {
  for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
    const std::unique_ptr<model::Model> model =
        LoadV41(golden(), numerics, backend(), [&](model::ModelOptions& options) {
          options.max_rewind_tokens = 3;
          options.max_chunk_tokens = 40;
        });
    const int64_t tail = model->tail_rows();
    const bool cuts = !model->config().layers.back().makes_entries();
    EXPECT_EQ(tail > 0, cuts);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 232; ++i)
      tokens.push_back((i * 37 + i * i / 7) % static_cast<int32_t>(model->config().vocab_size));
    const std::span<const int32_t> all(tokens);
    constexpr size_t kPrompt = 220;
    kv::SequenceState whole = Must(model->NewSequence());
    const std::vector<float> every = Step(*model, whole, all.first(kPrompt), model::LogitsRows::kAll);
    const std::vector<float> last(every.end() - model->config().vocab_size, every.end());
    const std::vector<std::byte> want_bytes = Must(Must(whole.Snapshot()).Serialize(1, 3));
    const std::vector<float> behind = Step(*model, whole, all.subspan(kPrompt, 12), model::LogitsRows::kAll);
    std::vector<std::vector<size_t>> cuts_of_prompt = {{64, 1, 3}, {210, 9, 1}};
    if (backend() == "reference") cuts_of_prompt.insert(cuts_of_prompt.end(), {{100}, {7}, {219}, {1}});
    for (const std::vector<size_t>& pieces : cuts_of_prompt) {
      kv::SequenceState state = Must(model->NewSequence());
      const model::LayerRows before = model->layer_rows();
      std::vector<float> logits;
      bool refused = false;
      for (size_t begin = 0, i = 0; begin < kPrompt; ++i) {
        const size_t count = std::min(pieces[i % pieces.size()], kPrompt - begin);
        const size_t end = begin + count;
        const model::SequenceChunk chunk{
            .state = &state,
            .tokens = all.subspan(begin, count),
            .logits = end == kPrompt ? model::LogitsRows::kLast : model::LogitsRows::kNone,
            .num_following = static_cast<int64_t>(kPrompt - end)};
        const model::StepOutput output = Must(model->Step(std::span(&chunk, 1)));
        logits.assign(output.logits.begin(), output.logits.end());
        begin = end;
        if (state.whole() || refused) continue;
        refused = true;
        model::SequenceChunk early{.state = &state, .tokens = all.first(1)};
        EXPECT_EQ(model->Step(std::span(&early, 1)).error().code(), StatusCode::kFailedPrecondition);
        EXPECT_EQ(Must(state.Snapshot()).Serialize(1).error().code(), StatusCode::kFailedPrecondition);
      }
      const model::LayerRows now = model->layer_rows();
      const auto num_layers = static_cast<int64_t>(model->layers().size());
      int64_t behind_sources = 0;
      while (!model->layers()[static_cast<size_t>(num_layers - 1 - behind_sources)].makes_entries())
        ++behind_sources;
      EXPECT_EQ(now.all - before.all, static_cast<int64_t>(kPrompt) * num_layers);
      EXPECT_EQ(now.all - now.run - (before.all - before.run),
                cuts ? behind_sources * (static_cast<int64_t>(kPrompt) - tail) : 0);
      EXPECT_EQ(refused, cuts && pieces[0] < 200);
      ExpectBitEqual(logits, last, "the last row");
      EXPECT_TRUE(state.whole());
      EXPECT_EQ(Must(Must(state.Snapshot()).Serialize(1, 3)), want_bytes) << "in pieces of " << pieces[0];
      kv::SequenceState fork = Must(state.Fork());
      ExpectBitEqual(Step(*model, state, all.subspan(kPrompt, 12), model::LogitsRows::kAll), behind,
                     "behind it");
      ASSERT_TRUE(fork.Rewind(2).ok());
      const std::vector<float> again =
          Step(*model, fork, all.subspan(kPrompt - 2, 2), model::LogitsRows::kLast);
      ExpectBitEqual(again, last, "rewound");
    }
  }
}

// Tables in 4 bits have the logits of their values in full.
TEST(V41NgramTables, InFourBitsAsInFull) {
  for (const std::string& backend : GoldenBackends()) {
    for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
      std::vector<QuantizedMatrix> coded;
      std::vector<std::vector<float>> full;
      const auto run = [&](bool codes) {
        return LoadGolden(At("engram"), numerics,
                          {.parts =
                               [&](ModelParts& parts) {
                                 for (model::LayerWeights& layer : parts.weights.layers) {
                                   if (!layer.engram) continue;
                                   Weight& table = layer.engram->table;
                                   std::vector<float>& values =
                                       full.emplace_back(static_cast<size_t>(table.rows * table.cols));
                                   const auto decode = [&] {
                                     for (int64_t row = 0; row < table.rows; ++row)
                                       DequantizeRow(table, row, values.data() + row * table.cols);
                                   };
                                   decode();
                                   const bool nvfp4 = coded.size() % 2 == 0;
                                   coded.push_back(nvfp4 ? QuantizeNvFp4(values, table.rows, table.cols)
                                                         : QuantizeMxFp4(values, table.rows, table.cols));
                                   table = coded.back().View();
                                   if (codes) continue;
                                   decode();
                                   table = {
                                       .rows = table.rows,
                                       .cols = table.cols,
                                       .data = TensorView::Contiguous(static_cast<const void*>(values.data()),
                                                                      DType::kF32, {table.rows, table.cols})};
                                 }
                               },
                           .ops = {},
                           .options =
                               [](model::ModelOptions& options) {
                                 const Json info = ReadJson(ModelDirectory(At("engram")) / "golden.json");
                                 options.token_classes = info.at("classes").get<std::vector<int32_t>>();
                               }},
                          backend);
      };
      coded.reserve(4);
      full.reserve(4);
      const std::vector<int32_t> tokens = GoldenTokens(At("engram"));
      const std::vector<float> in_codes = RunPieces(*run(true), tokens, {1000});
      ASSERT_EQ(coded.size(), 2U);
      ExpectBitEqual(in_codes, RunPieces(*run(false), tokens, {1000}), backend);
      EXPECT_NE(in_codes, GoldenLogits(At("engram"), "logits.plain.npy"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, V41,
    ::testing::Combine(::testing::Values("shared", "plain16", "shallow", "engram", "deep", "dspark"),
                       ::testing::ValuesIn(GoldenBackends())),
    [](const auto& test) { return std::get<0>(test.param) + "_on_" + std::get<1>(test.param); });

}  // namespace
}  // namespace dsv4::testing
