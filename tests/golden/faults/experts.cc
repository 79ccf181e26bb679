// Mistakes 22 to 24 and 27: routing, experts and the head.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/number_formats.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

enum class Fault : uint8_t { kBiasInWeights, kSoftmax, kSigmoid, kNoSqrt, kNormalisedBefore };

template <Fault F>
std::vector<double> Scores(std::vector<double> logits) {
  double total = 0;
  for (double& value : logits) {
    if (F == Fault::kSoftmax) {
      value = std::exp(value);
    } else if (F == Fault::kSigmoid) {
      value = 1 / (1 + std::exp(-value));
    } else {
      value = std::log1p(std::exp(value));
      if (F != Fault::kNoSqrt) value = std::sqrt(value);
    }
    total += value;
  }
  if (F == Fault::kSoftmax || F == Fault::kNormalisedBefore) {
    for (double& value : logits) value /= total;
  }
  return logits;
}

template <Fault F>
Status Router(ops::OpContext&, const ops::RouterArgs& args) {
  const int64_t experts = args.logits.shape[1];
  const int64_t top_k = args.indices.shape[1];
  const std::vector<double> logits = Values(args.logits);
  const std::vector<double> bias =
      args.bias.is_null() ? std::vector<double>(static_cast<size_t>(experts), 0.0) : Values(args.bias);
  for (int64_t t = 0; t < args.logits.shape[0]; ++t) {
    const std::vector<double> scores =
        Scores<F>({logits.begin() + t * experts, logits.begin() + (t + 1) * experts});
    std::vector<double> biased = scores;
    for (size_t e = 0; e < biased.size(); ++e) biased[e] += bias[e];
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)];
    });
    if (!args.hash_table.is_null()) {
      const auto* row = args.hash_table.as<const int32_t>() + args.token_ids.as<const int32_t>()[t] * top_k;
      std::copy(row, row + top_k, order.begin());
    }
    double total = 0;
    for (int64_t k = 0; k < top_k; ++k) {
      const auto e = static_cast<size_t>(order[static_cast<size_t>(k)]);
      const double weight = F == Fault::kBiasInWeights ? biased[e] : scores[e];
      total += weight;
      args.indices.as<int32_t>()[t * top_k + k] = static_cast<int32_t>(e);
      args.weights.as<float>()[t * top_k + k] = static_cast<float>(weight);
    }
    if (F == Fault::kNormalisedBefore) total = 1;
    for (int64_t k = 0; k < top_k; ++k) {
      args.weights.as<float>()[t * top_k + k] *= args.route_scale / static_cast<float>(total);
    }
  }
  return {};
}

Status HashByPosition(ops::OpContext& context, const ops::RouterArgs& args) {
  if (args.hash_table.is_null()) return Right().router(context, args);
  std::vector<int32_t> positions(static_cast<size_t>(args.logits.shape[0]));
  for (size_t t = 0; t < positions.size(); ++t) {
    positions[t] = static_cast<int32_t>(static_cast<int64_t>(t) % args.hash_table.shape[0]);
  }
  ops::RouterArgs wrong = args;
  wrong.token_ids = TensorView::Contiguous(positions.data(), DType::kI32, args.token_ids.shape);
  return Right().router(context, wrong);
}

// The file's int64 table taken for int32: every other number is a high word, zero.
Status HashAsInt32(ops::OpContext& context, const ops::RouterArgs& args) {
  if (args.hash_table.is_null()) return Right().router(context, args);
  const auto* right = args.hash_table.as<const int32_t>();
  std::vector<int32_t> table(static_cast<size_t>(args.hash_table.num_elements()), 0);
  for (size_t i = 0; i < table.size(); i += 2) table[i] = right[i / 2];
  ops::RouterArgs wrong = args;
  wrong.hash_table = TensorView::Contiguous(table.data(), DType::kI32, args.hash_table.shape);
  return Right().router(context, wrong);
}

// The clamps below are wrong in the shared expert; the routed ones compute theirs inside routed_experts.
template <bool kAfterSilu>
Status GateClamp(ops::OpContext&, const ops::SwigluArgs& args) {
  const std::vector<double> gate = Values(args.gate);
  std::vector<double> values = Values(args.up);
  const double limit = static_cast<double>(args.limit);
  for (size_t i = 0; i < values.size(); ++i) {
    const double g = kAfterSilu ? gate[i] : std::clamp(gate[i], -limit, limit);
    double silu = g / (1 + std::exp(-g));
    if (kAfterSilu) silu = std::min(silu, limit);
    values[i] = silu * std::clamp(values[i], -limit, limit);
  }
  SetValues(args.y, values);
  return {};
}

Status UnnormedHead(ops::OpContext& context, const ops::RmsNormArgs& args) {
  if (args.weight.data != TheScene().final_norm) return Right().rms_norm(context, args);
  SetValues(args.y, Values(args.x));
  return {};
}

Status HeadInBf16(ops::OpContext& context, const ops::LinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Right().linear(context, args));
  if (args.y.dtype != DType::kF32) return {};
  std::vector<double> values = Values(args.y);
  for (double& value : values) value = static_cast<double>(RoundToBf16(static_cast<float>(value)));
  SetValues(args.y, values);
  return {};
}

template <ops::OpFunction<ops::RouterArgs> kOp>
SeededMistake WithRouter() {
  return {.mutation = {.parts = {}, .ops = [](ops::OpTable& table) { table.router = kOp; }, .options = {}}};
}

}  // namespace

void AddExpertMistakes(SeededMistakes& mistakes) {
  mistakes["22-bias-in-weights"] = WithRouter<Router<Fault::kBiasInWeights>>();
  mistakes["22-router-softmax"] = WithRouter<Router<Fault::kSoftmax>>();
  mistakes["22-router-sigmoid"] = WithRouter<Router<Fault::kSigmoid>>();
  mistakes["22-no-sqrt"] = WithRouter<Router<Fault::kNoSqrt>>();
  mistakes["22-normalised-before"] = WithRouter<Router<Fault::kNormalisedBefore>>();
  mistakes["22-no-route-scale"].mutation.parts = [](ModelParts& parts) {
    parts.config.routed_scaling_factor = 1;
  };
  mistakes["22-wrong-route-scale"].mutation.parts = [](ModelParts& parts) {
    parts.config.routed_scaling_factor = 1.5;
  };
  mistakes["23-hash-by-position"] = WithRouter<HashByPosition>();
  mistakes["23-hash-int32"] = WithRouter<HashAsInt32>();
  mistakes["24-gate-clamped-below"].mutation.ops = [](ops::OpTable& table) {
    table.swiglu = GateClamp<false>;
  };
  mistakes["24-clamp-after-silu"].mutation.ops = [](ops::OpTable& table) { table.swiglu = GateClamp<true>; };
  mistakes["24-shared-unclamped"].mutation.options = [](model::ModelOptions& options) {
    options.clamp_shared_expert = false;
  };
  mistakes["24-unclamped"].mutation.parts = [](ModelParts& parts) { parts.config.swiglu_limit = 0; };
  mistakes["27-head-unnormed"].mutation.ops = [](ops::OpTable& table) { table.rms_norm = UnnormedHead; };
  mistakes["27-head-bf16"].mutation.ops = [](ops::OpTable& table) { table.linear = HeadInBf16; };
}

}  // namespace dsv4::testing
