// Experts' outputs. Tokens are grouped by expert, so that the weights of an expert are read once however many
// tokens chose it.
// Each phase is spread over all threads. They are rows of w1 and w3 of all chosen experts, SwiGLU with the
// packing of its results, rows of w2, and the terms' use.
#include "backend/cpu/expert_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
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

// A chosen expert of the current group, or some of the tokens of one that many chose. Its assignments own
// rows [first, first + size) of the group's buffers.
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
  std::deque<Form> forms_;  // Activations that other forms point to.
};

// A range of rows of one weight against the tokens of an expert.
struct Product {
  MatmulPlan plan;
  const Weight* weight;
  size_t x;  // Which of some rows.
  uint8_t* y;
};
struct TermRange {
  size_t product;
  int64_t begin;
  int64_t end;
};

void RunProducts(ops::OpContext& context, const std::vector<Product>& products,
                 const std::vector<Activations>& rows, DType dtype) {
  std::vector<TermRange> ranges;
  for (size_t i = 0; i < products.size(); ++i) {
    const Weight& weight = *products[i].weight;
    const int64_t range = RangeRows(weight, rows[products[i].x].num_rows());
    for (int64_t begin = 0; begin < weight.rows; begin += range) {
      ranges.push_back({i, begin, std::min(weight.rows, begin + range)});
    }
  }
  context.threads().ParallelFor(static_cast<int64_t>(ranges.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const TermRange& range = ranges[static_cast<size_t>(i)];
      const Product& product = products[range.product];
      int64_t end = range.end;  // Neighbours are one range: the kernel reads ahead to its end.
      for (++i; i < last && ranges[static_cast<size_t>(i)].product == range.product; ++i)
        end = ranges[static_cast<size_t>(i)].end;
      MultiplyRangeTo(KernelsOf(context), product.plan, *product.weight, range.begin, end, rows[product.x],
                      product.y + range.begin * ElementBytes(dtype), dtype, product.weight->rows);
    }
  });
}

// Says which bytes RunGroup reads, in its order: both weights of the first phase of all experts, then those
// of the last.
void Announce(const WillRead& will_read, const std::vector<Chosen>& group) {
  std::vector<std::span<const std::byte>> ranges;
  const auto add = [&](const Weight& weight) {
    for (const TensorView* view : {&weight.data, &weight.scale}) {
      if (!view->is_null())
        ranges.emplace_back(view->as<const std::byte>(), static_cast<size_t>(view->num_bytes()));
    }
  };
  const ops::ExpertWeights* last = nullptr;
  for (const Chosen& chosen : group) {
    if (chosen.expert == last) continue;
    last = chosen.expert;
    add(chosen.expert->w1);
    add(chosen.expert->w3);
  }
  last = nullptr;
  for (const Chosen& chosen : group) {
    if (chosen.expert != last) add(chosen.expert->w2);
    last = chosen.expert;
  }
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

  // Assignments of each expert for w1, and for w3 where it wants them otherwise.
  std::vector<Activations::Gathering> gatherings;
  std::vector<Product> products;
  for (const Chosen& chosen : group) {
    std::vector<int64_t> tokens;
    for (const Assignment& assignment : chosen.assignments) tokens.push_back(assignment.token);
    const int64_t offset = chosen.first * width * ElementBytes(dtype);
    const MatmulPlan gate_plan = PlanMatmul(kernels, chosen.expert->w1, dtype);
    const MatmulPlan up_plan = PlanMatmul(kernels, chosen.expert->w3, dtype);
    gatherings.push_back({&x.For(gate_plan), tokens});
    products.push_back({gate_plan, &chosen.expert->w1, gatherings.size() - 1, gate.get() + offset});
    if (!up_plan.SharesActivations(gate_plan)) gatherings.push_back({&x.For(up_plan), std::move(tokens)});
    products.push_back({up_plan, &chosen.expert->w3, gatherings.size() - 1, up.get() + offset});
  }
  std::vector<Activations> rows = Activations::Gather(context.threads(), gatherings);
  Activations::MakeTiles(context.threads(), rows);
  RunProducts(context, products, rows, dtype);

  std::vector<float> row_weights;
  std::vector<ActivationPacker> hidden;  // One for each way in which experts want them.
  const auto packer_for = [&](const MatmulPlan& plan) {
    return std::ranges::find_if(
        hidden, [&](const ActivationPacker& packer) { return packer.plan().SharesActivations(plan); });
  };
  for (const Chosen& chosen : group) {
    for (const Assignment& assignment : chosen.assignments) {
      row_weights.push_back(
          args.weights.as<const float>()[assignment.token * args.weights.shape[1] + assignment.slot]);
    }
    const MatmulPlan plan = PlanMatmul(kernels, chosen.expert->w2, dtype);
    if (packer_for(plan) == hidden.end()) hidden.emplace_back(kernels, plan, num_rows, dtype, width);
  }
  constexpr int64_t kColumnsOfTask = 2 * kPackColumns;
  const int64_t tasks_of_row = (width + kColumnsOfTask - 1) / kColumnsOfTask;
  context.threads().ParallelFor(num_rows * tasks_of_row, 1, [&](int64_t first, int64_t last) {
    float g[kColumnsOfTask];
    float u[kColumnsOfTask];
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / tasks_of_row;
      const int64_t begin = i % tasks_of_row * kColumnsOfTask;
      const int64_t end = std::min(width, begin + kColumnsOfTask);
      const int64_t offset = (row * width + begin) * ElementBytes(dtype);
      LoadFloats(kernels, gate.get() + offset, dtype, end - begin, g);
      LoadFloats(kernels, up.get() + offset, dtype, end - begin, u);
      kernels.rows.swiglu(g, u, end - begin, static_cast<double>(args.limit),
                          static_cast<double>(row_weights[static_cast<size_t>(row)]), g);
      StoreFloats(kernels, g, end - begin, gate.get() + offset, dtype);
      for (const ActivationPacker& packer : hidden)
        packer.Pack(row, gate.get() + row * width * ElementBytes(dtype), begin, end);
    }
  });

  rows.clear();
  products.clear();
  for (const Chosen& chosen : group) {
    const MatmulPlan plan = PlanMatmul(kernels, chosen.expert->w2, dtype);
    rows.push_back(packer_for(plan)->rows().Slice(chosen.first, chosen.first + chosen.size()));
    products.push_back(
        {plan, &chosen.expert->w2, rows.size() - 1, down.get() + chosen.first * dim * ElementBytes(dtype)});
  }
  Activations::MakeTiles(context.threads(), rows);
  RunProducts(context, products, rows, dtype);

  constexpr int64_t kElementsPerTask = 1 << 13;
  const int64_t num_pieces = (dim + kTermColumns - 1) / kTermColumns;
  context.threads().ParallelFor(
      num_pieces, std::max<int64_t>(1, kElementsPerTask / (num_rows * kTermColumns)),
      [&](int64_t first, int64_t last) {
        for (const Chosen& chosen : group) {
          for (int64_t i = 0; i < chosen.size(); ++i) {
            const Assignment& assignment = chosen.assignments[static_cast<size_t>(i)];
            for (int64_t piece = first; piece < last; ++piece) {
              take(assignment.token * args.indices.shape[1] + assignment.slot,
                   down.get() + (chosen.first + i) * dim * ElementBytes(dtype), piece * kTermColumns,
                   std::min(dim, (piece + 1) * kTermColumns));
            }
          }
        }
      });
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

  // Groups bound the memory of a long prefill; a decode step is one group. Experts that come from disk are
  // asked for a group ahead.
  const WillRead& will_read = WillReadOf(context);
  const bool from_disk = will_read && will_read({});
  const int64_t most_rows = from_disk ? 512 : 2048;
  // Bytes of an expert's tokens at a time: their activations stay in the second-level cache of a thread while
  // it takes rows of weights.
  constexpr int64_t kPanelBytes = 1 << 20;
  const auto most_together = static_cast<size_t>(std::max<int64_t>(64, kPanelBytes / (2 * args.x.shape[1])));
  std::vector<std::vector<Chosen>> groups;
  int64_t group_rows = most_rows;
  for (size_t e = 0; e < chosen_by.size(); ++e) {
    if (chosen_by[e].empty()) continue;
    if (group_rows >= most_rows) {
      groups.emplace_back();
      group_rows = 0;
    }
    const std::vector<Assignment>& all = chosen_by[e];
    for (size_t begin = 0; begin < all.size(); begin += most_together) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto to = from + static_cast<std::ptrdiff_t>(std::min(most_together, all.size() - begin));
      groups.back().push_back({&args.experts[e], {from, to}, group_rows});
      group_rows += groups.back().back().size();
    }
  }
  // One group ahead: the weights of a whole layer may be more than there is memory for.
  if (from_disk && !groups.empty()) Announce(will_read, groups.front());
  for (size_t i = 0; i < groups.size(); ++i) {
    if (from_disk && i + 1 < groups.size()) Announce(will_read, groups[i + 1]);
    RunGroup(context, args, x, groups[i], take);
  }
  return {};
}

Status ExpertTerms(ops::OpContext& context, const ops::ExpertTermsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.experts.empty()) return {};
  const int64_t element_bytes = ElementBytes(args.terms.dtype);
  const int64_t row_bytes = args.terms.shape[2] * element_bytes;
  return ForEachTerm(
      context, "expert_terms", args, [&](int64_t assignment, const uint8_t* row, int64_t begin, int64_t end) {
        std::memcpy(args.terms.as<uint8_t>() + assignment * row_bytes + begin * element_bytes,
                    row + begin * element_bytes, static_cast<size_t>((end - begin) * element_bytes));
      });
}

}  // namespace dsv4::backend::cpu
