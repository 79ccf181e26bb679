#include <algorithm>
#include <optional>

#include "backend/cuda/kernels/hc_mix.cuh"
#include "backend/cuda/kernels/linear_stream.h"
#include "backend/cuda/kernels/matmul_stream.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kStages = 4;                        // 72 KB of weights that a block has under way.
constexpr int kBlocks = 2;                        // A processor.
constexpr uint32_t kPrefetchedBytes = 96 * 1024;  // Of a block's weights, into L2.

struct Params {
  StreamShape shape;
  StreamForms forms;  // One.
  const uint8_t* data;
  const uint8_t* scale;
  float global_scale;
  int rows;        // Of a group,
  int num_tiles;   // and their tiles.
  int num_blocks;  // That share them; the others do `mix`.
  HcPreParams mix;
  int mix_tokens;
  int cols;
  int num_tokens;
  bool y_is_bf16;
  const uint16_t* x;
  int64_t x_stride;
  int64_t x_group_stride;
  void* y;
  int64_t y_stride;
  int64_t y_group_stride;
};

// Grid: blocks that share a group's row tiles, groups.
template <StreamKind kKind>
__global__ void __launch_bounds__(kMatmulThreads, kBlocks) StreamKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& ring = *reinterpret_cast<StreamRing<kStages>*>(shared);
  auto* const shared_x = reinterpret_cast<uint16_t*>(shared + sizeof(ring));
  const int x_stride = static_cast<int>(StreamRow(p.cols));
  const auto groups = static_cast<int>(StreamGroups(p.cols));
  auto* const x_scales = reinterpret_cast<float*>(shared_x + p.num_tokens * x_stride);
  float* const fp8_scales = x_scales + p.num_tokens * groups;
  const int64_t group = blockIdx.y;
  const int num_blocks = p.num_blocks;
  const int block = static_cast<int>(blockIdx.x);
  if (block >= num_blocks) {
    LetNextKernelStart();
    WaitForKernelsBefore();
    return HcMixOfToken<kMatmulThreads>(p.mix, block - num_blocks);
  }
  const int group_begin = static_cast<int>(group) * p.rows;
  const auto item = [&](int i) {
    return StreamItem{
        p.shape,  p.data,  p.scale, p.global_scale, group_begin + (block + i * num_blocks) * kTileRows,
        shared_x, x_scales};
  };
  const int num_items = (p.num_tiles - block + num_blocks - 1) / num_blocks;
  const auto prepare = [&] {
    // What does not fit the ring waits in L2.
    if (threadIdx.x > 0 && static_cast<int>(threadIdx.x) < num_items) {
      const StreamItem next = item(static_cast<int>(threadIdx.x));
      const auto bytes = static_cast<uint32_t>(kTileRows * next.shape.row_bytes);
      if (threadIdx.x * bytes < kPrefetchedBytes)
        PrefetchToL2(next.data + static_cast<int64_t>(next.first_row) * next.shape.row_bytes, bytes);
    }
    LoadFp8Scales(fp8_scales, p.shape.scale_cols, num_items, item);
    WaitForKernelsBefore();
    const uint16_t* const x = p.x + group * p.x_group_stride;
    LoadStreamRows(shared_x, x_scales, p.num_tokens, p.cols, p.forms,
                   [&](int token) { return x + token * p.x_stride; });
    __syncthreads();
  };
  StreamItems<kStages, kKind>(
      ring, fp8_scales, p.shape.scale_cols, num_items, 1, {p.num_tokens, x_stride, groups}, item, prepare,
      [&](int, const StreamItem&, int token, int row, float sum) {
        const int64_t place = group * p.y_group_stride + token * p.y_stride + row - group_begin;
        if (p.y_is_bf16) {
          static_cast<uint16_t*>(p.y)[place] = Bf16FromFloat(sum);
        } else {
          static_cast<float*>(p.y)[place] = sum;
        }
      });
}

void (*KernelOf(StreamKind kind))(Params) {
  switch (kind) {
    case StreamKind::kBf16:
      return StreamKernel<StreamKind::kBf16>;
    case StreamKind::kFp8:
      return StreamKernel<StreamKind::kFp8>;
    case StreamKind::kFp8Plain:
      return StreamKernel<StreamKind::kFp8Plain>;
    case StreamKind::kMxFp4:
      return StreamKernel<StreamKind::kMxFp4>;
    case StreamKind::kNvFp4:
      break;
  }
  return StreamKernel<StreamKind::kNvFp4>;
}

}  // namespace

bool CanStreamLinear(const DeviceWeight& weight, int64_t rows_per_group, const TensorView& x,
                     int64_t num_tokens, int64_t x_stride) {
  return num_tokens <= kTokensPerTile && CanStreamWeight(weight, rows_per_group) &&
         CanStreamRows(x, weight.cols, x_stride, num_tokens);
}

void StreamLinear(CudaContext& context, const StreamLinearArgs& args) {
  Params params = {.shape = ShapeOf(args.weight),
                   .forms = FormsOf(args.weight),
                   .data = args.weight.data,
                   .scale = static_cast<const uint8_t*>(args.weight.scale),
                   .global_scale = args.weight.global_scale,
                   .rows = static_cast<int>(args.rows_per_group),
                   .num_tiles = static_cast<int>(CeilDiv(args.rows_per_group, kTileRows)),
                   .num_blocks = 0,
                   .mix = {},
                   .mix_tokens = 0,
                   .cols = static_cast<int>(args.weight.cols),
                   .num_tokens = static_cast<int>(args.num_tokens),
                   .y_is_bf16 = args.y_is_bf16,
                   .x = args.x,
                   .x_stride = args.x_stride,
                   .x_group_stride = args.x_group_stride,
                   .y = args.y,
                   .y_stride = args.y_stride,
                   .y_group_stride = args.y_group_stride};
  if (args.num_groups == 1) {
    if (const std::optional<HcMixWork> mix = TakeHcMix(context); mix.has_value()) {
      params.mix = mix->params;
      params.mix_tokens = mix->num_tokens;
    }
  }
  const int64_t max_blocks =
      std::max<int64_t>(1, context.queue().num_processors() * kBlocks / args.num_groups - params.mix_tokens);
  const int64_t items = CeilDiv(params.num_tiles, max_blocks);  // Of a block.
  params.num_blocks = static_cast<int>(CeilDiv(params.num_tiles, items));
  const dim3 grid(static_cast<unsigned>(params.num_blocks + params.mix_tokens),
                  static_cast<unsigned>(args.num_groups));
  const size_t shared_bytes = sizeof(StreamRing<kStages>) + StreamRowsBytes(params.cols, params.num_tokens) +
                              StreamScalesBytes(params.cols, params.num_tokens) +
                              static_cast<size_t>(items * params.shape.scale_cols) * sizeof(float);
  context.queue().Launch(KernelOf(params.shape.kind), grid, kMatmulThreads, shared_bytes, params);
}

}  // namespace dsv4::backend::cuda
