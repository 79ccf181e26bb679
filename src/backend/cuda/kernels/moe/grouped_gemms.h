// Steps of the grouped GEMMs of routed experts around their products (grouped_gemm_wgmma, _wide, _fp8).
// Assignments are grouped by expert. Gate and up multiply their tokens' rows. Down multiplies the activations
// and writes terms by assignment.
#pragma once

#include "backend/cuda/kernels/moe/expert_tiles.h"
#include "backend/cuda/kernels/packing/operand_layout.h"
#include "backend/cuda/weights/expert_table.h"

namespace dsv4::backend::cuda {

inline constexpr int kExpertMatrices = 3;  // Matrices of an expert in its table: gate, up, down.

// One of the two launches.
struct GroupedGemm {
  const ExpertGrouping& grouping;
  const DeviceWeight& weight;  // Shape of all these matrices.
  int first_matrix;            // First of an expert's matrices in its table,
  int num_matrices;            // side by side in a row of y: gate and up, or down.
  RowSource x;                 // Rows as they are to be packed.
  int64_t cols;
  uint16_t* y;
  bool by_assignment;  // Rows of y are the assignments' instead of the packed ones'.
};

// Stage at which SwiGLU and the routing weights are applied.
enum class SwigluPlace : uint8_t {
  kGateUp,   // The first launch, whose rows are as wide as the activations,
  kPacking,  // or the packing of the second's rows.
};

// `gemm(GroupedGemm)` packs and launches; it is called twice.
template <typename Gemm>
Status RunGroupedGemms(LaunchContext& context, const ExpertTable& table, const TermsWork& work,
                       int tokens_per_tile, SwigluPlace swiglu, Gemm&& gemm) {
  const ops::ExpertTermsArgs& args = work.args;
  const int64_t dim = args.x.shape[1];
  const int64_t width = table.w1.rows;
  const bool both = swiglu == SwigluPlace::kPacking;
  DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertGrouping grouping, GroupByExpert(context, work, tokens_per_tile));
  DSV4_ASSIGN_OR_RETURN_STATUS(uint16_t* const hidden,
                               context.Scratch<uint16_t>(grouping.max_rows * (both ? 2 : 1) * width));
  const RowSource tokens = {.x = args.x.data,
                            .dtype = args.x.dtype,
                            .stride = dim,
                            .num_rows = grouping.max_rows,
                            .origins = grouping.order,
                            .divisor = static_cast<int>(args.indices.shape[1])};
  DSV4_RETURN_IF_ERROR(gemm(GroupedGemm{.grouping = grouping,
                                        .weight = table.w1,
                                        .first_matrix = 0,
                                        .num_matrices = 2,
                                        .x = tokens,
                                        .cols = dim,
                                        .y = hidden,
                                        .by_assignment = false}));
  RowSource activations = {.x = hidden,
                           .dtype = DType::kBF16,
                           .stride = both ? 2 * width : width,
                           .num_rows = grouping.max_rows,
                           .origins = grouping.order,
                           .divisor = 0};
  if (both) {
    activations.row_weights = args.weights.as<const float>();
    activations.limit = args.limit;
  }
  return gemm(GroupedGemm{.grouping = grouping,
                          .weight = table.w2,
                          .first_matrix = 2,
                          .num_matrices = 1,
                          .x = activations,
                          .cols = width,
                          .y = args.terms.as<uint16_t>(),
                          .by_assignment = true});
}

}  // namespace dsv4::backend::cuda
