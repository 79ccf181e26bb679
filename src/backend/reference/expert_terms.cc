// Reference expert runs: gate, up, SwiGLU and down for the tokens of one expert, for expert_terms and
// routed_experts.
#include "backend/reference/expert_terms.h"

#include <fmt/format.h>

#include <vector>

#include "backend/reference/matmul.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/swiglu.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

namespace {

// One (token, slot) pair of `indices`.
struct Assignment {
  int64_t token;
  int64_t slot;
};

// The composition of the contract for the tokens of one expert; every step ends in a tensor of x's dtype.
class ExpertRun {
 public:
  ExpertRun(const ops::ExpertTermsArgs& args, const ops::ExpertWeights& expert,
            std::span<const Assignment> assignments)
      : args_(args), expert_(expert), assignments_(assignments) {}

  // Writes row i of `out` for assignment i through `store`.
  template <typename Store>
  void Run(const Store& store) const {
    const std::vector<float> x = GatherTokens();
    const std::vector<float> gate = Multiply(expert_.w1, x);
    const std::vector<float> up = Multiply(expert_.w3, x);
    const std::vector<float> y = Multiply(expert_.w2, Activate(gate, up));
    const size_t dim = static_cast<size_t>(expert_.w2.rows);
    for (size_t i = 0; i < assignments_.size(); ++i) {
      store(assignments_[i], std::span<const float>(y).subspan(i * dim, dim));
    }
  }

 private:
  std::vector<float> GatherTokens() const {
    const size_t dim = static_cast<size_t>(args_.x.shape[1]);
    std::vector<float> x(assignments_.size() * dim);
    for (size_t i = 0; i < assignments_.size(); ++i) {
      LoadValues(args_.x.data, args_.x.dtype, assignments_[i].token * args_.x.shape[1],
                 std::span<float>(x).subspan(i * dim, dim));
    }
    return x;
  }

  std::vector<float> Multiply(const Weight& weight, const std::vector<float>& x) const {
    const int64_t num_rows = static_cast<int64_t>(assignments_.size());
    const std::vector<double> rounded = QuantizeActivations(x, num_rows, weight.cols, weight.activation);
    std::vector<float> y(static_cast<size_t>(num_rows * weight.rows));
    MultiplyRows(weight, 0, weight.rows, rounded.data(), weight.cols, num_rows,
                 [&](int64_t i, int64_t row, double sum) {
                   y[static_cast<size_t>(i * weight.rows + row)] = Hold(sum);
                 });
    return y;
  }

  std::vector<float> Activate(const std::vector<float>& gate, const std::vector<float>& up) const {
    const size_t width = static_cast<size_t>(expert_.w1.rows);
    std::vector<float> h(gate.size());
    for (size_t i = 0; i < h.size(); ++i) {
      const Assignment& assignment = assignments_[i / width];
      const float weight =
          args_.weights.as<const float>()[assignment.token * args_.weights.shape[1] + assignment.slot];
      h[i] = Hold(ClampedSwiglu(static_cast<double>(gate[i]), static_cast<double>(up[i]),
                                static_cast<double>(args_.limit), static_cast<double>(weight)));
    }
    return h;
  }

  float Hold(double value) const { return static_cast<float>(HeldAs(args_.x.dtype, value)); }

  const ops::ExpertTermsArgs& args_;
  const ops::ExpertWeights& expert_;
  std::span<const Assignment> assignments_;
};

}  // namespace

Status ForEachTerm(ops::OpContext& context, std::string_view op, const ops::ExpertTermsArgs& args,
                   const StoreTerm& store) {
  const int64_t num_tokens = args.x.shape[0];
  const int64_t top_k = args.indices.shape[1];
  const auto num_here = static_cast<int64_t>(args.experts.size());
  std::vector<std::vector<Assignment>> chosen_by(args.experts.size());
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t expert = LoadInteger(args.indices, t * top_k + k);
      if (expert < 0 || expert >= args.num_experts) {
        return OutOfRange(
            fmt::format("op {}: indices[{}, {}]: {}, want 0 to {}", op, t, k, expert, args.num_experts - 1));
      }
      const int64_t here = expert - args.first_expert;
      if (here >= 0 && here < num_here) chosen_by[static_cast<size_t>(here)].push_back({t, k});
    }
  }
  context.threads().ParallelFor(num_here, 1, [&](int64_t begin, int64_t end) {
    for (size_t e = static_cast<size_t>(begin); e < static_cast<size_t>(end); ++e) {
      if (chosen_by[e].empty()) continue;
      ExpertRun(args, args.experts[e], chosen_by[e])
          .Run([&](const Assignment& assignment, std::span<const float> row) {
            store(assignment.token * top_k + assignment.slot, row);
          });
    }
  });
  return {};
}

Status ExpertTerms(ops::OpContext& context, const ops::ExpertTermsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.experts.empty()) return {};
  const int64_t dim = args.x.shape[1];
  return ForEachTerm(context, "expert_terms", args, [&](int64_t assignment, std::span<const float> row) {
    const std::vector<double> values(row.begin(), row.end());
    StoreValues(values, args.terms.data, args.terms.dtype, assignment * dim);
  });
}

}  // namespace dsv4::backend::reference
