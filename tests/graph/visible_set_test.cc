// Which keys each query sees, at every position, seen through the numbers. With all queries zero, attention
// is the plain mean over the visible keys; the sink counts as exp(sink) keys of value zero. So one key too
// many or too few shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/graph/recorder.h"
#include "tests/graph/runs.h"

namespace dsv4::test {
namespace {

using model::Model;
using model::Numerics;

constexpr int64_t kNumPositions = 1101;
constexpr float kSink = 0.5F;

std::unique_ptr<Model> ModelWithZeroQueries() {
  ToyOptions options{.format = ToyFormat::kF32, .ratios = {0, 4, 8, 128}};
  options.edit = [](model::ModelConfig&, model::ModelWeights& weights) {
    for (model::LayerWeights& layer : weights.layers) {
      std::fill_n(layer.wq_b.data.as<float>(), layer.wq_b.data.num_elements(), 0.0F);
      std::fill_n(layer.attn_sink.as<float>(), layer.attn_sink.num_elements(), kSink);
    }
  };
  return MakeToyModel(options, ToyModelOptions(Numerics::kPlain));
}

// The entries an indexer should keep: the best index_topk of the visible ones, equal scores by lowest index.
std::vector<int64_t> BruteForceSelection(const Recorder& recorder, int layer, int64_t position,
                                         int64_t num_visible, const model::ModelConfig& config) {
  const auto q = recorder.Get(layer, "attn.indexer.q").Row(position);
  const auto weights = recorder.Get(layer, "attn.indexer.weights").Row(position);
  const Recorder::Tensor& keys = recorder.Get(layer, "attn.indexer.compressed");
  std::vector<double> scores(static_cast<size_t>(num_visible), 0.0);
  for (int64_t j = 0; j < num_visible; ++j) {
    for (int64_t h = 0; h < config.index_n_heads; ++h) {
      double dot = 0;
      for (int64_t i = 0; i < config.index_head_dim; ++i) {
        dot += static_cast<double>(q[static_cast<size_t>(h * config.index_head_dim + i)]) *
               static_cast<double>(keys.Row(j)[static_cast<size_t>(i)]);
      }
      scores[static_cast<size_t>(j)] +=
          static_cast<double>(weights[static_cast<size_t>(h)]) * std::max(dot, 0.0);
    }
  }
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(config.index_topk)));
  std::ranges::sort(order);
  return order;
}

std::vector<int64_t> Selected(const Recorder& recorder, int layer, int64_t position) {
  std::vector<int64_t> entries;
  for (const float entry : recorder.Get(layer, "attn.indexer.selected").Row(position)) {
    if (entry >= 0) entries.push_back(static_cast<int64_t>(entry));
  }
  return entries;
}

void ExpectVisibleSets(const Model& model, const Recorder& recorder, int64_t num_positions) {
  const model::ModelConfig& config = model.config();
  for (int layer = 0; layer < static_cast<int>(config.num_hidden_layers); ++layer) {
    const model::LayerPlan& kind = config.layers[static_cast<size_t>(layer)];
    const Recorder::Tensor& kv = recorder.Get(layer, "attn.kv");
    const Recorder::Tensor& o = recorder.Get(layer, "attn.o");
    if (kind.sees_entries()) {
      ASSERT_EQ(recorder.Get(layer, "attn.compressed").num_rows, num_positions / kind.ratio);
    }
    for (int64_t p = 0; p < num_positions; ++p) {
      std::vector<double> sum(static_cast<size_t>(config.head_dim), 0.0);
      double count = 0;
      const auto see = [&](std::span<const float> key) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(key[i]);
        ++count;
      };
      for (int64_t t = std::max<int64_t>(0, p - config.sliding_window + 1); t <= p; ++t) see(kv.Row(t));
      if (kind.sees_entries()) {
        const int64_t num_visible = (p + 1) / kind.ratio;
        std::vector<int64_t> entries(static_cast<size_t>(num_visible));
        std::iota(entries.begin(), entries.end(), 0);
        if (kind.reads_selection()) {
          entries = BruteForceSelection(recorder, layer, p, num_visible, config);
          ASSERT_EQ(Selected(recorder, layer, p), entries) << "layer " << layer << ", position " << p;
        }
        for (const int64_t j : entries) see(recorder.Get(layer, "attn.compressed").Row(j));
      }
      for (size_t i = 0; i < o.Row(p).size(); ++i) {
        const double want = sum[i % sum.size()] / (count + std::exp(static_cast<double>(kSink)));
        ASSERT_NEAR(o.Row(p)[i], want, 1e-6) << "layer " << layer << ", position " << p << ", element " << i;
      }
    }
  }
}

TEST(VisibleSet, PrefillSeesExactlyTheRule) {
  const auto model = ModelWithZeroQueries();
  Recorder recorder;
  RunInChunks(*model, RandomTokens(kNumPositions, 3), kNumPositions, &recorder);
  ExpectVisibleSets(*model, recorder, kNumPositions);
}

TEST(VisibleSet, DecodeSeesExactlyTheRule) {
  const auto model = ModelWithZeroQueries();
  Recorder recorder;
  RunInChunks(*model, RandomTokens(280, 3), 1, &recorder);
  ExpectVisibleSets(*model, recorder, 280);
}

}  // namespace
}  // namespace dsv4::test
