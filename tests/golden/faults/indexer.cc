// Mistakes 20 and 21: the indexer.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/reference/values.h"
#include "formats/number_formats.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

enum class Fault : uint8_t { kSkipped, kNoRelu, kSoftmaxWeights };

// One sequence from position 0, the whole prompt at once.
template <Fault F>
Status Select(ops::OpContext&, const ops::IndexerSelectArgs& args) {
  const ops::IndexerSequence& sequence = args.sequences[0];
  const auto heads = static_cast<size_t>(args.q.shape[1]);
  const int64_t width = args.q.shape[2];
  const int64_t top_k = args.selected.shape[1];
  const std::vector<double> q = Values(args.q);
  const std::vector<double> weights = Values(args.weights);
  // The weights come scaled by this.
  const double scale = 1 / std::sqrt(static_cast<double>(width) * static_cast<double>(heads));
  std::vector<std::vector<double>> keys;
  for (int64_t j = 0; j < sequence.keys.num_rows; ++j) {
    keys.emplace_back(static_cast<size_t>(width));
    backend::reference::LoadPagedRow(sequence.keys, j, keys.back());
    if (F == Fault::kSkipped && j < top_k) std::fill(keys.back().begin(), keys.back().end(), 0.0);
  }
  for (int64_t t = 0; t < sequence.num_tokens; ++t) {
    const int64_t count = (t + 1) / args.ratio;
    std::vector<double> w(weights.begin() + t * static_cast<int64_t>(heads),
                          weights.begin() + (t + 1) * static_cast<int64_t>(heads));
    if (F == Fault::kSoftmaxWeights) {
      double total = 0;
      for (double& value : w) total += value = std::exp(value / scale);
      for (double& value : w) value *= scale / total;
    }
    std::vector<double> scores(static_cast<size_t>(count), 0.0);
    for (size_t j = 0; j < scores.size(); ++j) {
      for (size_t h = 0; h < heads; ++h) {
        const double* query = q.data() + (static_cast<size_t>(t) * heads + h) * static_cast<size_t>(width);
        const double dot = backend::reference::Dot(query, keys[j].data(), width);
        scores[j] += w[h] * (F == Fault::kNoRelu ? dot : std::max(dot, 0.0));
      }
    }
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(std::min(count, top_k)));
    std::sort(order.begin(), order.end());
    order.resize(static_cast<size_t>(top_k), -1);
    std::copy(order.begin(), order.end(), args.selected.as<int32_t>() + t * top_k);
  }
  return {};
}

bool IsIndexer(const TensorView& x) { return x.shape[2] == TheScene().config.index_head_dim; }

Status NoIndexerRope(ops::OpContext& context, const ops::RopeArgs& args) {
  return IsIndexer(args.x) ? Status() : Right().rope(context, args);
}

Status IndexerKeyRopeOnly(ops::OpContext& context, const ops::RopeArgs& args) {
  return IsIndexer(args.x) && args.x.shape[1] > 1 ? Status() : Right().rope(context, args);
}

// FP4 rounding without the rotation before it.
Status Fp4Only(ops::OpContext&, const ops::HadamardFp4Args& args) {
  std::vector<double> values = Values(args.x);
  const auto group = static_cast<size_t>(ops::kIndexerFp4Group);
  for (size_t begin = 0; begin < values.size(); begin += group) {
    float amax = std::ldexp(6.0F, -126);
    for (size_t i = begin; i < begin + group; ++i)
      amax = std::max(amax, static_cast<float>(std::abs(values[i])));
    const double scale = std::ldexp(1.0, CeilLog2(amax * (1.0F / 6.0F)));
    for (size_t i = begin; i < begin + group; ++i) {
      const auto scaled = static_cast<float>(values[i] / scale);
      values[i] = static_cast<double>(FloatFromE2m1(E2m1FromFloat(scaled))) * scale;
    }
  }
  SetValues(args.x, values);
  return {};
}

// Keys come one row for each entry, queries one for each token and head.
Status QueryHadamardOnly(ops::OpContext& context, const ops::HadamardFp4Args& args) {
  const bool keys = args.x.shape[0] <= TheScene().num_tokens;
  return keys ? Fp4Only(context, args) : Right().hadamard_fp4(context, args);
}

bool Contains(const std::vector<const void*>& addresses, const void* address) {
  return std::find(addresses.begin(), addresses.end(), address) != addresses.end();
}

// The indexer's wq_b gets what was saved instead of its input.
Status LinearFromSaved(ops::OpContext& context, const ops::LinearArgs& args) {
  Scene& scene = TheScene();
  if (Contains(scene.wq_a, args.weight->data.data) && scene.saved.empty()) scene.saved = Values(args.x);
  if (!Contains(scene.indexer_wq_b, args.weight->data.data)) return Right().linear(context, args);
  std::vector<float> input;
  for (const double value : scene.saved) input.push_back(static_cast<float>(value));
  ops::LinearArgs wrong = args;
  wrong.x = TensorView::Contiguous(input.data(), DType::kF32, args.x.shape);
  return Right().linear(context, wrong);
}

// Before each layer's q_norm: keeps its input, and what LinearFromSaved kept goes.
Status SaveUnnormed(ops::OpContext& context, const ops::RmsNormArgs& args) {
  if (Contains(TheScene().q_norm, args.weight.data)) TheScene().saved = Values(args.x);
  return Right().rms_norm(context, args);
}

// The attention ends a layer's use of what was saved.
Status ForgetSaved(ops::OpContext& context, const ops::AttentionArgs& args) {
  TheScene().saved.clear();
  return Right().attention(context, args);
}

template <ops::OpFunction<ops::IndexerSelectArgs> kOp>
SeededMistake WithSelect() {
  return {.mutation = {
              .parts = {}, .ops = [](ops::OpTable& table) { table.indexer_select = kOp; }, .options = {}}};
}

}  // namespace

void AddIndexerMistakes(SeededMistakes& mistakes) {
  mistakes["20-indexer-skipped"] = WithSelect<Select<Fault::kSkipped>>();
  mistakes["21-no-relu"] = WithSelect<Select<Fault::kNoRelu>>();
  mistakes["21-weights-softmax"] = WithSelect<Select<Fault::kSoftmaxWeights>>();
  mistakes["21-indexer-no-rope"].mutation.ops = [](ops::OpTable& table) { table.rope = NoIndexerRope; };
  mistakes["21-indexer-rope-one-side"].mutation.ops = [](ops::OpTable& table) {
    table.rope = IndexerKeyRopeOnly;
  };
  mistakes["21-indexer-from-hidden"].mutation.ops = [](ops::OpTable& table) {
    table.linear = LinearFromSaved;
    table.attention = ForgetSaved;
  };
  mistakes["21-indexer-unnormed"].mutation.ops = [](ops::OpTable& table) {
    table.rms_norm = SaveUnnormed;
    table.linear = LinearFromSaved;
    table.attention = ForgetSaved;
  };
  mistakes["21-hadamard-one-side"].mutation.ops = [](ops::OpTable& table) {
    table.hadamard_fp4 = QueryHadamardOnly;
  };
  mistakes["21-no-hadamard"].mutation.ops = [](ops::OpTable& table) { table.hadamard_fp4 = Fp4Only; };
  mistakes["21-other-topk"].mutation.parts = [](ModelParts& parts) { parts.config.index_topk = 16; };
  mistakes["21-select-all"].mutation.parts = [](ModelParts& parts) { parts.config.index_topk = 300; };
}

}  // namespace dsv4::testing
