// The golden of the DSpark drafter can fail. Each classic mistake is seeded into a weight or an op. The
// comparison of DraftsWhatTheOracleDrafts (draft_golden_test.cc) or the confidence head must see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>

#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

constexpr const char* kGolden = "dspark";
constexpr int64_t kBlock = 5;

// Drafter under test, for faulty ops.
struct Drafter {
  const void* main_norm = nullptr;
  const void* markov_w1 = nullptr;
  const void* confidence_hidden = nullptr;
  TensorView norm;
  float eps = 0;
  std::vector<float> compress_frequencies;
  int32_t anchor = 0;
  int64_t num_stores = 0;
};
Drafter& TheDrafter() {
  static Drafter drafter;
  return drafter;
}

struct Outcome {
  std::vector<float> logits;
  std::vector<float> confidence;
};

Outcome RunWith(const Mutation& mutation) {
  Mutation seeded = mutation;
  seeded.parts = [&](ModelParts& parts) {
    SetScene(parts, 0);
    const model::DsparkWeights& dspark = *parts.weights.dspark;
    TheDrafter() = {.main_norm = dspark.main_norm.data,
                    .markov_w1 = dspark.markov_w1.data.data,
                    .confidence_hidden = dspark.confidence_hidden.data.data,
                    .norm = dspark.norm,
                    .eps = static_cast<float>(parts.config.rms_norm_eps),
                    .compress_frequencies = TheScene().compress_frequencies};
    if (mutation.parts) mutation.parts(parts);
  };
  const std::unique_ptr<model::Model> model =
      LoadGolden(kGolden, model::Numerics::kPlain, seeded, "reference", /*drafter=*/true);
  const std::vector<int32_t> tokens = GoldenTokens(kGolden);
  const auto row = static_cast<size_t>(kBlock * model->config().vocab_size);
  Outcome outcome{.logits = std::vector<float>((tokens.size() - 1) * row),
                  .confidence = std::vector<float>((tokens.size() - 1) * kBlock)};
  kv::SequenceState state = *model->NewSequence();
  for (size_t at = 0; at + 1 < tokens.size(); ++at) {
    const model::SequenceChunk chunk = {.state = &state, .tokens = std::span(tokens).subspan(at, 1)};
    if (!model->Step(std::span(&chunk, 1))) throw std::runtime_error("step");
    const model::DraftChunk draft = {
        .state = &state,
        .token = tokens[at + 1],
        .choices = std::vector<sampling::ChoiceParams>(kBlock, {.temperature = 0}),
        .logits = outcome.logits.data() + at * row,
        .confidence = outcome.confidence.data() + at * kBlock};
    if (!model->Draft(std::span(&draft, 1), {})) throw std::runtime_error("draft");
  }
  return outcome;
}

Comparison Compare(const Outcome& outcome) {
  Comparison comparison =
      CheckCosines(RowCosines(outcome.logits, GoldenLogits(kGolden, "logits.dspark.plain.npy"),
                              TheScene().config.vocab_size),
                   PlainBound());
  const std::vector<float> want = GoldenLogits(kGolden, "confidence.dspark.plain.npy");
  for (size_t i = 0; i < want.size() && comparison.passed; ++i) {
    if (std::abs(want[i] - outcome.confidence[i]) < 2e-4) continue;
    comparison.passed = false;
    comparison.message = "confidence " + std::to_string(i) + " is " + std::to_string(outcome.confidence[i]) +
                         " in place of " + std::to_string(want[i]);
  }
  return comparison;
}

bool OfBlock(const TensorView& x) { return x.shape[0] == kBlock; }

Status Copy(const TensorView& from, const TensorView& to) {
  SetValues(to, Values(from));
  return {};
}

Status NoMainNorm(ops::OpContext& context, const ops::RmsNormArgs& args) {
  return args.weight.data == TheDrafter().main_norm ? Copy(args.x, args.y) : Right().rms_norm(context, args);
}

// `change` of what every row of a block sees.
template <void (*change)(ops::AttentionArgs& args, std::vector<ops::AttentionSequence>& sequences)>
Status OtherView(ops::OpContext& context, const ops::AttentionArgs& args) {
  if (!OfBlock(args.q)) return Right().attention(context, args);
  ops::AttentionArgs wrong = args;
  std::vector<ops::AttentionSequence> sequences(args.sequences.begin(), args.sequences.end());
  change(wrong, sequences);
  wrong.sequences = sequences;
  return Right().attention(context, wrong);
}

void OneShort(ops::AttentionArgs& args, std::vector<ops::AttentionSequence>&) { --args.window_size; }

// Each row sees itself and the rows before it, and as much of the context as the others.
void Causal(ops::AttentionArgs&, std::vector<ops::AttentionSequence>& sequences) {
  for (size_t i = 0; i < sequences.size(); ++i)
    sequences[i].first_position -= kBlock - 1 - static_cast<int64_t>(i);
}

// The window slides within the block.
void Sliding(ops::AttentionArgs& args, std::vector<ops::AttentionSequence>& sequences) {
  Causal(args, sequences);
  args.window_size -= kBlock;
}

void NotItself(ops::AttentionArgs&, std::vector<ops::AttentionSequence>& sequences) {
  for (ops::AttentionSequence& sequence : sequences) --sequence.first_position;
}

template <int32_t shift, bool of_block>
Status ShiftedPositions(ops::OpContext& context, const ops::RopeArgs& args) {
  if (OfBlock(args.x) != of_block) return Right().rope(context, args);
  std::vector<int32_t> positions(static_cast<size_t>(args.positions.shape[0]));
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = std::max(0, args.positions.as<const int32_t>()[i] + shift);
  ops::RopeArgs wrong = args;
  wrong.positions = TensorView::Contiguous(positions.data(), DType::kI32, args.positions.shape);
  return Right().rope(context, wrong);
}

Status CompressTable(ops::OpContext& context, const ops::RopeArgs& args) {
  ops::RopeArgs wrong = args;
  std::vector<float>& table = TheDrafter().compress_frequencies;
  if (OfBlock(args.x))
    wrong.frequencies =
        TensorView::Contiguous(table.data(), DType::kF32, {static_cast<int64_t>(table.size())});
  return Right().rope(context, wrong);
}

// Anchors in place of noise.
Status NoNoise(ops::OpContext& context, const ops::EmbedArgs& args) {
  if (!OfBlock(args.token_ids)) return Right().embed(context, args);
  std::vector<int32_t> ids(kBlock, *args.token_ids.as<const int32_t>());
  ops::EmbedArgs wrong = args;
  wrong.token_ids = TensorView::Contiguous(ids.data(), DType::kI32, {kBlock});
  return Right().embed(context, wrong);
}

// The Markov term of the anchor at every place.
Status AnchorTerm(ops::OpContext& context, const ops::EmbedArgs& args) {
  int32_t& anchor = TheDrafter().anchor;
  if (OfBlock(args.token_ids)) anchor = *args.token_ids.as<const int32_t>();
  if (args.table.data != TheDrafter().markov_w1) return Right().embed(context, args);
  ops::EmbedArgs wrong = args;
  wrong.token_ids = TensorView::Contiguous(&anchor, DType::kI32, {1});
  return Right().embed(context, wrong);
}

Status NoTerm(ops::OpContext& context, const ops::MoeCombineArgs& args) {
  if (args.y.shape[1] != TheScene().config.vocab_size) return Right().moe_combine(context, args);
  return Copy(args.routed, args.y);
}

Status NormedConfidence(ops::OpContext& context, const ops::LinearArgs& args) {
  if (args.weight->data.data != TheDrafter().confidence_hidden) return Right().linear(context, args);
  std::vector<float> normed(static_cast<size_t>(args.x.num_elements()));
  ops::LinearArgs wrong = args;
  wrong.x = TensorView::Contiguous(normed.data(), DType::kF32, args.x.shape);
  DSV4_RETURN_IF_ERROR(Right().rms_norm(
      context, {.x = args.x, .weight = TheDrafter().norm, .y = wrong.x, .eps = TheDrafter().eps}));
  return Right().linear(context, wrong);
}

// Now and then a row of a window is not written, and what stood there before stays.
Status StaleRows(ops::OpContext& context, const ops::StoreRowsArgs& args) {
  const bool of_context = args.source.shape[0] == 1 && args.source.shape[1] == TheScene().config.head_dim;
  if (of_context && ++TheDrafter().num_stores % 7 == 0) return {};
  return Right().store_rows(context, args);
}

using Parts = ModelParts;
model::DsparkWeights& Of(Parts& parts) { return *parts.weights.dspark; }

void UnequalStreams(Parts& parts) { *Of(parts).tap.base.as<float>() = 0.0F; }

std::map<std::string, Mutation> Mistakes() {
  std::map<std::string, Mutation> mistakes;
  const auto parts = [&](const std::string& name, std::function<void(Parts&)> change) {
    mistakes[name].parts = std::move(change);
  };
  const auto ops = [&](const std::string& name, std::function<void(ops::OpTable&)> change) {
    mistakes[name].ops = std::move(change);
  };
  parts("TapsReversed", [](Parts& p) { std::ranges::reverse(Of(p).config.target_layer_ids); });
  parts("TapsOfLayersInputs", [](Parts& p) { Of(p).config.target_layer_ids = {0, 0, 1}; });
  parts("TapOfUnequalStreams", UnequalStreams);
  parts("StagesExchanged", [](Parts& p) { std::swap(Of(p).stages[0], Of(p).stages[1]); });
  parts("StageLeftOut", [](Parts& p) { Of(p).stages.erase(Of(p).stages.begin() + 1); });
  parts("TrunksHead", [](Parts& p) { Of(p).hc_head = p.weights.hc_head; });
  parts("TrunksNorm", [](Parts& p) { Of(p).norm = p.weights.norm; });
  parts("MarkovTablesExchanged", [](Parts& p) { std::swap(Of(p).markov_w1, Of(p).markov_w2); });
  parts("AnotherNoise", [](Parts& p) { Of(p).config.noise_token_id = 3; });
  parts("ShorterBlock", [](Parts& p) { Of(p).config.block_size = 4; });
  ops("NoMainNorm", [](ops::OpTable& t) { t.rms_norm = NoMainNorm; });
  ops("WindowOneShort", [](ops::OpTable& t) { t.attention = OtherView<OneShort>; });
  ops("CausalBlock", [](ops::OpTable& t) { t.attention = OtherView<Causal>; });
  ops("SlidingWindow", [](ops::OpTable& t) { t.attention = OtherView<Sliding>; });
  ops("LastRowUnseen", [](ops::OpTable& t) { t.attention = OtherView<NotItself>; });
  ops("AnchorAtTheLastPosition", [](ops::OpTable& t) { t.rope = ShiftedPositions<-1, true>; });
  ops("YarnInTheStages", [](ops::OpTable& t) { t.rope = CompressTable; });
  ops("AnchorsForNoise", [](ops::OpTable& t) { t.embed = NoNoise; });
  ops("MarkovTermOfTheAnchor", [](ops::OpTable& t) { t.embed = AnchorTerm; });
  ops("NoMarkovTerm", [](ops::OpTable& t) { t.moe_combine = NoTerm; });
  ops("ConfidenceOfNormed", [](ops::OpTable& t) { t.linear = NormedConfidence; });
  ops("StaleRows", [](ops::OpTable& t) { t.store_rows = StaleRows; });
  return mistakes;
}

class DsparkMistakes : public ::testing::TestWithParam<std::string> {};

TEST_P(DsparkMistakes, AreSeen) {
  Comparison comparison;
  if (GetParam() == "ShorterBlock") {
    // The whole block is asked for, and a shorter one says so.
    EXPECT_ANY_THROW(RunWith(Mistakes().at(GetParam())));
    return;
  }
  comparison = Compare(RunWith(Mistakes().at(GetParam())));
  EXPECT_FALSE(comparison.passed) << GetParam() << " went unnoticed";
  std::cout << "  " << comparison.message << "\n";
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, mutation] : Mistakes()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Each, DsparkMistakes, ::testing::ValuesIn(Names()),
                         [](const auto& name) { return name.param; });

TEST(DsparkWithoutAMistake, Passes) {
  const Comparison comparison = Compare(RunWith({}));
  EXPECT_TRUE(comparison.passed) << comparison.message;
}

}  // namespace
}  // namespace dsv4::testing
