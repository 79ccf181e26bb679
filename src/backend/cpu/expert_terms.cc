// Tokens are grouped by expert, so that the weights of an expert are read once however many tokens chose it. Three phases,
// each spread over all threads: rows of w1 and w3 of all chosen experts, SwiGLU, rows of w2.
#include "backend/cpu/expert_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

// One (token, slot) pair of `indices`.
struct Assignment {
  int64_t token;
  int64_t slot;
};

// A chosen expert of the current group; its assignments own rows [first, first + size) of the group's buffers.
struct Chosen {
  const ops::ExpertWeights* expert;
  std::vector<Assignment> assignments;
  int64_t first;

  int64_t size() const { return static_cast<int64_t>(assignments.size()); }
};

// Packed forms of one set of rows, made when a plan first asks.
class PackedForms {
 public:
  PackedForms(ops::OpContext& context, const uint8_t* rows, int64_t num_rows, DType dtype, int64_t cols)
      : context_(context), dtype_(dtype), cols_(cols) {
    for (int64_t i = 0; i < num_rows; ++i) rows_.push_back(rows + i * cols * ElementBytes(dtype));
  }
  const Activations& For(const MatmulPlan& plan) {
    for (const Form& form : forms_) {
      if (form.plan.SharesActivations(plan)) return form.activations;
    }
    forms_.push_back(
        {plan, Activations(context_.threads(), KernelsOf(context_), plan, rows_, dtype_, cols_)});
    return forms_.back().activations;
  }

 private:
  struct Form {
    MatmulPlan plan;
    Activations activations;
  };
  ops::OpContext& context_;
  DType dtype_;
  int64_t cols_;
  std::vector<const uint8_t*> rows_;
  std::vector<Form> forms_;
};

// A range of rows of one weight against the tokens of an expert.
struct Product {
  MatmulPlan plan;
  const Weight* weight;
  size_t x;  // Which of some rows.
  uint8_t* y;
};
struct Range {
  size_t product;
  int64_t begin;
  int64_t end;
};

void RunProducts(ops::OpContext& context, const std::vector<Product>& products,
                 const std::vector<Activations>& rows, DType dtype) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < products.size(); ++i) {
    const Weight& weight = *products[i].weight;
    const int64_t range = RangeRows(weight, rows[products[i].x].num_rows());
    for (int64_t begin = 0; begin < weight.rows; begin += range) {
      ranges.push_back({i, begin, std::min(weight.rows, begin + range)});
    }
  }
  context.threads().ParallelFor(static_cast<int64_t>(ranges.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const Range& range = ranges[static_cast<size_t>(i)];
      const Product& product = products[range.product];
      int64_t end = range.end;  // Neighbours are one range: the kernel reads ahead to its end.
      for (++i; i < last && ranges[static_cast<size_t>(i)].product == range.product; ++i)
        end = ranges[static_cast<size_t>(i)].end;
      MultiplyRangeTo(KernelsOf(context), product.plan, *product.weight, range.begin, end, rows[product.x],
                      product.y + range.begin * ElementBytes(dtype), dtype, product.weight->rows);
    }
  });
}

// Says which bytes RunGroup reads, in its order: both weights of the first phase of all experts, then those of the last.
void Announce(const WillRead& will_read, const std::vector<Chosen>& group) {
  std::vector<std::span<const std::byte>> ranges;
  const auto add = [&](const Weight& weight) {
    for (const TensorView* view : {&weight.data, &weight.scale}) {
      if (!view->is_null())
        ranges.emplace_back(view->as<const std::byte>(), static_cast<size_t>(view->num_bytes()));
    }
  };
  for (const Chosen& chosen : group) {
    add(chosen.expert->w1);
    add(chosen.expert->w3);
  }
  for (const Chosen& chosen : group) add(chosen.expert->w2);
  will_read(ranges);
}

// The terms of a group of experts, in ascending order of expert.
void RunGroup(ops::OpContext& context, const ops::ExpertTermsArgs& args, PackedForms& x,
              const std::vector<Chosen>& group, const TakeTerm& take) {
  const Kernels& kernels = KernelsOf(context);
  const DType dtype = args.x.dtype;
  const int64_t dim = args.x.shape[1];
  const int64_t width = group[0].expert->w1.rows;
  const int64_t num_rows = group.back().first + group.back().size();
  const auto buffer = [&](int64_t cols) {
    return std::make_unique_for_overwrite<uint8_t[]>(
        static_cast<size_t>(num_rows * cols * ElementBytes(dtype)));
  };
  const auto gate = buffer(width);
  const auto up = buffer(width);
  const auto down = buffer(dim);

  // Of each expert for w1, and for w3 where it wants them otherwise.
  std::vector<Activations> rows;
  std::vector<Product> products;
  for (const Chosen& chosen : group) {
    std::vector<int64_t> tokens;
    for (const Assignment& assignment : chosen.assignments) tokens.push_back(assignment.token);
    const int64_t offset = chosen.first * width * ElementBytes(dtype);
    const MatmulPlan gate_plan = PlanMatmul(kernels, chosen.expert->w1, dtype);
    const MatmulPlan up_plan = PlanMatmul(kernels, chosen.expert->w3, dtype);
    rows.push_back(x.For(gate_plan).Gather(tokens));
    products.push_back({gate_plan, &chosen.expert->w1, rows.size() - 1, gate.get() + offset});
    if (!up_plan.SharesActivations(gate_plan)) rows.push_back(x.For(up_plan).Gather(tokens));
    products.push_back({up_plan, &chosen.expert->w3, rows.size() - 1, up.get() + offset});
  }
  Activations::MakeTiles(context.threads(), rows);
  RunProducts(context, products, rows, dtype);

  std::vector<float> row_weights;
  for (const Chosen& chosen : group) {
    for (const Assignment& assignment : chosen.assignments) {
      row_weights.push_back(
          args.weights.as<const float>()[assignment.token * args.weights.shape[1] + assignment.slot]);
    }
  }
  context.threads().ParallelFor(num_rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> g(static_cast<size_t>(width));
    std::vector<float> u(g.size());
    for (int64_t i = begin; i < end; ++i) {
      uint8_t* const row = gate.get() + i * width * ElementBytes(dtype);
      LoadFloats(kernels, row, dtype, width, g.data());
      LoadFloats(kernels, up.get() + i * width * ElementBytes(dtype), dtype, width, u.data());
      kernels.rows.swiglu(g.data(), u.data(), width, static_cast<double>(args.limit),
                          static_cast<double>(row_weights[static_cast<size_t>(i)]), g.data());
      StoreFloats(kernels, g.data(), width, row, dtype);
    }
  });

  PackedForms hidden(context, gate.get(), num_rows, dtype, width);
  rows.clear();
  products.clear();
  for (const Chosen& chosen : group) {
    const MatmulPlan plan = PlanMatmul(kernels, chosen.expert->w2, dtype);
    rows.push_back(hidden.For(plan).Slice(chosen.first, chosen.first + chosen.size()));
    products.push_back(
        {plan, &chosen.expert->w2, rows.size() - 1, down.get() + chosen.first * dim * ElementBytes(dtype)});
  }
  Activations::MakeTiles(context.threads(), rows);
  RunProducts(context, products, rows, dtype);

  for (const Chosen& chosen : group) {
    for (int64_t i = 0; i < chosen.size(); ++i) {
      const Assignment& assignment = chosen.assignments[static_cast<size_t>(i)];
      take(assignment.token * args.indices.shape[1] + assignment.slot,
           down.get() + (chosen.first + i) * dim * ElementBytes(dtype));
    }
  }
}

}  // namespace

Status ForEachTerm(ops::OpContext& context, std::string_view op, const ops::ExpertTermsArgs& args,
                   const TakeTerm& take) {
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
  PackedForms x(context, args.x.as<const uint8_t>(), num_tokens, args.x.dtype, args.x.shape[1]);

  // Groups bound the memory of a long prefill; a decode step is one group.
  constexpr int64_t kMaxGroupRows = 512;
  std::vector<std::vector<Chosen>> groups;
  int64_t group_rows = kMaxGroupRows;
  for (size_t e = 0; e < chosen_by.size(); ++e) {
    if (chosen_by[e].empty()) continue;
    if (group_rows >= kMaxGroupRows) {
      groups.emplace_back();
      group_rows = 0;
    }
    groups.back().push_back({&args.experts[e], std::move(chosen_by[e]), group_rows});
    group_rows += groups.back().back().size();
  }
  // One group ahead: the weights of a whole layer may be more than there is memory for.
  const WillRead& will_read = WillReadOf(context);
  if (will_read && !groups.empty()) Announce(will_read, groups.front());
  for (size_t i = 0; i < groups.size(); ++i) {
    if (will_read && i + 1 < groups.size()) Announce(will_read, groups[i + 1]);
    RunGroup(context, args, x, groups[i], take);
  }
  return {};
}

Status ExpertTerms(ops::OpContext& context, const ops::ExpertTermsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.experts.empty()) return {};
  const int64_t row_bytes = args.terms.shape[2] * ElementBytes(args.terms.dtype);
  return ForEachTerm(context, "expert_terms", args, [&](int64_t assignment, const uint8_t* row) {
    std::memcpy(args.terms.as<uint8_t>() + assignment * row_bytes, row, static_cast<size_t>(row_bytes));
  });
}

}  // namespace dsv4::backend::cpu
