// Reference router: sqrt(softplus) scores, the choice by biased score or by token id, weights normed and
// scaled.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

namespace {

double Softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

// The experts of highest score, equal ones by lowest index, best first. NaN counts as lowest.
std::vector<int64_t> Best(const std::vector<double>& scores, size_t top_k) {
  const auto rank = [&](int64_t i) {
    const double score = scores[static_cast<size_t>(i)];
    return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
  };
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rank(a) > rank(b); });
  order.resize(top_k);
  return order;
}

// The row of the hash table for a token.
Result<std::vector<int64_t>> Hashed(const ops::RouterArgs& args, int64_t token, size_t top_k) {
  const int64_t id = LoadInteger(args.token_ids, token);
  const int64_t vocab_size = args.hash_table.shape[0];
  if (id < 0 || id >= vocab_size) {
    return Error(
        OutOfRange(fmt::format("op router: token_ids[{}]: {}, want 0 to {}", token, id, vocab_size - 1)));
  }
  std::vector<int64_t> chosen(top_k);
  for (size_t k = 0; k < top_k; ++k) {
    chosen[k] = LoadInteger(args.hash_table, id * static_cast<int64_t>(top_k) + static_cast<int64_t>(k));
    if (chosen[k] < 0 || chosen[k] >= args.logits.shape[1]) {
      return Error(OutOfRange(fmt::format("op router: hash_table[{}, {}]: {}, want 0 to {}", id, k, chosen[k],
                                          args.logits.shape[1] - 1)));
    }
  }
  return chosen;
}

}  // namespace

Status Router(ops::OpContext&, const ops::RouterArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_experts = args.logits.shape[1];
  const size_t top_k = static_cast<size_t>(args.indices.shape[1]);
  std::vector<double> bias(static_cast<size_t>(num_experts), 0.0);
  if (!args.bias.is_null()) bias = LoadAll(args.bias);
  std::vector<double> affinity(bias.size());
  std::vector<double> steered(bias.size());
  std::vector<double> weights(top_k);
  for (int64_t t = 0; t < args.logits.shape[0]; ++t) {
    LoadRow(args.logits, t, affinity);
    for (double& value : affinity) value = std::sqrt(Softplus(value / static_cast<double>(args.temperature)));
    std::vector<int64_t> chosen;
    if (args.hash_table.is_null()) {
      for (size_t e = 0; e < bias.size(); ++e) steered[e] = affinity[e] + bias[e];
      chosen = Best(steered, top_k);
    } else {
      DSV4_ASSIGN_OR_RETURN_STATUS(chosen, Hashed(args, t, top_k));
    }
    // The bias steers the choice only.
    double sum = static_cast<double>(args.sum_eps);
    for (const int64_t expert : chosen) sum += affinity[static_cast<size_t>(expert)];
    for (size_t k = 0; k < top_k; ++k) {
      weights[k] = affinity[static_cast<size_t>(chosen[k])] / (args.normalise ? sum : 1.0) *
                   static_cast<double>(args.route_scale);
      args.indices.as<int32_t>()[t * args.indices.shape[1] + static_cast<int64_t>(k)] =
          static_cast<int32_t>(chosen[k]);
    }
    StoreRow(weights, args.weights, t);
  }
  return {};
}

}  // namespace dsv4::backend::reference
