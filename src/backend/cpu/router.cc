// Op router on the CPU: scores of experts, the choice by score and bias or by token id, and normed weights.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

double Affinity(float logit, double temperature) {
  const double x = static_cast<double>(logit) / temperature;
  return std::sqrt(x > 20.0 ? x : std::log1p(std::exp(x)));
}

// The experts of highest score into `chosen`, equal ones by lowest index, best first. NaN counts as lowest.
void Best(std::vector<double>& scores, std::vector<int64_t>& order, std::vector<int64_t>& chosen) {
  for (double& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<double>::infinity();
  }
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort_copy(order.begin(), order.end(), chosen.begin(), chosen.end(), [&](int64_t a, int64_t b) {
    const double score_a = scores[static_cast<size_t>(a)];
    const double score_b = scores[static_cast<size_t>(b)];
    return score_a > score_b || (score_a == score_b && a < b);
  });
}

// The row of the hash table for a token.
Status Hashed(const ops::RouterArgs& args, int64_t token, std::vector<int64_t>& chosen) {
  const int64_t id = LoadInteger(args.token_ids, token);
  const int64_t vocab_size = args.hash_table.shape[0];
  if (id < 0 || id >= vocab_size) {
    return OutOfRange(fmt::format("op router: token_ids[{}]: {}, want 0 to {}", token, id, vocab_size - 1));
  }
  for (size_t k = 0; k < chosen.size(); ++k) {
    chosen[k] = LoadInteger(args.hash_table, id * args.hash_table.shape[1] + static_cast<int64_t>(k));
    if (chosen[k] < 0 || chosen[k] >= args.logits.shape[1]) {
      return OutOfRange(fmt::format("op router: hash_table[{}, {}]: {}, want 0 to {}", id, k, chosen[k],
                                    args.logits.shape[1] - 1));
    }
  }
  return {};
}

}  // namespace

Status Router(ops::OpContext& context, const ops::RouterArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  const int64_t num_experts = args.logits.shape[1];
  const int64_t top_k = args.indices.shape[1];
  std::vector<float> bias(static_cast<size_t>(num_experts), 0.0F);
  if (!args.bias.is_null()) bias = LoadAll(kernels, args.bias);
  std::vector<Status> statuses(static_cast<size_t>(args.logits.shape[0]));
  constexpr int64_t kExpertsPerTask = 512;
  const int64_t grain = std::max<int64_t>(1, kExpertsPerTask / std::max<int64_t>(1, num_experts));
  context.threads().ParallelFor(args.logits.shape[0], grain, [&](int64_t begin, int64_t end) {
    std::vector<double> affinity(bias.size());
    std::vector<double> steered(bias.size());
    std::vector<int64_t> order(bias.size());
    std::vector<int64_t> chosen(static_cast<size_t>(top_k));
    for (int64_t t = begin; t < end; ++t) {
      const float* const logits = args.logits.as<const float>() + t * num_experts;
      std::transform(logits, logits + num_experts, affinity.begin(),
                     [&](float logit) { return Affinity(logit, static_cast<double>(args.temperature)); });
      if (args.hash_table.is_null()) {
        for (size_t e = 0; e < bias.size(); ++e) steered[e] = affinity[e] + static_cast<double>(bias[e]);
        Best(steered, order, chosen);
      } else if (Status status = Hashed(args, t, chosen); !status.ok()) {
        statuses[static_cast<size_t>(t)] = std::move(status);
        continue;
      }
      // The bias steers the choice only.
      double sum = static_cast<double>(args.sum_eps);
      for (const int64_t expert : chosen) sum += affinity[static_cast<size_t>(expert)];
      for (size_t k = 0; k < chosen.size(); ++k) {
        const size_t at = static_cast<size_t>(t * top_k) + k;
        args.indices.as<int32_t>()[at] = static_cast<int32_t>(chosen[k]);
        args.weights.as<float>()[at] =
            static_cast<float>(affinity[static_cast<size_t>(chosen[k])] / (args.normalise ? sum : 1.0) *
                               static_cast<double>(args.route_scale));
      }
    }
  });
  for (Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

}  // namespace dsv4::backend::cpu
