// V4.1's goldens can fail. Each mistake that the architecture invites is seeded into a configuration, a
// weight or an op of the reference backend. The comparison that passes without it must not pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "formats/number_formats.h"
#include "tests/golden/model_runs.h"

namespace dsv4::testing {
namespace {

using model::LayerPlan;
using model::Numerics;

struct Mistake {
  const char* name;
  const char* golden;
  Numerics numerics;
  Mutation mutation;
  bool drafts = false;
};

const ops::OpTable& Right() {
  static const ops::Backend backend = backend::MakeReferenceBackend(1);
  return backend.table;
}

// Seeds of a configuration and of weights.
template <typename Change>
Mutation Config(Change change) {
  return {.parts = [change](ModelParts& parts) { change(parts.config); }, .ops = {}, .options = {}};
}
template <typename Change>
Mutation Layers(Change change) {
  return {.parts =
              [change](ModelParts& parts) {
                for (model::LayerWeights& layer : parts.weights.layers) change(layer);
              },
          .ops = {},
          .options = {}};
}
template <typename Args>
Mutation Op(ops::OpFunction<Args> ops::OpTable::*member, ops::OpFunction<Args> wrong) {
  return {.parts = {}, .ops = [member, wrong](ops::OpTable& table) { table.*member = wrong; }, .options = {}};
}

float* Floats(const TensorView& view) { return view.as<float>(); }

// A tensor of the loader's is shared with the file: a copy that lives as long as the test.
TensorView Filled(const TensorView& like, float value) {
  static std::vector<std::vector<float>> kept;
  kept.emplace_back(static_cast<size_t>(like.num_elements()), value);
  return TensorView::Contiguous(kept.back().data(), DType::kF32, like.shape);
}

Status OwnPre(ops::OpContext& context, const ops::HcPreArgs& args) {
  ops::HcPreArgs own = args;
  own.given = {};
  return Right().hc_pre(context, own);
}

// The weights of the first sub-layer for the second one too.
Status GivenStays(ops::OpContext& context, const ops::HcPreArgs& args) {
  DSV4_RETURN_IF_ERROR(Right().hc_pre(context, args));
  if (!args.given.is_null()) std::copy_n(Floats(args.given), args.given.num_elements(), Floats(args.pre));
  return {};
}

Status MeanCollapse(ops::OpContext& context, const ops::HcHeadArgs& args) {
  ops::HcHeadArgs mean = args;
  std::vector<float> quarters(static_cast<size_t>(args.given.is_null() ? 0 : args.given.num_elements()),
                              1.0F / static_cast<float>(args.streams.shape[1]));
  if (!args.given.is_null())
    mean.given = TensorView::Contiguous(quarters.data(), DType::kF32, args.given.shape);
  return Right().hc_head(context, mean);
}

Status MeanPool(ops::OpContext& context, const ops::CompressorPoolArgs& args) {
  ops::CompressorPoolArgs mean = args;
  std::vector<float> zeros(static_cast<size_t>(args.scores.num_elements()));
  mean.scores = TensorView::Contiguous(zeros.data(), DType::kF32, args.scores.shape);
  return Right().compressor_pool(context, mean);
}

// Entries, which are one row each, rotated as if they were queries' neighbours: one position late.
Status LateRows(ops::OpContext& context, const ops::RopeArgs& args) {
  if (args.x.shape[1] != 1 || args.inverse) return Right().rope(context, args);
  ops::RopeArgs late = args;
  std::vector<int32_t> positions(static_cast<size_t>(args.positions.num_elements()));
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<int32_t>(2 * args.positions.as<const int32_t>()[i] / 2 + 1);
  late.positions = TensorView::Contiguous(positions.data(), DType::kI32, args.positions.shape);
  return Right().rope(context, late);
}

constexpr int64_t kIndexWidth = 32;  // Width of the goldens; heads are wider.

Status KeysNotRotated(ops::OpContext& context, const ops::RopeArgs& args) {
  const bool key = args.x.shape[1] == 1 && args.x.shape[2] == kIndexWidth;
  return key ? Status() : Right().rope(context, args);
}

Status NoInverse(ops::OpContext& context, const ops::RopeArgs& args) {
  return args.inverse ? Status() : Right().rope(context, args);
}

// The newest block is the best only if its score is.
Status Unpinned(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  if (args.best.is_null()) return Right().indexer_select(context, args);
  DSV4_RETURN_IF_ERROR(Right().indexer_select(context, args));
  const int64_t room = args.best.shape[1];
  for (const ops::IndexerSequence& sequence : args.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      const int64_t visible = (sequence.first_position + i + 1) / args.ratio;
      const int64_t newest = (visible - 1) / args.block_size;
      int32_t* const best = args.best.as<int32_t>() + (sequence.token_begin + i) * room;
      if (newest < room) continue;
      // The block in front of it, or the first one, in its place.
      int32_t other = static_cast<int32_t>(newest) - 1;
      while (std::find(best, best + room, other) != best + room) --other;
      best[room - 1] = other;
      std::sort(best, best + room);
    }
  }
  return {};
}

Status BlocksIgnored(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  ops::IndexerSelectArgs free = args;
  free.within = {};
  if (!args.within.is_null()) free.block_size = 0;
  return Right().indexer_select(context, free);
}

// The maker obeys its own blocks.
Status MakerObeys(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  DSV4_RETURN_IF_ERROR(Right().indexer_select(context, args));
  if (args.best.is_null()) return {};
  ops::IndexerSelectArgs again = args;
  again.within = args.best;
  again.best = {};
  return Right().indexer_select(context, again);
}

Status NoSwigluLimit(ops::OpContext& context, const ops::SwigluArgs& args) {
  ops::SwigluArgs free = args;
  free.limit = std::numeric_limits<float>::infinity();
  return Right().swiglu(context, free);
}

Status ValueBeforeKeys(ops::OpContext& context, const ops::EngramMixArgs& args) {
  const int64_t n = args.mixed.shape[0];
  const int64_t dim = args.streams.shape[2];
  const int64_t width = args.mixed.shape[1];
  std::vector<std::byte> bytes(static_cast<size_t>(args.mixed.num_bytes()));
  const int64_t element = ElementBytes(args.mixed.dtype);
  const auto* const from = args.mixed.as<const std::byte>();
  for (int64_t t = 0; t < n; ++t) {
    std::copy_n(from + t * width * element, dim * element,
                bytes.data() + (t * width + width - dim) * element);
    std::copy_n(from + (t * width + dim) * element, (width - dim) * element,
                bytes.data() + t * width * element);
  }
  ops::EngramMixArgs other = args;
  other.mixed = TensorView::Contiguous(bytes.data(), args.mixed.dtype, args.mixed.shape);
  return Right().engram_mix(context, other);
}

Status Rotated(ops::OpContext& context, const ops::HadamardFp4Args& args) {
  ops::HadamardFp4Args rotated = args;
  rotated.rotate = args.scale == CacheScale::kE8m0;
  return Right().hadamard_fp4(context, rotated);
}

Status RoundedInput(ops::OpContext& context, const ops::GroupedLinearArgs& args) {
  std::vector<std::byte> bytes(args.x.as<const std::byte>(),
                               args.x.as<const std::byte>() + args.x.num_bytes());
  ops::GroupedLinearArgs rounded = args;
  rounded.x = TensorView::Contiguous(bytes.data(), args.x.dtype, args.x.shape);
  const int64_t width = args.x.shape[2];
  const TensorView rows = rounded.x.Reshaped({args.x.shape[0] * args.x.shape[1], width});
  DSV4_RETURN_IF_ERROR(Right().simulate_fp8(context, {.x = rows, .num_columns = width, .group = 32}));
  return Right().grouped_linear(context, rounded);
}

// A bf16 tensor in front of the weight, as transformers has it.
Status NormRoundsTwice(ops::OpContext& context, const ops::RmsNormArgs& args) {
  const std::vector<float> ones(static_cast<size_t>(args.weight.num_elements()), 1.0F);
  ops::RmsNormArgs bare = args;
  bare.weight = TensorView::Contiguous(const_cast<float*>(ones.data()), DType::kF32, args.weight.shape);
  DSV4_RETURN_IF_ERROR(Right().rms_norm(context, bare));
  auto* const y = args.y.as<uint16_t>();
  const auto* const weight = args.weight.as<const float>();
  for (int64_t i = 0; i < args.y.num_elements(); ++i)
    y[i] = Bf16FromFloat(FloatFromBf16(y[i]) * weight[i % args.weight.num_elements()]);
  return {};
}

// The pooled rows are a tensor of bf16.
Status PoolsBf16(ops::OpContext& context, const ops::CompressorPoolArgs& args) {
  for (const TensorView& rows : {args.values, args.scores}) {
    for (int64_t i = 0; i < rows.num_elements(); ++i) Floats(rows)[i] = RoundToBf16(Floats(rows)[i]);
  }
  return Right().compressor_pool(context, args);
}

Status NoEngram(ops::OpContext&, const ops::EngramMixArgs&) { return {}; }

Status LooseRouter(ops::OpContext& context, const ops::RouterArgs& args) {
  ops::RouterArgs loose = args;
  loose.normalise = false;
  return Right().router(context, loose);
}

Mutation Owners(const std::function<void(std::vector<LayerPlan>&)>& change) {
  return Config([change](model::ModelConfig& config) { change(config.layers); });
}

void Activations(ModelParts& parts, const std::function<void(model::LayerWeights&)>& change) {
  for (model::LayerWeights& layer : parts.weights.layers) change(layer);
}

// Goldens: "shared" has sources at 2 and 4, choices at 2, 4 and 6, and candidates of layer 4.
std::vector<Mistake> Mistakes() {
  constexpr Numerics kPlain = Numerics::kPlain;
  constexpr Numerics kRelease = Numerics::kRelease;
  return {
      // Hyper-connections.
      {"each sub-layer mixes by its own weights", "shared", kPlain, Op(&ops::OpTable::hc_pre, &OwnPre)},
      {"the first weights stay", "shared", kPlain, Op(&ops::OpTable::hc_pre, &GivenStays)},
      {"the streams' mean in front of the head", "shared", kPlain, Op(&ops::OpTable::hc_head, &MeanCollapse)},
      {"one Sinkhorn iteration", "shared", kPlain, Config([](auto& c) { c.hc_sinkhorn_iters = 1; })},
      // Queries and rotation.
      {"a norm of query heads", "shared", kPlain, Config([](auto& c) { c.norm_query_heads = true; })},
      {"no inverse rotation", "shared", kPlain, Op(&ops::OpTable::rope, &NoInverse)},
      {"rows rotated one position late", "shared", kPlain, Op(&ops::OpTable::rope, &LateRows)},
      {"the plain theta in layers with entries", "shared", kPlain, Config([](auto& c) {
         for (LayerPlan& l : c.layers) l.rope = model::RopeKind::kPlain;
       })},
      {"the compressed theta in layers without", "shared", kPlain, Config([](auto& c) {
         for (LayerPlan& l : c.layers) l.rope = model::RopeKind::kCompressed;
       })},
      {"no YaRN", "shared", kPlain, Config([](auto& c) { c.compress_rope.yarn = false; })},
      {"no sink", "shared", kPlain, Layers([](auto& l) { l.attn_sink = Filled(l.attn_sink, -1e30F); })},
      {"a window one row shorter", "shared", kPlain, Config([](auto& c) { c.sliding_window -= 1; })},
      {"a window one row longer", "shared", kPlain, Config([](auto& c) { c.sliding_window += 1; })},
      // Entries and keys.
      {"a mean in place of the gate", "shared", kPlain, Op(&ops::OpTable::compressor_pool, &MeanPool)},
      {"keys that are not rotated", "shared", kPlain, Op(&ops::OpTable::rope, &KeysNotRotated)},
      {"no norm of keys", "shared", kPlain, Layers([](auto& l) {
         if (l.key_latents) l.key_latents->norm = Filled(l.key_latents->norm, 1);
       })},
      {"no norm of latents", "shared", kPlain, Layers([](auto& l) {
         if (l.compressor) l.compressor->norm = Filled(l.compressor->norm, 1);
       })},
      // Owners.
      {"entries of a source that is gone", "plain16", kPlain,
       Owners([](auto& plans) { plans[3].entries = plans[3].keys = 1; })},
      {"a choice of a source that is gone", "shared", kPlain, Owners([](auto& plans) {
         plans[6].selection = 4, plans[6].keys = plans[6].candidates = -1, plans[7].selection = 4;
       })},
      {"all visible entries in place of the choice", "shared", kPlain,
       Owners([](auto& plans) { plans[3].selection = -1; })},
      {"one entry fewer", "shared", kPlain, Config([](auto& c) { c.index_topk -= 1; })},
      {"one entry more", "shared", kPlain, Config([](auto& c) { c.index_topk += 1; })},
      // Candidates.
      {"no candidates", "shared", kPlain, Owners([](auto& plans) {
         for (LayerPlan& plan : plans) plan.candidates = -1;
       })},
      {"candidates that bind nothing", "shared", kPlain, Op(&ops::OpTable::indexer_select, &BlocksIgnored)},
      {"candidates that bind their maker", "shared", kPlain, Op(&ops::OpTable::indexer_select, &MakerObeys)},
      {"a newest block that is not pinned", "shared", kPlain, Op(&ops::OpTable::indexer_select, &Unpinned)},
      {"one block fewer", "shared", kPlain, Config([](auto& c) { c.candidate_topk_blocks -= 1; })},
      {"blocks of four", "shared", kPlain, Config([](auto& c) { c.candidate_block_size = 4; })},
      // Rounding.
      {"power-of-two scales of entries", "shared", kRelease,
       Config([](auto& c) { c.entry_rows = CacheFormat::Fp4(c.head_dim, 16); })},
      {"entries in groups of 32", "shared", kRelease,
       Config([](auto& c) { c.entry_rows = CacheFormat::Fp4WithE4m3Scales(c.head_dim, 32); })},
      {"entries in FP8", "shared", kRelease,
       Config([](auto& c) { c.entry_rows = CacheFormat::Fp8(c.head_dim, 32); })},
      {"window rows whose rotary part is not rounded", "shared", kRelease,
       Config([](auto& c) { c.window_rows = CacheFormat::Fp8(c.nope_head_dim(), 32); })},
      {"rotated index rows", "shared", kRelease, Op(&ops::OpTable::hadamard_fp4, &Rotated)},
      {"index rows in groups of 16", "shared", kRelease,
       Config([](auto& c) { c.key_rows = CacheFormat::Fp4(c.index_head_dim, 16); })},
      {"activations that are not rounded",
       "shared",
       kRelease,
       {.parts =
            [](ModelParts& parts) {
              Activations(parts, [](auto& l) {
                for (Weight* weight : {&l.wq_a, &l.wq_b, &l.wkv, &l.wo_b})
                  weight->activation = ActivationQuant::kNone;
              });
            },
        .ops = {},
        .options = {}}},
      {"a rounded input of wo_a", "shared", kRelease, Op(&ops::OpTable::grouped_linear, &RoundedInput)},
      {"norms that round in front of the weight", "deep", kRelease,
       Op(&ops::OpTable::rms_norm, &NormRoundsTwice)},
      {"a pool of bf16 rows", "deep", kRelease, Op(&ops::OpTable::compressor_pool, &PoolsBf16)},
      // Experts.
      {"no router temperature", "plain16", kPlain, Config([](auto& c) { c.gate_temp = 1; })},
      {"weights of experts that are not normed", "shared", kPlain, Op(&ops::OpTable::router, &LooseRouter)},
      {"no factor of routed experts", "shared", kPlain, Config([](auto& c) { c.routed_scaling_factor = 1; })},
      {"no bias in the choice of experts", "shared", kPlain,
       Layers([](auto& l) { l.gate_bias = Filled(l.gate_bias, 0); })},
      {"no limit of the shared expert", "shared", kPlain, Op(&ops::OpTable::swiglu, &NoSwigluLimit)},
      {"no limit of experts", "shared", kPlain, Config([](auto& c) { c.swiglu_limit = 0; })},
      // N-gram tables.
      {"no n-gram tables", "engram", kPlain, Op(&ops::OpTable::engram_mix, &NoEngram)},
      {"the value in front of the keys", "engram", kPlain, Op(&ops::OpTable::engram_mix, &ValueBeforeKeys)},
      {"another pad token", "engram", kPlain, Config([](auto& c) { c.engram->pad_token_id = 9; })},
      {"no weight of keys", "engram", kPlain, Layers([](auto& l) {
         if (l.engram) l.engram->k_weight = Filled(l.engram->k_weight, 1);
       })},
      {"n-grams by ids in place of classes",
       "engram",
       kPlain,
       {.parts = [](ModelParts& parts) { parts.config.engram->compressed_vocab_size = 0; },
        .ops = {},
        .options =
            [](model::ModelOptions& options) {
              for (size_t i = 0; i < options.token_classes.size(); ++i)
                options.token_classes[i] = static_cast<int32_t>(i);
            }}},
      // The drafter.
      {"taps behind the layers",
       "dspark",
       kPlain,
       {.parts = [](ModelParts& parts) { parts.weights.dspark->config.taps_inputs = false; },
        .ops = {},
        .options = {}},
       true},
      {"one expert fewer in the drafter",
       "dspark",
       kPlain,
       {.parts = [](ModelParts& parts) { parts.weights.dspark->config.num_experts_per_tok = 1; },
        .ops = {},
        .options = {}},
       true},
      {"other noise",
       "dspark",
       kPlain,
       {.parts = [](ModelParts& parts) { parts.weights.dspark->config.noise_token_id = 3; },
        .ops = {},
        .options = {}},
       true},
      {"no norm of taps",
       "dspark",
       kPlain,
       {.parts =
            [](ModelParts& parts) {
              parts.weights.dspark->main_norm = Filled(parts.weights.dspark->main_norm, 1);
            },
        .ops = {},
        .options = {}},
       true},
  };
}

Comparison Compare(const Mistake& mistake, bool seeded) {
  const std::string golden = std::string("../v41/") + mistake.golden;
  const Json info = ReadJson(ModelDirectory(golden) / "golden.json");
  Mutation mutation = seeded ? mistake.mutation : Mutation();
  mutation.options = [&, change = mutation.options](model::ModelOptions& options) {
    if (info.contains("classes")) options.token_classes = info.at("classes").get<std::vector<int32_t>>();
    if (change) change(options);
  };
  const bool release = mistake.numerics == Numerics::kRelease;
  const std::unique_ptr<model::Model> model =
      LoadGolden(golden, mistake.numerics, mutation, "reference", mistake.drafts);
  const std::vector<int32_t> tokens = GoldenTokens(golden);
  // Release numerics have to have the oracle's bits, so that a mistake needs no row to be far away.
  const std::string kind = release ? "exact.npy" : "plain.npy";
  const std::vector<float> got =
      mistake.drafts ? RunDrafts(*model, tokens, 5) : RunPieces(*model, tokens, {1000});
  const std::vector<float> want =
      GoldenLogits(golden, mistake.drafts ? "logits.dspark." + kind : "logits." + kind);
  return CheckCosines(RowCosines(got, want, model->config().vocab_size),
                      release ? CosineBound{.min = 1 - 1e-12} : PlainBound());
}

class V41Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(V41Mistakes, FailTheirGolden) {
  const Comparison comparison = Compare(GetParam(), true);
  EXPECT_FALSE(comparison.passed) << GetParam().name << " went unnoticed: " << comparison.message;
  std::cout << "  " << GetParam().name << ": " << comparison.message << "\n";
}

INSTANTIATE_TEST_SUITE_P(All, V41Mistakes, ::testing::ValuesIn(Mistakes()), [](const auto& test) {
  std::string name = test.param.name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
});

TEST(V41Mistakes, GoldensPassWithoutThem) {
  for (const char* golden : {"shared", "plain16", "engram", "deep"}) {
    for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
      const Mistake none{.name = "none", .golden = golden, .numerics = numerics, .mutation = {}};
      EXPECT_TRUE(Compare(none, false).passed) << golden;
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
