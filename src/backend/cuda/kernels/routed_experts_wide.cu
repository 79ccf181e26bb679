// Tiles of 64 rows of weights and up to 256 tokens of an expert. Two warpgroups widen weights into a ring of blocks of 64 columns and
// have the tokens brought there by the copy engine, which gives them to both blocks of a cluster: those take the same tokens and
// neighbouring rows. Two warpgroups multiply, each with half of the tokens.
//
// The steps of 16 columns, their order, the segments and the order of all sums are those of matmul_mma.cuh: a token's result is the
// same bits as in any other kernel (cuda_many_tokens_test).
#include <algorithm>

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/expert_tiles.h"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/matmul_mma.cuh"
#include "backend/cuda/kernels/packed_rows.h"
#include "backend/cuda/kernels/routed_experts_wide.h"

namespace dsv4::backend::cuda {
namespace {

// Tokens of an expert, on average, from which it is worth it.
constexpr int64_t kMinTokensOfExpert = 128;

constexpr int kMatrices = 3;  // Of an expert in its table: gate, up, down.
constexpr int kRows = 64;
constexpr int kTokens = 256;
constexpr int kConsumers = 256;
constexpr int kProducers = 256;
constexpr int kThreads = kConsumers + kProducers;
constexpr int kConsumerRegisters = 160;
constexpr int kProducerRegisters = 65536 / kProducers - kConsumerRegisters;
constexpr int kCluster = 2;
constexpr int kSlots = 5;
constexpr int kItems = 4;
constexpr int kStages = 4;
constexpr int kBlockCols = static_cast<int>(kPackedCols);
constexpr int kSteps = kBlockCols / 16;
// Of 16 columns each: four lanes read 16 bytes of a row, whose columns are those of two blocks.
constexpr int kStageCols = 128;
static_assert(kProducers == kRows * 4 && kStageCols == 2 * kBlockCols);

struct Item {
  const uint8_t* data;
  const uint8_t* scale;
  float global_scale;
  int matrix;
  int first_row;
  int first_x_row;
  int num_tokens;  // 0: there is no more work.
};

struct Slot {
  uint16_t weights[kRows * kBlockCols];
  uint16_t x[kTokens * kBlockCols];
};
static_assert(sizeof(Slot) % 1024 == 0);

struct Memory {
  Slot slots[kSlots];
  uint4 stages[kStages][kProducers];    // Weights as they are copied, a piece a producer,
  uint32_t codes[kStages][kProducers];  // and their scales.
  Item items[kItems];
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
  uint64_t item_full[kItems];
  uint64_t item_empty[kItems];
};

struct Params {
  DeviceWeight shape;  // Of all these matrices.
  const DeviceWeight* weights;
  int first_matrix;
  int num_matrices;  // Side by side in a row of y: gate and up, or down.
  PackedRows x;
  ExpertGrouping grouping;
  int row_clusters;  // Of a matrix.
  // [packed rows, num_matrices * rows], or [num_assignments, ...] where rows of y are by assignment.
  uint16_t* y;
  bool by_assignment;
};

__device__ __forceinline__ int RowsOfPacked(int count) {
  constexpr int kTogether = static_cast<int>(kPackedRows);
  return (count + kTogether - 1) / kTogether * kTogether;
}

__device__ __forceinline__ bool FindItem(const Params& p, int i, Item& item) {
  const int per_tile = p.num_matrices * p.row_clusters;
  if (i >= *p.grouping.num_tiles * per_tile) return false;
  const ExpertTile tile = p.grouping.tiles[i / per_tile];
  const int matrix = i % per_tile / p.row_clusters;
  const DeviceWeight& weight = p.weights[tile.expert * kMatrices + p.first_matrix + matrix];
  const int rank = static_cast<int>(blockIdx.x % kCluster);
  item = {.data = weight.data,
          .scale = static_cast<const uint8_t*>(weight.scale),
          .global_scale = weight.global_scale,
          .matrix = matrix,
          .first_row = (i % per_tile % p.row_clusters * kCluster + rank) * kRows,
          .first_x_row = tile.begin,
          .num_tokens = tile.count};
  return true;
}

// --- Producers -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void StoreShared(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// A producer's part of the weights: one lane's 16 bytes of a row and stage. It has them copied into shared memory some stages ahead,
// through all items, and waits for nobody else's.
template <MatmulKind kKind>
class Weights {
 public:
  __device__ __forceinline__ Weights(Memory& memory, const DeviceWeight& shape, int thread)
      : memory_(memory), shape_(shape), thread_(thread) {}

  // Asks for what lies ahead of the first stage; the first item has been told.
  __device__ __forceinline__ void Begin() {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) CopyNext();
  }
  // Goes to the next stage, and asks for the one that takes the place of the one before.
  __device__ __forceinline__ void NextStage() {
    WaitForCopies<kStages - 2>();
    if (++stage_ == kStages) stage_ = 0;
    const uint4 raw = memory_.stages[stage_][thread_];
    words_[0] = raw.x;
    words_[1] = raw.y;
    words_[2] = raw.z;
    words_[3] = raw.w;
    const uint32_t codes = memory_.codes[stage_][thread_];
    if constexpr (kKind == MatmulKind::kMmaNvFp4) {
      scales_ = Unpack<kKind>::Expand(static_cast<uint16_t>(codes >> (thread_ % 2 * 16)));
    } else {
      scales_ = Unpack<kKind>::Expand(static_cast<uint8_t>(codes >> (thread_ % 4 * 8)));
    }
    CopyNext();
  }
  // Widens block `kBlock` of the stage: this lane's pairs of each step, as packed rows have them.
  template <int kBlock>
  __device__ __forceinline__ void Store(uint32_t to) const {
    const uint32_t row = static_cast<uint32_t>(thread_) / 4;
    const uint32_t first = to + row * 128 + row % 8 * 16 + thread_ % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < 2 * kSteps; ++i)  // Piece i of the row's block lies at i ^ row % 8.
      StoreShared(first ^ (i * 16),
                  Unpack<kKind>::Widen(words_, scales_, kBlock * 2 * kSteps + static_cast<int>(i)));
  }

 private:
  __device__ __forceinline__ void CopyNext() {
    if (stages_left_ == 0 && !done_) NextItem();
    if (!done_) {
      CopyAsync16(SharedAddress(&memory_.stages[next_stage_][thread_]), from_, true);
      CopyAsync4(SharedAddress(&memory_.codes[next_stage_][thread_]), codes_from_, true);
      from_ += kStageCols / 2;
      codes_from_ += kKind == MatmulKind::kMmaNvFp4 ? kStageCols / 16 : kStageCols / 32;
      --stages_left_;
    }
    CommitCopies();
    if (++next_stage_ == kStages) next_stage_ = 0;
  }
  __device__ __forceinline__ void NextItem() {
    WaitForPhase(&memory_.item_full[item_.i], item_.parity);
    const Item& item = memory_.items[item_.i];
    item_.Next();
    if (item.num_tokens == 0) {
      done_ = true;
      return;
    }
    stages_left_ = static_cast<int>(shape_.cols) / kStageCols;
    // Row `place` of A: a consumer that holds rows r and r + 8 of a result holds neighbours.
    const int place = thread_ / 4;
    const int64_t row = item.first_row + place / 16 * 16 + place % 8 * 2 + place / 8 % 2;
    from_ = item.data + row * (shape_.cols / 2) + thread_ % 4 * 16;
    // NVFP4: the codes of this lane and of its neighbour.
    codes_from_ =
        item.scale + row * shape_.scale_cols + (kKind == MatmulKind::kMmaNvFp4 ? thread_ % 4 / 2 * 4 : 0);
  }

  Memory& memory_;
  const DeviceWeight& shape_;
  const int thread_;
  uint32_t words_[4];
  typename Unpack<kKind>::Scales scales_;
  int stage_ = kStages - 1;
  // What is asked for next.
  RingPlace<kItems> item_;
  bool done_ = false;
  int stages_left_ = 0;
  int next_stage_ = 0;
  const uint8_t* from_ = nullptr;
  const uint8_t* codes_from_ = nullptr;
};

template <MatmulKind kKind>
__device__ __forceinline__ void Produce(Memory& memory, const Params& p) {
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int lane = thread % 32;
  const int num_stages = static_cast<int>(p.shape.cols) / kStageCols;
  RingPlace<kSlots> place;
  RingPlace<kItems> item_place;
  int i = static_cast<int>(blockIdx.x / kCluster);
  // Tells of item i at item_place; done by one thread.
  const auto publish = [&] {
    if (thread != kProducers - 32) return;
    WaitForPhase(&memory.item_empty[item_place.i], item_place.parity ^ 1U);
    Item found = {};
    if (!FindItem(p, i, found)) found.num_tokens = 0;
    memory.items[item_place.i] = found;
    Arrive(&memory.item_full[item_place.i]);
  };
  Weights<kKind> weights(memory, p.shape, thread);
  publish();
  __syncwarp();
  weights.Begin();
  while (true) {
    WaitForPhase(&memory.item_full[item_place.i], item_place.parity);
    const int item_index = item_place.i;
    const Item& item = memory.items[item_index];
    if (item.num_tokens == 0) return;
    // Each block of a cluster has its share of the tokens brought to both.
    const auto num_bytes = static_cast<uint32_t>(RowsOfPacked(item.num_tokens)) *
                           static_cast<uint32_t>(kBlockCols * sizeof(uint16_t));
    const uint32_t share = num_bytes / kCluster;
    const uint32_t offset = blockIdx.x % kCluster * share;
    const auto* from =
        reinterpret_cast<const unsigned char*>(p.x.data + item.first_x_row * kPackedCols) + offset;
    const int64_t block_bytes = p.x.num_rows * kPackedCols * static_cast<int64_t>(sizeof(uint16_t));
    // The item behind this one is told early: its weights are asked for while this one is worked on.
    item_place.Next();
    i += static_cast<int>(gridDim.x / kCluster);
    publish();
    __syncwarp();
#pragma unroll 1
    for (int stage = 0; stage < num_stages; ++stage) {
      weights.NextStage();
      const auto block = [&]<int kBlock>() {
        Slot& slot = memory.slots[place.i];
        WaitForPhase(&memory.empty[place.i], place.parity ^ 1U);
        if (thread == 0) {
          ArriveAndAnnounce(&memory.full[place.i], num_bytes);
          CopyBulkToCluster(reinterpret_cast<unsigned char*>(slot.x) + offset, from, share,
                            &memory.full[place.i], (1U << kCluster) - 1U);
          from += block_bytes;
        }
        weights.template Store<kBlock>(SharedAddress(slot.weights));
        PublishToMatrixSteps();
        __syncwarp();
        if (lane == 0) Arrive(&memory.full[place.i]);
        place.Next();
      };
      block.template operator()<0>();
      block.template operator()<1>();
    }
    __syncwarp();
    if (lane == 0) Arrive(&memory.item_empty[item_index]);
  }
}

// --- Consumers -------------------------------------------------------------------------------------------------------

// What Unpack's Finish gives. 1 / x to 2^-52, without a call: a quotient of two floats is that far from all halves between floats, so
// what is multiplied by this and then rounded to fp32 is the quotient's rounding.
__device__ __forceinline__ double ReciprocalOfFloat(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
#pragma unroll
  for (int i = 0; i < 3; ++i) y = fma(y, fma(-x, y, 1.0), y);
  return y;
}
// NVFP4: the exact product of two floats, rounded once, by way of double or not.
template <MatmulKind kKind, int kCount>
__device__ __forceinline__ void FinishSums(bool global_scale_divides, float global_scale,
                                           float (&sums)[kCount]) {
  if constexpr (kKind == MatmulKind::kMmaNvFp4) {
    const float factor = global_scale * 0x1p26F;
    const auto global = static_cast<double>(global_scale);
    const double wide = (global_scale_divides ? ReciprocalOfFloat(global) : global) * 0x1p26;
    const bool is_wide = global_scale_divides || !isfinite(factor);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float sum = sums[i];
      sums[i] = sum * factor;
      // Asked for each anew: doubles of all would not fit in registers.
      uint32_t wanted = is_wide ? 1 : 0;
      asm volatile("" : "+r"(wanted));
      if (wanted != 0) sums[i] = static_cast<float>(static_cast<double>(sum) * wide);
    }
  }
}

// This warpgroup's part of a tile: kMost tokens at most, from row `first_x` of the slots' tokens on.
template <MatmulKind kKind, int kMost, typename Release>
__device__ __forceinline__ void MultiplyTile(Memory& memory, int cols, int first_x, RingPlace<kSlots>& place,
                                             Release&& release, float (&total)[kMost / 2]) {
  const int num_blocks = cols / kBlockCols;
  const int segment_blocks = SegmentCols<kKind>(cols) / kBlockCols;
#pragma unroll
  for (int i = 0; i < kMost / 2; ++i) total[i] = -0.0F;  // What is added to it stays what it is.
#pragma unroll 1
  for (int first = 0; first < num_blocks; first += segment_blocks) {
    const int end = min(first + segment_blocks, num_blocks);
    float sums[kMost / 2];
#pragma unroll
    for (int i = 0; i < kMost / 2; ++i) sums[i] = 0.0F;  // Or they would be kept all the time.
    int before = 0;
#pragma unroll 1
    for (int block = first; block < end; ++block) {
      WaitForPhase(&memory.full[place.i], place.parity);
      const Slot& slot = memory.slots[place.i];
      const uint64_t a = MatrixDescriptor(SharedAddress(slot.weights));
      const uint64_t b = MatrixDescriptor(SharedAddress(slot.x + first_x * kBlockCols));
      FenceRegisters(sums);
      BeginMatrixSteps();
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        SharedMatrixStep<kMost>::Add(sums, a + 2 * step, b + 2 * step, 1);
      CommitMatrixSteps();
      if (block > first) {
        WaitForMatrixSteps<1>();
        release(before);
      }
      before = place.i;
      place.Next();
    }
    WaitForMatrixSteps<0>();
    FenceRegisters(sums);
    release(before);
#pragma unroll
    for (int i = 0; i < kMost / 2; ++i) total[i] = total[i] + sums[i];
  }
}

template <MatmulKind kKind>
__device__ __forceinline__ void Consume(Memory& memory, const Params& p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warpgroup = thread / 128;
  const auto rows = static_cast<int>(p.shape.rows);
  // A slot is free in both blocks of the cluster before it is filled in either.
  const auto release = [&](int slot) {
    if (lane < kCluster) ArriveInCluster(&memory.empty[slot], static_cast<uint32_t>(lane));
  };
  RingPlace<kSlots> place;
  RingPlace<kItems> item_place;
  while (true) {
    WaitForPhase(&memory.item_full[item_place.i], item_place.parity);
    const Item& item = memory.items[item_place.i];
    if (item.num_tokens == 0) return;
    const int half = RowsOfPacked((item.num_tokens + 1) / 2);
    const int first_x = warpgroup * half;
    const int num_tokens = warpgroup == 0 ? min(half, item.num_tokens) : item.num_tokens - half;
    const auto tile = [&]<int kMost>() {
      float sums[kMost / 2];
      MultiplyTile<kKind, kMost>(memory, static_cast<int>(p.shape.cols), first_x, place, release, sums);
      FinishSums<kKind>(p.shape.global_scale_divides, item.global_scale, sums);
      const int row = item.first_row + thread % 128 / 32 * 16 + lane / 4 * 2;
      const int first_packed = item.first_x_row + first_x + lane % 4 * 2;
      uint16_t* const y = p.y + item.matrix * rows + row;
      const int64_t stride = int64_t{p.num_matrices} * rows;
#pragma unroll
      for (int j = 0; j < kMost / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (j * 8 + lane % 4 * 2 + e >= num_tokens) continue;
          const int packed = first_packed + j * 8 + e;
          const int64_t to = p.by_assignment ? p.grouping.order[packed] : packed;
          *reinterpret_cast<uint32_t*>(y + to * stride) = Bf16Pair(sums[4 * j + e], sums[4 * j + e + 2]);
        }
      }
    };
    if (num_tokens > 112) {
      tile.template operator()<128>();
    } else if (num_tokens > 96) {
      tile.template operator()<112>();
    } else if (num_tokens > 64) {
      tile.template operator()<96>();
    } else if (num_tokens > 32) {
      tile.template operator()<64>();
    } else {
      tile.template operator()<32>();
    }
    __syncwarp();
    if (lane == 0) Arrive(&memory.item_empty[item_place.i]);
    item_place.Next();
  }
}

template <MatmulKind kKind>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, 1)
    ExpertsKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<Memory*>(raw_memory);
  BeginKernel();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(&memory.full[i], 1 + kProducers / 32);
      InitBarrier(&memory.empty[i], kCluster * kConsumers / 32);
    }
    for (int i = 0; i < kItems; ++i) {
      InitBarrier(&memory.item_full[i], 1);
      InitBarrier(&memory.item_empty[i], kThreads / 32);
    }
    PublishBarriers();
  }
  __syncwarp();
  MeetInCluster();
  if (threadIdx.x >= kConsumers) {
    GiveUpRegisters<kProducerRegisters>();
    Produce<kKind>(memory, p);
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consume<kKind>(memory, p);
  }
  __syncwarp();
  // Nobody leaves while others may still arrive at its barriers.
  MeetInCluster();
}

void Launch(CudaContext& context, const Params& params) {
  const auto launch = [&](auto* kernel) {
    const int clusters = std::max(1, context.queue().MostClusters(reinterpret_cast<const void*>(kernel),
                                                                  kCluster, kThreads, sizeof(Memory)));
    context.Launch(kernel, static_cast<unsigned>(clusters * kCluster), kThreads, sizeof(Memory), params);
  };
  if (params.shape.kind == MatmulKind::kMmaNvFp4) {
    launch(ExpertsKernel<MatmulKind::kMmaNvFp4>);
  } else {
    launch(ExpertsKernel<MatmulKind::kMmaMxFp4>);
  }
}

bool Fits(const DeviceWeight& weight) {
  const bool nvfp4 = weight.kind == MatmulKind::kMmaNvFp4;
  return (nvfp4 || weight.kind == MatmulKind::kMmaMxFp4) && weight.rows % (kCluster * kRows) == 0 &&
         weight.cols % kStageCols == 0 && weight.cols >= kStages * kStageCols &&
         weight.scale_cols == weight.cols / (nvfp4 ? kNvFp4Block : kMxFp4Block) &&
         reinterpret_cast<uintptr_t>(weight.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(weight.scale) % 4 == 0;
}

}  // namespace

bool HasExpertsWide(const ExpertTable& table, const ops::ExpertTermsArgs& args) {
  const int64_t num_assignments = args.indices.num_elements();
  return num_assignments >= kMinTokensOfExpert * args.num_experts && Fits(table.w1) && Fits(table.w2) &&
         CanGroupAndPack(table, args);
}

Status ExpertsWide(CudaContext& context, const ExpertTable& table, const TermsWork& work) {
  const ops::ExpertTermsArgs& args = work.args;
  const int64_t dim = args.x.shape[1];
  const int64_t width = table.w1.rows;
  DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertGrouping grouping, GroupByExpert(context, work, kTokens));
  DSV4_ASSIGN_OR_RETURN_STATUS(uint16_t* const gate_up,
                               context.Scratch<uint16_t>(grouping.max_rows * 2 * width));
  const RowSource tokens = {.x = args.x.data,
                            .dtype = args.x.dtype,
                            .stride = dim,
                            .num_rows = grouping.max_rows,
                            .origins = grouping.order,
                            .divisor = static_cast<int>(args.indices.shape[1])};
  Params params = {.shape = table.w1,
                   .weights = table.weights,
                   .first_matrix = 0,
                   .num_matrices = 2,
                   .x = {},
                   .grouping = grouping,
                   .row_clusters = static_cast<int>(width / (kCluster * kRows)),
                   .y = gate_up,
                   .by_assignment = false};
  DSV4_ASSIGN_OR_RETURN_STATUS(params.x, Pack(context, tokens, dim, table.w1.quantized_x, table.w1.kind));
  Launch(context, params);

  const RowSource activations = {.x = gate_up,
                                 .dtype = DType::kBF16,
                                 .stride = 2 * width,
                                 .num_rows = grouping.max_rows,
                                 .origins = grouping.order,
                                 .divisor = 0,
                                 .row_weights = args.weights.as<const float>(),
                                 .limit = args.limit};
  params.shape = table.w2;
  params.first_matrix = 2;
  params.num_matrices = 1;
  params.row_clusters = static_cast<int>(dim / (kCluster * kRows));
  params.y = args.terms.as<uint16_t>();
  params.by_assignment = true;
  DSV4_ASSIGN_OR_RETURN_STATUS(params.x,
                               Pack(context, activations, width, table.w2.quantized_x, table.w2.kind));
  Launch(context, params);
  return {};
}

}  // namespace dsv4::backend::cuda
