// Faults that make a drafted text differ from the serial one are noticed. Ops are wrong in steps of several
// rows of a sequence alone, one way at a time. Each lets a text that is drafted differ, and none lets one
// that is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "engine/engine.h"
#include "formats/number_formats.h"

namespace dsv4::engine {
namespace {

constexpr int64_t kMostRows = 16;  // Prompts are longer.

const ops::OpTable& Right() {
  static const ops::Backend backend = *backend::MakeCpuBackend({.num_threads = 1});
  return backend.table;
}

bool Several(int64_t rows) { return rows > 1 && rows <= kMostRows; }

// The rows of a step of one sequence that verifies, or none.
bool Verifies(const auto& sequences) { return sequences.size() == 1 && Several(sequences[0].num_tokens); }

Status FirstRowSeesTheNext(ops::OpContext& context, const ops::AttentionArgs& args) {
  if (args.ratio != 0 || !Verifies(args.sequences)) return Right().attention(context, args);
  std::vector<ops::AttentionSequence> sequences(args.sequences.begin(), args.sequences.end());
  ++sequences[0].first_position;
  ops::AttentionArgs wrong = args;
  wrong.window_size = args.window_size + 1;
  wrong.sequences = sequences;
  return Right().attention(context, wrong);
}

// Rows see an entry that only a later row of the step completes.
Status EntrySeenTooEarly(ops::OpContext& context, const ops::AttentionArgs& args) {
  if (args.ratio == 0 || !Verifies(args.sequences)) return Right().attention(context, args);
  std::vector<ops::AttentionSequence> sequences(args.sequences.begin(), args.sequences.end());
  ops::AttentionSequence& sequence = sequences[0];
  const int64_t last = sequence.first_position + sequence.num_tokens;
  while ((last + (sequence.first_position - args.sequences[0].first_position) + 1) / args.ratio <=
             sequence.entries.num_rows &&
         sequence.first_position - args.sequences[0].first_position < args.ratio) {
    ++sequence.first_position;
  }
  ops::AttentionArgs wrong = args;
  wrong.sequences = sequences;
  wrong.selected = {};
  return Right().attention(context, wrong);
}

Status StaleRingRow(ops::OpContext& context, const ops::StoreRowsArgs& args) {
  std::vector<ops::RowRun> runs(args.runs.begin(), args.runs.end());
  if (Several(args.source.shape[0]) && args.pack.has_value() && !runs.empty()) --runs.back().num_rows;
  ops::StoreRowsArgs wrong = args;
  wrong.runs = runs;
  return Right().store_rows(context, wrong);
}

Status OnePositionForAllRows(ops::OpContext& context, const ops::RopeArgs& args) {
  const int64_t n = args.x.shape[0];
  if (!Several(n)) return Right().rope(context, args);
  const std::vector<int32_t> positions(static_cast<size_t>(n), args.positions.as<const int32_t>()[0]);
  ops::RopeArgs wrong = args;
  wrong.positions = TensorView::Contiguous(positions.data(), DType::kI32, {n});
  return Right().rope(context, wrong);
}

Status HashOfTheFirstRow(ops::OpContext& context, const ops::RouterArgs& args) {
  const int64_t n = args.logits.shape[0];
  if (!Several(n) || args.hash_table.is_null()) return Right().router(context, args);
  const std::vector<int32_t> ids(static_cast<size_t>(n), args.token_ids.as<const int32_t>()[0]);
  ops::RouterArgs wrong = args;
  wrong.token_ids = TensorView::Contiguous(ids.data(), DType::kI32, {n});
  return Right().router(context, wrong);
}

Status ProductsDependOnRows(ops::OpContext& context, const ops::LinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Right().linear(context, args));
  if (!Several(args.x.shape[0]) || args.y.dtype != DType::kBF16) return {};
  auto* values = args.y.as<uint16_t>();
  for (int64_t i = 0; i < args.y.num_elements(); ++i)
    values[i] = Bf16FromFloat(FloatFromBf16(values[i]) * 1.05F);
  return {};
}

Status TokenOfTheRowBefore(ops::OpContext& context, const ops::EmbedArgs& args) {
  const int64_t n = args.token_ids.shape[0];
  if (!Several(n)) return Right().embed(context, args);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    ids[static_cast<size_t>(i)] = args.token_ids.as<const int32_t>()[std::max<int64_t>(0, i - 1)];
  ops::EmbedArgs wrong = args;
  wrong.token_ids = TensorView::Contiguous(ids.data(), DType::kI32, {n});
  return Right().embed(context, wrong);
}

// All rows of a step in the phase of the row before the first.
Status WrongPhase(ops::OpContext& context, const ops::CompressorPoolArgs& args) {
  if (!Verifies(args.sequences)) return Right().compressor_pool(context, args);
  std::vector<ops::CompressorSequence> sequences(args.sequences.begin(), args.sequences.end());
  ops::CompressorSequence& sequence = sequences[0];
  const auto entries = [&](int64_t begin) {
    return ops::NumCompletedEntries(begin, sequence.num_tokens, args.ratio);
  };
  const int64_t right = sequence.first_position;
  if (right > 0 && entries(right - 1) == entries(right)) --sequence.first_position;
  ops::CompressorPoolArgs wrong = args;
  wrong.sequences = sequences;
  return Right().compressor_pool(context, wrong);
}

Status StreamsOfTheFirstRow(ops::OpContext& context, const ops::HcPostArgs& args) {
  const int64_t n = args.residual.shape[0];
  if (!Several(n)) return Right().hc_post(context, args);
  std::vector<std::byte> rows(static_cast<size_t>(args.residual.num_bytes()));
  const auto row_bytes = static_cast<size_t>(args.residual.num_bytes() / n);
  for (int64_t i = 0; i < n; ++i)
    std::copy_n(args.residual.as<const std::byte>(), row_bytes,
                rows.data() + static_cast<size_t>(i) * row_bytes);
  ops::HcPostArgs wrong = args;
  wrong.residual = TensorView::Contiguous(rows.data(), args.residual.dtype, args.residual.shape);
  return Right().hc_post(context, wrong);
}

Status WeightsOfTheFirstRow(ops::OpContext& context, const ops::RoutedExpertsArgs& args) {
  const int64_t n = args.x.shape[0];
  if (!Several(n)) return Right().routed_experts(context, args);
  const int64_t k = args.indices.shape[1];
  std::vector<int32_t> indices;
  std::vector<float> weights;
  for (int64_t i = 0; i < n; ++i) {
    indices.insert(indices.end(), args.indices.as<const int32_t>(), args.indices.as<const int32_t>() + k);
    weights.insert(weights.end(), args.weights.as<const float>(), args.weights.as<const float>() + k);
  }
  ops::RoutedExpertsArgs wrong = args;
  wrong.indices = TensorView::Contiguous(indices.data(), DType::kI32, {n, k});
  wrong.weights = TensorView::Contiguous(weights.data(), DType::kF32, {n, k});
  return Right().routed_experts(context, wrong);
}

Status HeadOfTheFirstRow(ops::OpContext& context, const ops::HcHeadArgs& args) {
  DSV4_RETURN_IF_ERROR(Right().hc_head(context, args));
  const int64_t n = args.y.shape[0];
  if (!Several(n)) return {};
  const auto row_bytes = static_cast<size_t>(args.y.num_bytes() / n);
  for (int64_t i = 1; i < n; ++i)
    std::copy_n(args.y.as<const std::byte>(), row_bytes,
                args.y.as<std::byte>() + static_cast<size_t>(i) * row_bytes);
  return {};
}

using Mutation = std::function<void(ops::OpTable&)>;
const std::map<std::string, Mutation>& Mutations() {
  static const std::map<std::string, Mutation> mutations = {
      {"FirstRowSeesTheNext", [](ops::OpTable& t) { t.attention = FirstRowSeesTheNext; }},
      {"EntrySeenTooEarly", [](ops::OpTable& t) { t.attention = EntrySeenTooEarly; }},
      {"StaleRingRow", [](ops::OpTable& t) { t.store_rows = StaleRingRow; }},
      {"OnePositionForAllRows", [](ops::OpTable& t) { t.rope = OnePositionForAllRows; }},
      {"HashOfTheFirstRow", [](ops::OpTable& t) { t.router = HashOfTheFirstRow; }},
      {"ProductsDependOnRows", [](ops::OpTable& t) { t.linear = ProductsDependOnRows; }},
      {"TokenOfTheRowBefore", [](ops::OpTable& t) { t.embed = TokenOfTheRowBefore; }},
      {"WrongPhase", [](ops::OpTable& t) { t.compressor_pool = WrongPhase; }},
      {"StreamsOfTheFirstRow", [](ops::OpTable& t) { t.hc_post = StreamsOfTheFirstRow; }},
      {"WeightsOfTheFirstRow", [](ops::OpTable& t) { t.routed_experts = WeightsOfTheFirstRow; }},
      {"HeadOfTheFirstRow", [](ops::OpTable& t) { t.hc_head = HeadOfTheFirstRow; }},
  };
  return mutations;
}

std::unique_ptr<model::Model> LoadModel(const Mutation& mutation) {
  ops::Backend backend = *backend::MakeCpuBackend({.num_threads = 1});
  if (mutation) mutation(backend.table);
  auto model = model::Model::Load("tests/golden/models/fp8_mxfp4", backend, {.mtp = true});
  EXPECT_TRUE(model.has_value()) << model.error().ToString();
  return std::move(*model);
}

// Says how a text goes on, and every fifth token wrongly.
class MostlyRight final : public speculation::Drafter {
 public:
  explicit MostlyRight(const std::vector<int32_t>& text) : text_(text) {}
  void Read(std::span<const int32_t> text) override { length_ = text.size(); }
  speculation::Draft Propose(int64_t most) override {
    speculation::Draft draft;
    for (size_t i = length_; i < text_.size() && most > 0; ++i, --most)
      draft.tokens.push_back(i % 5 == 4 ? (text_[i] + 1) % 90 : text_[i]);
    return draft;
  }

 private:
  const std::vector<int32_t>& text_;
  size_t length_ = 0;
};

// The prompt and what comes; drafted where `drafts` says how it goes on, with the draft block where it is
// empty.
std::vector<int32_t> Text(model::Model& model, uint32_t seed, const std::vector<int32_t>* drafts) {
  EngineOptions options;
  options.async_scheduling = false;
  if (drafts != nullptr) {
    options.speculation.always = true;
    options.speculation.most_tokens = 5;
    if (drafts->empty()) {
      options.speculation.mtp = true;
    } else {
      options.speculation.make_drafter = [&] { return std::make_unique<MostlyRight>(*drafts); };
    }
  }
  Engine engine(model, options, {});
  std::mt19937 random(seed);
  Request request;
  for (int i = 0; i < 110; ++i) request.prompt.push_back(static_cast<int32_t>(random() % 96));
  std::vector<int32_t> text = request.prompt;
  request.max_tokens = 160;
  request.sampling.seed = seed;
  request.sampling.temperature = seed % 2 == 0 ? 0.0F : 1.0F;
  static_cast<void>(*engine.Submit(std::move(request)));
  while (!engine.idle()) {
    for (const Event& event : engine.Step()) {
      if (event.kind == Event::Kind::kToken) text.push_back(event.token.id);
    }
  }
  return text;
}

constexpr uint32_t kNumTexts = 3;

class SpeculationMutations : public ::testing::TestWithParam<std::string> {};

TEST_P(SpeculationMutations, AreNoticed) {
  const std::unique_ptr<model::Model> right = LoadModel({});
  const std::unique_ptr<model::Model> wrong = LoadModel(Mutations().at(GetParam()));
  int num_different = 0;
  for (uint32_t seed = 0; seed < kNumTexts; ++seed) {
    const std::vector<int32_t> want = Text(*right, seed, nullptr);
    EXPECT_EQ(Text(*wrong, seed, nullptr), want) << "it is to be wrong in steps of several rows alone";
    if (Text(*wrong, seed, &want) != want) ++num_different;
  }
  EXPECT_GT(num_different, 0);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, mutation] : Mutations()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, SpeculationMutations, ::testing::ValuesIn(Names()),
                         [](const auto& name) { return name.param; });

// The same texts without a mistake.
TEST(NoMutation, GivesTheSerialText) {
  const std::unique_ptr<model::Model> right = LoadModel({});
  const std::vector<int32_t> by_mtp;
  for (uint32_t seed = 0; seed < kNumTexts; ++seed) {
    const std::vector<int32_t> want = Text(*right, seed, nullptr);
    EXPECT_EQ(want.size(), 270U);
    EXPECT_EQ(Text(*right, seed, &want), want);
    EXPECT_EQ(Text(*right, seed, &by_mtp), want);
  }
}

}  // namespace
}  // namespace dsv4::engine
