// The graph as a whole: what an observer sees, that every parameter is used, and checkpoints from disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/graph/recorder.h"
#include "tests/graph/runs.h"

namespace dsv4::test {
namespace {

using model::Model;
using model::Numerics;
using ::testing::HasSubstr;

// The table in model/graph/observer.h, with shapes of the toy for n tokens.
std::map<std::string, Shape> ExpectedTensors(const model::ModelConfig& c, const model::LayerPlan& layer,
                                             int64_t n, int64_t num_entries) {
  const int64_t d = c.head_dim;
  const int64_t hc = c.hc_mult;
  std::map<std::string, Shape> want = {{"attn.q_a", {n, c.q_lora_rank}},
                                       {"attn.q_lora", {n, c.q_lora_rank}},
                                       {"attn.q_b", {n, c.q_dim()}},
                                       {"attn.q_norm", {n, c.num_attention_heads, d}},
                                       {"attn.q", {n, c.num_attention_heads, d}},
                                       {"attn.kv_a", {n, d}},
                                       {"attn.kv_norm", {n, d}},
                                       {"attn.kv", {n, d}},
                                       {"attn.o", {n, c.num_attention_heads, d}},
                                       {"attn.o_unrotated", {n, c.num_attention_heads, d}},
                                       {"attn.o_lora", {n, c.o_groups, c.o_lora_rank}},
                                       {"attn.out", {n, c.hidden_size}},
                                       {"ffn.router.logits", {n, c.n_routed_experts}},
                                       {"ffn.router.indices", {n, c.num_experts_per_tok}},
                                       {"ffn.router.weights", {n, c.num_experts_per_tok}},
                                       {"ffn.routed", {n, c.hidden_size}},
                                       {"ffn.shared.hidden", {n, c.moe_intermediate_size}},
                                       {"ffn.shared", {n, c.hidden_size}},
                                       {"ffn.out", {n, c.hidden_size}}};
  for (const std::string part : {"attn", "ffn"}) {
    want[part + ".hc_pre"] = {n, c.hidden_size};
    want[part + ".hc_post"] = {n, hc};
    want[part + ".hc_comb"] = {n, hc, hc};
    want[part + ".norm"] = {n, c.hidden_size};
    want[part + ".streams"] = {n, hc, c.hidden_size};
  }
  const auto add_compressor = [&](const std::string& prefix, int64_t width) {
    const int64_t channels = layer.overlap;
    want[prefix + "compressor.values"] = {n, channels * width};
    want[prefix + "compressor.scores"] = {n, channels * width};
    want[prefix + "compressor.pooled"] = {num_entries, width};
    want[prefix + "compressor.norm"] = {num_entries, width};
    want[prefix + "compressed"] = {num_entries, width};
  };
  if (layer.makes_entries()) add_compressor("attn.", d);
  if (layer.selects()) {
    add_compressor("attn.indexer.", c.index_head_dim);
    want["attn.indexer.q_b"] = {n, c.index_n_heads * c.index_head_dim};
    want["attn.indexer.q"] = {n, c.index_n_heads, c.index_head_dim};
    want["attn.indexer.weights"] = {n, c.index_n_heads};
    want["attn.indexer.selected"] = {n, c.index_topk};
  }
  return want;
}

TEST(Observer, SeesEveryDocumentedTensorAndNoOther) {
  const auto model = MakeToyModel({}, ToyModelOptions(Numerics::kRelease));
  const model::ModelConfig& c = model->config();
  constexpr int64_t kTokens = 27;
  Recorder recorder;
  RunInChunks(*model, RandomTokens(kTokens, 1), kTokens, &recorder);
  for (int layer = -1; layer < static_cast<int>(c.num_hidden_layers); ++layer) {
    std::map<std::string, Shape> want;
    if (layer < 0) {
      want = {{"pass.token_ids", {kTokens}},
              {"pass.positions", {kTokens}},
              {"pass.chunks", {kTokens}},
              {"embed", {kTokens, c.hc_mult, c.hidden_size}},
              {"head.streams", {kTokens, c.hc_mult, c.hidden_size}},
              {"head.hc", {kTokens, c.hidden_size}},
              {"head.norm", {kTokens, c.hidden_size}},
              {"logits", {kTokens, c.vocab_size}}};
    } else {
      const model::LayerPlan& config = c.layers[static_cast<size_t>(layer)];
      want = ExpectedTensors(c, config, kTokens, config.VisibleEntries(kTokens - 1));
    }
    std::map<std::string, Shape> got;
    for (const auto& [key, tensor] : recorder.tensors()) {
      if (key.first == layer) got[key.second] = tensor.last_shape;
    }
    for (const auto& [name, shape] : want) {
      ASSERT_TRUE(got.contains(name)) << "layer " << layer << ": " << name;
      EXPECT_EQ(got[name].ToString(), shape.ToString()) << "layer " << layer << ": " << name;
    }
    for (const auto& [name, shape] : got)
      EXPECT_TRUE(want.contains(name)) << "layer " << layer << ": " << name;
  }
}

TEST(Observer, TellsWhichRowBelongsToWhom) {
  const auto model = MakeToyModel({}, ToyModelOptions(Numerics::kRelease));
  kv::SequenceState a = NewSequence(*model);
  kv::SequenceState b = NewSequence(*model);
  RunTokens(*model, b, RandomTokens(5, 1));
  const std::vector<int32_t> ids = {7, 8, 9};
  const std::vector<model::SequenceChunk> chunks = {{&a, ids}, {&b, std::span(ids).first(1)}};
  Recorder recorder;
  ASSERT_TRUE(model->Step(chunks, &recorder).has_value());
  EXPECT_EQ(recorder.Get(-1, "pass.token_ids").values, (std::vector<float>{7, 8, 9, 7}));
  EXPECT_EQ(recorder.Get(-1, "pass.positions").values, (std::vector<float>{0, 1, 2, 5}));
  EXPECT_EQ(recorder.Get(-1, "pass.chunks").values, (std::vector<float>{0, 0, 0, 1}));
  EXPECT_EQ(recorder.Get(-1, "logits").num_rows, 2);
}

// No number of the configuration and no tensor is there for show: changing any one changes the logits.
TEST(Graph, EveryParameterAndWeightCounts) {
  const std::vector<int64_t> ratios = {0, 4, 8, 4};
  const auto tokens = RandomTokens(40, 6);
  const auto logits_of = [&](ToyOptions options, bool clamp = true) {
    options.ratios = ratios;
    auto model_options = ToyModelOptions(Numerics::kPlain);
    model_options.clamp_shared_expert = clamp;
    return RunInChunks(*MakeToyModel(options, model_options), tokens, 64);
  };
  const std::vector<float> base = logits_of({.format = ToyFormat::kF32});
  EXPECT_NE(logits_of({.format = ToyFormat::kF32}, /*clamp=*/false), base);

  using model::ModelConfig;
  using model::ModelWeights;
  const auto nudge = [](const TensorView& tensor) { tensor.as<float>()[tensor.num_elements() / 2] += 0.5F; };
  struct Case {
    std::string name;
    std::function<void(ModelConfig&, ModelWeights&)> edit;
  };
  std::vector<Case> cases = {
      {"sliding_window", [](ModelConfig& c, ModelWeights&) { ++c.sliding_window; }},
      {"index_topk", [](ModelConfig& c, ModelWeights&) { ++c.index_topk; }},
      {"num_experts_per_tok",
       [](ModelConfig& c, ModelWeights& w) {
         c.num_experts_per_tok = 3;  // The tables of hash layers have two columns.
         for (auto& layer : c.layers) layer.router = model::RouterKind::kScores;
         for (auto& layer : w.layers) layer.tid2eid = {};
       }},
      {"routed_scaling_factor", [](ModelConfig& c, ModelWeights&) { c.routed_scaling_factor = 2.5; }},
      {"swiglu_limit", [](ModelConfig& c, ModelWeights&) { c.swiglu_limit = 0; }},
      {"hc_sinkhorn_iters", [](ModelConfig& c, ModelWeights&) { c.hc_sinkhorn_iters = 1; }},
      {"hc_eps", [](ModelConfig& c, ModelWeights&) { c.hc_eps = 1e-2; }},
      {"rms_norm_eps", [](ModelConfig& c, ModelWeights&) { c.rms_norm_eps = 1e-2; }},
      {"rope_theta", [](ModelConfig& c, ModelWeights&) { c.rope.theta = 20000; }},
      {"compress_rope_theta", [](ModelConfig& c, ModelWeights&) { c.compress_rope.theta = 20000; }},
      {"yarn factor", [](ModelConfig& c, ModelWeights&) { c.compress_rope.factor = 1; }},
      {"norm", [&](ModelConfig&, ModelWeights& w) { nudge(w.norm); }},
      {"hc_head.fn", [&](ModelConfig&, ModelWeights& w) { nudge(w.hc_head.fn); }},
      {"hc_head.base", [&](ModelConfig&, ModelWeights& w) { nudge(w.hc_head.base); }},
      {"hc_head.scale", [&](ModelConfig&, ModelWeights& w) { nudge(w.hc_head.scale); }},
      {"head", [&](ModelConfig&, ModelWeights& w) { w.head.data.as<uint16_t>()[5] ^= 0x80; }},
      {"embed",
       [&](ModelConfig&, ModelWeights& w) {
         for (int64_t i = 0; i < kToyVocab; ++i) w.embed.data.as<uint16_t>()[i * 32 + 3] ^= 0x8000;
       }},
  };
  for (size_t i = 0; i < ratios.size(); ++i) {
    const auto add = [&, i](const std::string& name, std::function<void(model::LayerWeights&)> edit) {
      cases.push_back({"layer " + std::to_string(i) + " " + name,
                       [i, edit](ModelConfig&, ModelWeights& w) { edit(w.layers[i]); }});
    };
    const auto add_tensor = [&](const std::string& name, auto get) {
      add(name, [&nudge, get](model::LayerWeights& w) { nudge(get(w)); });
    };
    using Layer = model::LayerWeights;
    add_tensor("attn_norm", [](Layer& w) { return w.attn_norm; });
    add_tensor("ffn_norm", [](Layer& w) { return w.ffn_norm; });
    add_tensor("hc_attn.fn", [](Layer& w) { return w.hc_attn.fn; });
    add_tensor("hc_attn.base", [](Layer& w) { return w.hc_attn.base; });
    add_tensor("hc_attn.scale", [](Layer& w) { return w.hc_attn.scale; });
    add_tensor("hc_ffn.fn", [](Layer& w) { return w.hc_ffn.fn; });
    add_tensor("hc_ffn.base", [](Layer& w) { return w.hc_ffn.base; });
    add_tensor("hc_ffn.scale", [](Layer& w) { return w.hc_ffn.scale; });
    add_tensor("q_norm", [](Layer& w) { return w.q_norm; });
    add_tensor("kv_norm", [](Layer& w) { return w.kv_norm; });
    add_tensor("attn_sink", [](Layer& w) { return w.attn_sink; });
    add_tensor("wq_a", [](Layer& w) { return w.wq_a.data; });
    add_tensor("wq_b", [](Layer& w) { return w.wq_b.data; });
    add_tensor("wkv", [](Layer& w) { return w.wkv.data; });
    add_tensor("wo_a", [](Layer& w) { return w.wo_a.data; });
    add_tensor("wo_b", [](Layer& w) { return w.wo_b.data; });
    add_tensor("gate", [](Layer& w) { return w.gate.data; });
    add_tensor("shared w1", [](Layer& w) { return w.shared_expert.w1.data; });
    add_tensor("shared w2", [](Layer& w) { return w.shared_expert.w2.data; });
    add_tensor("shared w3", [](Layer& w) { return w.shared_expert.w3.data; });
    add_tensor("expert w1", [](Layer& w) { return w.experts[1].w1.data; });
    add_tensor("expert w2", [](Layer& w) { return w.experts[1].w2.data; });
    add_tensor("expert w3", [](Layer& w) { return w.experts[1].w3.data; });
    const int64_t ratio = ratios[i];
    if (static_cast<int64_t>(i) < ToyOptions{}.num_hash_layers) {
      add("tid2eid", [](Layer& w) {
        for (int64_t t = 0; t < kToyVocab; ++t)
          std::swap(w.tid2eid.as<int32_t>()[2 * t], w.tid2eid.as<int32_t>()[2 * t + 1]);
        for (int64_t t = 0; t < kToyVocab; ++t)
          w.tid2eid.as<int32_t>()[2 * t] = (w.tid2eid.as<int32_t>()[2 * t] + 2) % 6;
      });
    } else {
      add("gate bias", [](Layer& w) { w.gate_bias.as<float>()[2] += 5; });
    }
    if (ratio > 0) {
      add_tensor("compressor wkv", [](Layer& w) { return w.compressor->wkv.data; });
      add_tensor("compressor wgate", [](Layer& w) { return w.compressor->wgate.data; });
      add_tensor("compressor ape", [](Layer& w) { return w.compressor->ape; });
      add_tensor("compressor norm", [](Layer& w) { return w.compressor->norm; });
    }
    if (ratio == 4) {
      // These act through the choice alone, so the change must be large enough to move one.
      add("indexer wq_b", [](Layer& w) {
        for (int64_t k = 0; k < w.indexer->wq_b.data.num_elements(); k += 3)
          w.indexer->wq_b.data.as<float>()[k] *= -1;
      });
      add("indexer weights_proj", [](Layer& w) {
        for (int64_t k = 0; k < w.indexer->weights_proj.data.num_elements(); k += 3) {
          w.indexer->weights_proj.data.as<float>()[k] *= -1;
        }
      });
      add("indexer compressor wkv", [](Layer& w) {
        for (int64_t k = 0; k < w.key_compressor->wkv.data.num_elements(); k += 3) {
          w.key_compressor->wkv.data.as<float>()[k] *= -1;
        }
      });
      add("indexer compressor wgate", [](Layer& w) {
        for (int64_t k = 0; k < w.key_compressor->wgate.data.num_elements(); k += 3) {
          w.key_compressor->wgate.data.as<float>()[k] *= -4;
        }
      });
      add("indexer compressor ape", [](Layer& w) {
        for (int64_t k = 0; k < w.key_compressor->ape.num_elements(); k += 3) {
          w.key_compressor->ape.as<float>()[k] *= -4;
        }
      });
      add("indexer compressor norm", [](Layer& w) {
        for (int64_t k = 0; k < w.key_compressor->norm.num_elements(); k += 3) {
          w.key_compressor->norm.as<float>()[k] *= -4;
        }
      });
    }
  }
  for (const Case& one : cases) {
    EXPECT_NE(logits_of({.format = ToyFormat::kF32, .edit = one.edit}), base) << one.name;
  }
}

TEST(Graph, EachRatioCounts) {
  const auto tokens = RandomTokens(140, 6);
  const auto logits_of = [&](std::vector<int64_t> ratios) {
    return RunInChunks(*MakeToyModel({.format = ToyFormat::kF32, .ratios = std::move(ratios)},
                                     ToyModelOptions(Numerics::kPlain)),
                       tokens, 64);
  };
  const auto base = logits_of({0, 4, 8, 128});
  for (const auto& other :
       {std::vector<int64_t>{0, 4, 7, 128}, {0, 4, 8, 127}, {0, 0, 8, 128}, {5, 4, 8, 128}}) {
    EXPECT_NE(logits_of(other), base);
  }
}

class CheckpointTest : public ::testing::Test {
 protected:
  static constexpr const char* kDirectory = "tests/golden/models/bf16";
  static Result<std::unique_ptr<Model>> Load(int64_t max_layers) {
    model::ModelOptions options;
    options.max_layers = max_layers;
    return Model::Load(kDirectory, ToyBackend(), options);
  }
};

TEST_F(CheckpointTest, MaxLayersRunsOnlyTheFirst) {
  const auto full = Load(0);
  ASSERT_TRUE(full.has_value()) << full.error().ToString();
  const int64_t num_layers = (*full)->config().num_hidden_layers;
  EXPECT_EQ((*full)->num_layers(), num_layers);
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  Recorder whole;
  kv::SequenceState whole_state = NewSequence(**full);
  std::vector<float> previous = RunTokens(**full, whole_state, tokens, &whole);
  for (int64_t layers = 1; layers <= num_layers; ++layers) {
    const auto part = Load(layers);
    ASSERT_TRUE(part.has_value()) << part.error().ToString();
    EXPECT_EQ((*part)->num_layers(), layers);
    Recorder recorder;
    kv::SequenceState state = NewSequence(**part);
    const auto logits = RunTokens(**part, state, tokens, &recorder);
    EXPECT_TRUE(recorder.Has(static_cast<int>(layers) - 1, "ffn.streams"));
    EXPECT_FALSE(recorder.Has(static_cast<int>(layers), "attn.norm"));
    // The layers that run compute what they compute in the whole model.
    EXPECT_EQ(recorder.Get(static_cast<int>(layers) - 1, "ffn.streams").values,
              whole.Get(static_cast<int>(layers) - 1, "ffn.streams").values);
    EXPECT_EQ(logits == previous, layers == num_layers);
  }
}

TEST_F(CheckpointTest, MaxLayersOutOfRangeIsNamed) {
  for (const int64_t layers : {int64_t{-1}, int64_t{1000}}) {
    const auto made = Load(layers);
    ASSERT_FALSE(made.has_value());
    EXPECT_THAT(made.error().ToString(), HasSubstr("max_layers: got " + std::to_string(layers)));
  }
}

TEST_F(CheckpointTest, ProgressReachesTheEnd) {
  std::vector<std::pair<int64_t, int64_t>> calls;
  model::ModelOptions options;
  options.progress = [&](const model::LoadProgress& p) {
    calls.emplace_back(p.layers, p.num_layers);
    return Status();
  };
  const auto made = Model::Load(kDirectory, ToyBackend(), options);
  ASSERT_TRUE(made.has_value());
  ASSERT_FALSE(calls.empty());
  EXPECT_EQ(calls.back().first, calls.back().second);
  EXPECT_EQ(calls.back().second, (*made)->num_layers());
}

}  // namespace
}  // namespace dsv4::test
