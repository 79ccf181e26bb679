// Grouped GEMM of experts for many tokens on wgmma: packed rows, gate and up in one launch, then down.
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/kernels/gemm/gemm_wgmma_tiles.cuh"
#include "backend/cuda/kernels/moe/grouped_gemm_wgmma.h"
#include "backend/cuda/kernels/moe/grouped_gemms.h"

namespace dsv4::backend::cuda {
namespace {

struct Params {
  DeviceWeight shape;  // Shape of all these matrices.
  const DeviceWeight* weights;
  PackedRows x;
  ExpertGrouping grouping;
  int row_tiles;
  uint16_t* y;
  const float* routing;  // Gate and up: [num_assignments]; down: null.
  float limit;
};

__device__ __forceinline__ bool FindTile(const Params& p, int64_t i, int first_matrix, int second_matrix,
                                         int rows_per_tile, WgmmaItem& item) {
  if (i >= int64_t{*p.grouping.num_tiles} * p.row_tiles) return false;
  const ExpertTile tile = p.grouping.tiles[i / p.row_tiles];
  const DeviceWeight& first = p.weights[tile.expert * kExpertMatrices + first_matrix];
  const DeviceWeight& second = p.weights[tile.expert * kExpertMatrices + second_matrix];
  item = {.data = {first.data, second.data},
          .scale = {first.scale, second.scale},
          .global_scale = {first.global_scale, second.global_scale},
          .first_row = static_cast<int>(i % p.row_tiles) * rows_per_tile,
          .row_end = static_cast<int>(p.shape.rows),
          .first_x_block = 0,
          .first_x_row = tile.begin,
          .num_tokens = tile.count};
  return true;
}

// Assignments of a tile's tokens and, where there are any, their routing weights.
__device__ __forceinline__ void NoteAssignments(const Params& p, const WgmmaItem& item,
                                                const WgmmaTokenNotes& notes, int lane) {
  for (int token = lane; token < item.num_tokens; token += 32) {
    const int32_t assignment = p.grouping.order[item.first_x_row + token];
    notes.labels[token] = assignment;
    if (p.routing != nullptr) notes.factors[token] = p.routing[assignment];
  }
}

// y: [packed rows, rows of a matrix], the activation of gate and up with the routing weight.
template <MatmulKind kKind>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    GroupedGemmWgmmaGateUpKernel(const __grid_constant__ Params p) {
  BeginKernel();
  constexpr int kRowsOfBoth = kWgmmaRows / 2;
  const auto store = [&]<int kTokens>(const WgmmaItem& item, const WgmmaTokenNotes& notes,
                                      float(&sums)[kTokens / 2], float4* own) {
    const int row = WgmmaWeights<kKind, WgmmaRows::kSameOfBoth>::Row(item, 0);
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const bool odd = row % 2 != 0;
    // Rounded, and out of registers, since the activation is long and its loop is not unrolled.
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      own[j * kWgmmaConsumers] = make_float4(RoundToBf16(sums[4 * j]), RoundToBf16(sums[4 * j + 1]),
                                             RoundToBf16(sums[4 * j + 2]), RoundToBf16(sums[4 * j + 3]));
    }
    for (int j = 0; j * 8 < item.num_tokens; ++j) {
      const float4 rounded = own[j * kWgmmaConsumers];
      const auto activation = [&](int e, float gate, float up) {
        const int token = j * 8 + lane * 2 + e;
        const float routing = token < item.num_tokens ? notes.factors[token] : 0.0F;
        return Bf16FromFloat(
            static_cast<float>(ClampedSwiglu(static_cast<double>(gate), static_cast<double>(up),
                                             static_cast<double>(p.limit), static_cast<double>(routing))));
      };
      const uint16_t first = activation(0, rounded.x, rounded.z);
      const uint16_t second = activation(1, rounded.y, rounded.w);
      // Neighbours in the matrix exchange a token each, so that two rows are stored at once.
      const auto other = __shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(odd ? first : second), 4);
      const uint32_t pair = odd ? other | static_cast<uint32_t>(second) << 16 : first | other << 16;
      const int token = j * 8 + lane * 2 + (odd ? 1 : 0);
      if (token < item.num_tokens) {
        *reinterpret_cast<uint32_t*>(p.y + (item.first_x_row + token) * p.shape.rows + row - (odd ? 1 : 0)) =
            pair;
      }
    }
  };
  const auto note = [&](const WgmmaItem& item, const WgmmaTokenNotes& notes, int lane) {
    NoteAssignments(p, item, notes, lane);
  };
  WgmmaTiles<kKind, WgmmaRows::kSameOfBoth>(
      p.shape, p.x, [&](int64_t i, WgmmaItem& item) { return FindTile(p, i, 0, 1, kRowsOfBoth, item); }, note,
      store);
}

// y: [num_assignments, rows of a matrix].
template <MatmulKind kKind>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    GroupedGemmWgmmaDownKernel(const __grid_constant__ Params p) {
  BeginKernel();
  const auto store = [&]<int kTokens>(const WgmmaItem& item, const WgmmaTokenNotes& notes,
                                      float(&sums)[kTokens / 2], float4*) {
    const int row = WgmmaWeights<kKind, WgmmaRows::kNeighbours>::Row(item, 0);
    const int lane = static_cast<int>(threadIdx.x) % 4;
    if (row >= item.row_end) return;
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      const int token = i / 2 * 8 + lane * 2 + i % 2;
      if (token >= item.num_tokens) continue;
      const int64_t assignment = notes.labels[token];
      *reinterpret_cast<uint32_t*>(p.y + assignment * p.shape.rows + row) =
          Bf16FromFloat(sums[i / 2 * 4 + i % 2]) |
          static_cast<uint32_t>(Bf16FromFloat(sums[i / 2 * 4 + i % 2 + 2])) << 16;
    }
  };
  const auto note = [&](const WgmmaItem& item, const WgmmaTokenNotes& notes, int lane) {
    NoteAssignments(p, item, notes, lane);
  };
  WgmmaTiles<kKind, WgmmaRows::kNeighbours>(
      p.shape, p.x, [&](int64_t i, WgmmaItem& item) { return FindTile(p, i, 2, 2, kWgmmaRows, item); }, note,
      store);
}

template <MatmulKind kKind>
void LaunchGateUp(LaunchContext& context, const Params& params, unsigned blocks) {
  context.Launch(GroupedGemmWgmmaGateUpKernel<kKind>, blocks, kWgmmaThreads, sizeof(WgmmaMemory<kKind>),
                 params);
}
template <MatmulKind kKind>
void LaunchDown(LaunchContext& context, const Params& params, unsigned blocks) {
  context.Launch(GroupedGemmWgmmaDownKernel<kKind>, blocks, kWgmmaThreads, sizeof(WgmmaMemory<kKind>),
                 params);
}

}  // namespace

Status GroupedGemmWgmma(LaunchContext& context, const ExpertTable& table, const TermsWork& work) {
  const auto blocks = static_cast<unsigned>(context.limits().num_sms);
  const auto run = [&](const GroupedGemm& gemm) -> Status {
    const bool down = gemm.by_assignment;
    DSV4_ASSIGN_OR_RETURN_STATUS(const PackedRows x,
                                 Pack(context, gemm.x, gemm.cols, gemm.weight.x_group, gemm.weight.kind));
    // A tile of gate and up has half of its rows of each.
    const int64_t row_tiles =
        down ? CeilDiv(gemm.weight.rows, kWgmmaRows) : gemm.weight.rows / (kWgmmaRows / 2);
    const Params params = {.shape = gemm.weight,
                           .weights = table.weights,
                           .x = x,
                           .grouping = gemm.grouping,
                           .row_tiles = static_cast<int>(row_tiles),
                           .y = gemm.y,
                           .routing = down ? nullptr : work.args.weights.as<const float>(),
                           .limit = work.args.limit};
    WithMmaKind(gemm.weight.kind, [&]<MatmulKind kKind>() {
      down ? LaunchDown<kKind>(context, params, blocks) : LaunchGateUp<kKind>(context, params, blocks);
    });
    return {};
  };
  return RunGroupedGemms(context, table, work, kWgmmaTokens, SwigluPlace::kGateUp, run);
}

}  // namespace dsv4::backend::cuda
