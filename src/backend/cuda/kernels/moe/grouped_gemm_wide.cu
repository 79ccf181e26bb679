// Tiles of 128 rows of weights and up to 128 tokens of an expert, worked off by as many blocks as there are
// SMs.
//
// Weights are the A operand and never leave registers. Two warpgroups take 64 rows each. Every thread loads
// the bytes that it will itself widen, some stages ahead and past the end of its item. One warpgroup widens
// while the other one's steps are in flight. Tokens are the B operand, packed beforehand (operand_layout.h).
// A thread has them brought by TMA into a ring that both warpgroups read, and another looks for work. The
// blocks of a cluster take the same tokens and neighbouring rows: each brings its share to all.
//
// The steps of 16 columns, their order, the segments and the order of all sums are those of gemm_mma.cuh. A
// token's result is the same bits as in any other kernel (cuda_many_tokens_test).
#include <utility>

#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/moe/finish_sums.cuh"
#include "backend/cuda/kernels/moe/grouped_gemm_items.cuh"
#include "backend/cuda/kernels/moe/grouped_gemm_wide.h"

namespace dsv4::backend::cuda {
namespace {

struct Size {
  static constexpr int kRows = 128;
  static constexpr int kTokens = 128;  // lowering/select/estimate.h counts such tiles.
  static constexpr int kCluster = 2;
  static constexpr int kConsumers = 256;
  static constexpr int kSlots = 7;
};
constexpr int kCluster = Size::kCluster;
constexpr int kConsumers = Size::kConsumers;
constexpr int kThreads = kConsumers + 128;  // Registers are given up and taken by whole warpgroups.
constexpr int kConsumerRegisters = 232;
constexpr int kProducerRegisters = 40;
constexpr int kAhead = 3;  // Stages of weights in registers.
using grouped_weights::Item;
using grouped_weights::kItems;
using grouped_weights::kStageCols;
using grouped_weights::kSteps;
using grouped_weights::Params;
using grouped_weights::Weights;
using Memory = grouped_weights::Memory<Size>;
template <int kMost>
using Tile = grouped_weights::Tile<kMost, 2>;

template <MatmulKind kKind>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(Memory& memory, const Params& p)
      : memory_(memory),
        p_(p),
        num_stages_(static_cast<int>(p.shape.cols) / kStageCols),
        segment_stages_(SegmentCols<kKind>(static_cast<int>(p.shape.cols)) / kStageCols),
        empty_(AddressInCluster(memory.empty, threadIdx.x % kCluster)),
        weights_(p.shape) {}

  __device__ __forceinline__ void Run() {
    Begin(item_);
    LoadFrom(0, Places());
    while (ahead_ > 0) {
      const int num_tokens = memory_.items[item_.i].num_tokens;
      if (num_tokens > 112) {
        RunTile<128>();
      } else if (num_tokens > 104) {
        RunTile<112>();
      } else if (num_tokens > 96) {
        RunTile<104>();
      } else if (num_tokens > 88) {
        RunTile<96>();
      } else if (num_tokens > 80) {
        RunTile<88>();
      } else if (num_tokens > 64) {
        RunTile<80>();
      } else if (num_tokens > 32) {
        RunTile<64>();
      } else {
        RunTile<32>();
      }
      ArriveForWarp(&memory_.item_empty[item_.i]);
      item_.Next();
    }
  }

 private:
  using Places = std::make_integer_sequence<int, kAhead>;

  // Weights of this item are asked for from here on.
  __device__ __forceinline__ void Begin(const RingPlace<kItems>& place) {
    WaitForPhase(&memory_.item_full[place.i], place.parity);
    const Item& item = memory_.items[place.i];
    ahead_ = item.num_tokens > 0 ? num_stages_ : 0;
    weights_.Begin(item);
  }
  template <int kPlace>
  __device__ __forceinline__ void Load() {
    if (kPlace < ahead_) weights_.template Load<kPlace>();
  }
  template <int... kPlaces>
  __device__ __forceinline__ void LoadFrom(int first, std::integer_sequence<int, kPlaces...>) {
    ((kPlaces >= first ? Load<kPlaces>() : void()), ...);
  }
  template <int kMost>
  __device__ __forceinline__ void Multiply(Tile<kMost>& tile, int block, uint64_t x, int adds) {
    FenceRegisters(tile.sums);
    BeginMatrixSteps();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      MatrixStep<kMost>::Add(tile.sums, tile.a[block][step], x + 2 * step, step == 0 ? adds : 1);
    CommitMatrixSteps();
  }
  // A stage, whose weights are at `kPlace` and its first block's in a[0]. False for the tile's last: its
  // second block is still being multiplied.
  //
  // Each block is waited for before the next. With steps in flight from one to the next the compiler gives
  // every size of tile registers of its own for `a`. It then serializes all steps for want of registers
  // (ptxas of CUDA 13). The other warpgroup's steps fill the gap.
  template <int kMost, int kPlace>
  __device__ __forceinline__ bool MultiplyStage(Tile<kMost>& tile) {
    WaitForPhase(&memory_.full[slot_.i], slot_.parity);
    const uint64_t x = MatrixDescriptor(SharedAddress(memory_.x[slot_.i][0]));
    Multiply(tile, 0, x, tile.adds);
    weights_.template Widen<kPlace>(1, tile.a[1]);
    Load<kPlace>();
    WaitForMatrixSteps<0>();
    Multiply(tile, 1, x + sizeof(memory_.x[0][0]) / 16, 1);
    tile.adds = 1;
    if (--tile.left == 0) return false;
    weights_.template Widen<(kPlace + 1) % kAhead>(0, tile.a[0]);
    EndStage();
    if (--tile.segment_left == 0) EndSegment(tile);
    return true;
  }
  __device__ __forceinline__ void EndStage() {
    WaitForMatrixSteps<0>();
    // A slot is free in all blocks of the cluster before it is filled in any.
    if (threadIdx.x % 32 < kCluster) ArriveThere(empty_ + static_cast<uint32_t>(slot_.i) * 8);
    slot_.Next();
  }
  template <int kMost, int... kPlaces>
  __device__ __forceinline__ void MultiplyStages(Tile<kMost>& tile, std::integer_sequence<int, kPlaces...>) {
    while (true) {
      if (tile.left > kAhead) {
        weights_.Advance();
        ahead_ = tile.left - kAhead;
      } else {
        RingPlace<kItems> next = item_;
        next.Next();
        Begin(next);
      }
      const int left = tile.left;
      if ((MultiplyStage<kMost, kPlaces>(tile) && ...)) continue;
      return LoadFrom(left, Places());  // The rest, which this turn did not come to.
    }
  }
  template <int kMost>
  __device__ __forceinline__ void EndSegment(Tile<kMost>& tile) {
    FenceRegisters(tile.sums);
#pragma unroll
    for (int i = 0; i < kMost / 2; ++i) tile.total[i] = tile.total[i] + tile.sums[i];
    tile.segment_left = segment_stages_;
    tile.adds = 0;
  }

  template <int kMost>
  __device__ __forceinline__ void RunTile() {
    Tile<kMost> tile = {.left = num_stages_, .segment_left = segment_stages_};
#pragma unroll
    for (float& total : tile.total) total = -0.0F;  // Adding to it changes nothing.
    weights_.template Widen<0>(0, tile.a[0]);
    MultiplyStages(tile, Places());
    // Rows of y of this thread's tokens, asked for while the last block is multiplied.
    const int thread = static_cast<int>(threadIdx.x);
    const Item& item = memory_.items[item_.i];
    const int num_tokens = item.num_tokens - thread % 4 * 2;  // From this thread's first on.
    const int first = item.first_x_row + thread % 4 * 2;
    int to[kMost / 4];
#pragma unroll
    for (int i = 0; i < kMost / 4; ++i) {
      const int token = i / 2 * 8 + i % 2;
      to[i] = first + token;
      if (p_.by_assignment && token < num_tokens) to[i] = p_.grouping.order[first + token];
    }
    EndStage();
    EndSegment(tile);
    FinishSums<kKind>(p_.shape.global_scale_divides, item.global_scale, tile.total);
    const auto rows = static_cast<int>(p_.shape.rows);
    const int64_t stride = int64_t{p_.num_matrices} * rows;
    uint16_t* const y = p_.y + item.matrix * rows + item.first_row + thread / 32 * 16 + thread % 32 / 4 * 2;
#pragma unroll
    for (int i = 0; i < kMost / 4; ++i) {
      if (i / 2 * 8 + i % 2 >= num_tokens) continue;
      const int at = i / 2 * 4 + i % 2;
      *reinterpret_cast<uint32_t*>(y + to[i] * stride) = Bf16Pair(tile.total[at], tile.total[at + 2]);
    }
  }

  Memory& memory_;
  const Params& p_;
  const int num_stages_;  // Sums of a tile and of a segment.
  const int segment_stages_;
  const uint32_t empty_;  // Barriers of slots in a block of the cluster, one for each lane that tells it.
  Weights<kKind, kAhead> weights_;
  RingPlace<kItems> item_;
  int ahead_ = 0;  // Stages that there are from the one that place 0 gets next.
  RingPlace<Size::kSlots> slot_;
};

template <MatmulKind kKind>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, 1)
    GroupedGemmWideKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *KeptShared(reinterpret_cast<Memory*>(raw_memory));
  BeginKernel();
  if (threadIdx.x == 0) memory.InitBarriers();
  __syncwarp();
  MeetInCluster();
  if (threadIdx.x >= kConsumers) {
    GiveUpRegisters<kProducerRegisters>();
    if (threadIdx.x == kConsumers) BringTokens(memory, p);
    if (threadIdx.x == kConsumers + 32) FindItems(memory, p);
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consumer<kKind>(memory, p).Run();
  }
  __syncwarp();
  // No block leaves while others may still arrive at its barriers.
  MeetInCluster();
}

}  // namespace

Status GroupedGemmWide(LaunchContext& context, const ExpertTable& table, const TermsWork& work) {
  return grouped_weights::RunItems<Size>(context, table, work, [&]<MatmulKind kKind>(const Params& params) {
    LaunchPersistent(context, GroupedGemmWideKernel<kKind>,
                     {.blocks = kCluster, .threads = kThreads, .shared_bytes = sizeof(Memory)}, params);
  });
}

}  // namespace dsv4::backend::cuda
