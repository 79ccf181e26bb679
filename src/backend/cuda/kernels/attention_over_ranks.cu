// A cluster of blocks takes 16 heads through this rank's keys, tile by tile as attention_part.cu does, and joins the tiles through
// shared memory. Which of the two exchanges around it belong to the launch, and what follows them, its parameters say.
#include <cooperative_groups.h>

#include "backend/cuda/kernels/attention_over_ranks.h"
#include "backend/cuda/kernels/attention_part.cuh"
#include "backend/cuda/kernels/attention_tile.cuh"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/open_attention.h"
#include "backend/cuda/kernels/open_launches.h"
#include "backend/cuda/kernels/peer_exchange.cuh"
#include "backend/cuda/kernels/row_steps.cuh"

namespace dsv4::backend::cuda {

struct AttentionOverRanks {
  SequenceTable table;
  PartParams part = {};  // Of all ranks' heads.
  PeerLinks links = {};
  const uint32_t* own_q = nullptr;  // This rank's heads, two elements a word,
  uint32_t* all_q = nullptr;        // and where all ranks' are wanted: what part reads.
  int own_heads = 0;
  int tiles_of_block = 0;
  float* parts = nullptr;       // [ranks, own_heads, dim + 2]; null: parts are not exchanged.
  const float* sink = nullptr;  // Of this rank's heads,
  uint16_t* o = nullptr;        // as is this; null: parts are not merged.
  OutputRotation rotation = {};
};

namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;    // Of a cluster; tile t is block t % 8's.
constexpr int kMaxTiles = 4;  // Of a block: what its shared memory holds.
constexpr int kHeadsOfBlock = kAttentionHeads / kBlocks;

template <int kDim>
struct TileResults {
  union {
    AttentionLogits logits;
    float values[kAttentionHeads][kDim];
  };
  float maxima[kAttentionHeads];
  float sums[kAttentionHeads];
};

template <int kDim>
struct Memory {
  AttentionTile<kDim> tile;
  TileResults<kDim> first_results;  // As many as a block has tiles follow each other.
};

// Grid: blocks of a cluster, groups of all ranks' heads. What is taken is not cleared: places are written over at their next use, and no
// mark comes again before two thousand million rounds.
template <int kDim, int kRanks>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kAttentionThreads)
    OverRanksKernel(const __grid_constant__ AttentionOverRanks p) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<Memory<kDim>*>(raw);
  TileResults<kDim>* const results = &m.first_results;
  const cg::cluster_group cluster = cg::this_cluster();
  const int block = static_cast<int>(cluster.block_rank());
  const int thread = static_cast<int>(threadIdx.x);
  const PeerLinks& links = p.links;
  const uint64_t round = links.state->round + 1;  // Of the queries; the parts' is the next.
  const bool active = links.state->broken == 0;
  std::byte* const mailbox = links.mailboxes[links.rank];
  bool whole = true;
  const int first_head = static_cast<int>(blockIdx.y) * kAttentionHeads;
  const int owner = first_head / p.own_heads;
  const int own_begin = links.rank * p.own_heads;

  // This rank's queries, on their way while keys are read.
  {
    const int num_words = p.own_heads * kDim / 2;
    const int num_threads = static_cast<int>(gridDim.x * gridDim.y) * kAttentionThreads;
    const int first = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * kAttentionThreads + thread;
    for (int i = first; i < num_words; i += num_threads) {
      const uint32_t word = p.own_q[i];
      p.all_q[own_begin * (kDim / 2) + i] = word;
      for (int k = 1; active && k < kRanks; ++k) {
        const int peer = (links.rank + k) % kRanks;  // Not all to the same one first.
        PushWord(WordPlace(links.mailboxes[peer], round, links.rank, i), word, MarkOf(round));
      }
    }
  }
  const PartKeys keys(p.table, p.part, 0);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, int64_t{kAttentionKeys}));
  const int mine = block < num_tiles ? (num_tiles - block + kBlocks - 1) / kBlocks : 0;
  const auto load_keys = [&](int i) {
    const int64_t first_key = int64_t{block + i * kBlocks} * kAttentionKeys;
    const int num_keys = static_cast<int>(min(int64_t{kAttentionKeys}, keys.num_keys - first_key));
    LoadKeys(m.tile, keys, first_key, num_keys);
    return num_keys;
  };
  int num_keys = mine > 0 ? load_keys(0) : 0;
  __syncthreads();
  // All threads have read the round; that it is counted here is known by the end.
  int left_before = 0;
  if (thread == 0 && active) left_before = atomicAdd(&links.state->num_done, 1);

  const auto* q = reinterpret_cast<const uint16_t*>(p.own_q) + int64_t{first_head - own_begin} * kDim;
  if (owner != links.rank) {
    constexpr int kWords = kAttentionHeads * kDim / 2 / (kBlocks * kAttentionThreads);
    const int first = block * kAttentionThreads + thread;
    const int64_t sent = int64_t{first_head - owner * p.own_heads} * (kDim / 2);
    uint64_t words[kWords] = {};
    if (active) {
      whole = WaitUntil(links, [&] {
        bool there = true;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          words[i] =
              LookAtWord(WordPlace(mailbox, round, owner, sent + first + i * kBlocks * kAttentionThreads));
        }
#pragma unroll
        for (int i = 0; i < kWords; ++i)
          there = there && static_cast<uint32_t>(words[i] >> 32) == MarkOf(round);
        return there ? -1 : owner;
      });
    }
    uint32_t* const all = p.all_q + int64_t{first_head} * (kDim / 2);
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      all[first + i * kBlocks * kAttentionThreads] = static_cast<uint32_t>(words[i]);
    q = reinterpret_cast<const uint16_t*>(all);
    cluster.sync();  // Blocks read what others have taken.
  }
  if (mine > 0) {
    LoadQueries(m.tile, q, kAttentionHeads);
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncthreads();
  }
  for (int i = 0; i < mine; ++i) {
    if (i > 0) num_keys = load_keys(i);
    ComputeLogits(m.tile, results[i].logits, num_keys, p.part.softmax_scale);
    const float max = LargestLogit(results[i].logits);
    const float sum = WeighKeys(m.tile, results[i].logits, max);
    if (thread % 8 == 0) {
      results[i].maxima[thread / 8] = max;
      results[i].sums[thread / 8] = sum;
    }
    __syncthreads();  // Logits have been read: values may take their place.
    SumValues(m.tile, [&](int of, int column, float first, float second) {
      *reinterpret_cast<float2*>(&results[i].values[of][column]) = make_float2(first, second);
    });
    __syncthreads();
  }
  cluster.sync();

  // Columns i * kAttentionThreads + thread of a row are this thread's; those that are rotated lie among the last.
  constexpr int kColumns = kDim / kAttentionThreads;
  constexpr int kWidth = kDim + 2;
  const int place = thread - kAttentionThreads + 2 * p.rotation.num_frequencies;
  bool rotates = place >= 0;
  double2 turn = make_double2(1.0, 0.0);
  if (p.rotation.num_frequencies > 0 && owner == links.rank) {
    const int32_t position = p.rotation.positions[0];
    if (position < 0) {
      rotates = false;
      if (block == 0 && first_head == own_begin && thread == 0)
        ReportFault(p.rotation.fault, FaultKind::kPosition, 0, 0, position, 0);
    }
    if (rotates) turn = Rotation(position, p.rotation.frequencies[place / 2], p.rotation.inverse);
  }
#pragma unroll
  for (int h = 0; h < kHeadsOfBlock; ++h) {
    const int of = block * kHeadsOfBlock + h;
    // Tiles in order.
    float max = -INFINITY;
    for (int t = 0; t < num_tiles; ++t)
      max = fmaxf(max, cluster.map_shared_rank(results, t % kBlocks)[t / kBlocks].maxima[of]);
    float sum = 0.0F;
    float values[kColumns] = {};
    for (int t = 0; t < num_tiles; ++t) {
      const TileResults<kDim>& of_tile = cluster.map_shared_rank(results, t % kBlocks)[t / kBlocks];
      const float factor = expf(of_tile.maxima[of] - max);
      sum = fmaf(factor, of_tile.sums[of], sum);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        values[i] = fmaf(factor, of_tile.values[of][i * kAttentionThreads + thread], values[i]);
    }
    const int64_t head = first_head + of;
    float* const row = p.part.part + head * kWidth;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) row[i * kAttentionThreads + thread] = values[i];
    if (thread == 0) {
      row[kDim] = max;
      row[kDim + 1] = sum;
    }
    if (p.parts == nullptr) continue;

    const int64_t of_owner = (head - owner * p.own_heads) * kWidth;  // Its number in what its owner gets.
    if (owner != links.rank) {
      if (!active) continue;
      std::byte* const to = WordPlace(links.mailboxes[owner], round + 1, links.rank, of_owner);
      const auto push = [&](int column, float value) {
        PushWord(to + column * static_cast<int64_t>(sizeof(uint64_t)), __float_as_uint(value),
                 MarkOf(round + 1));
      };
#pragma unroll
      for (int i = 0; i < kColumns; ++i) push(i * kAttentionThreads + thread, values[i]);
      if (thread == 0) push(kDim, max);
      if (thread == 32) push(kDim + 1, sum);
      continue;
    }
    // All ranks' columns of this thread, maximum and sum, asked for at once.
    uint64_t words[kRanks][kColumns + 2] = {};
    const auto column_of = [&](int i) {
      return i < kColumns ? i * kAttentionThreads + thread : kDim + i - kColumns;
    };
    if (active && whole) {
      whole = WaitUntil(links, [&] {
        int source = -1;
#pragma unroll
        for (int r = 0; r < kRanks; ++r) {
          if (r == links.rank) continue;
#pragma unroll
          for (int i = 0; i < kColumns + 2; ++i)
            words[r][i] = LookAtWord(WordPlace(mailbox, round + 1, r, of_owner + column_of(i)));
        }
#pragma unroll
        for (int r = 0; r < kRanks; ++r) {
          if (r == links.rank) continue;
#pragma unroll
          for (int i = 0; i < kColumns + 2; ++i) {
            if (static_cast<uint32_t>(words[r][i] >> 32) != MarkOf(round + 1)) source = r;
          }
        }
        return source;
      });
    }
    float parts[kRanks][kColumns + 2];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns + 2; ++i) {
        const float own = i < kColumns ? values[i < kColumns ? i : 0] : (i == kColumns ? max : sum);
        parts[r][i] = r == links.rank ? own : __uint_as_float(static_cast<uint32_t>(words[r][i]));
        if (i < kColumns || thread == 0)
          p.parts[int64_t{r} * p.own_heads * kWidth + of_owner + column_of(i)] = parts[r][i];
      }
    }
    if (p.o == nullptr) continue;

    // As MergeKernel.
    float largest = -INFINITY;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) largest = fmaxf(largest, parts[r][kColumns]);
    double factors[kRanks];
    double total = 0.0;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      const bool empty = parts[r][kColumns + 1] == 0.0F;
      factors[r] = empty ? 0.0 : exp(static_cast<double>(parts[r][kColumns]) - static_cast<double>(largest));
      if (factors[r] != 0.0) total += factors[r] * static_cast<double>(parts[r][kColumns + 1]);
    }
    const int64_t own_head = head - own_begin;
    const double scale =
        1.0 / (total + exp(static_cast<double>(p.sink[own_head]) - static_cast<double>(largest)));
    float o[kColumns] = {};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (factors[r] != 0.0) o[i] = fmaf(static_cast<float>(factors[r] * scale), parts[r][i], o[i]);
      }
      o[i] = RoundToBf16(o[i]);
    }
    if (p.rotation.num_frequencies > 0) {
      // Pairs of columns are neighbours in a warp.
      float& value = o[kColumns - 1];
      const float other = __shfl_xor_sync(kWholeWarp, value, 1);
      if (rotates) {
        const bool odd = thread % 2 != 0;
        const float2 pair = Rotated(odd ? other : value, odd ? value : other, turn, true);
        value = odd ? pair.y : pair.x;
      }
    }
    uint16_t* const out = p.o + own_head * kDim;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) out[i * kAttentionThreads + thread] = Bf16FromFloat(o[i]);
  }

  const bool all_whole = __syncthreads_or(whole ? 0 : 1) == 0;
  if (thread == 0 && active) {
    if (!all_whole) atomicExch(&links.state->broken, 1);
    if (left_before == static_cast<int>(gridDim.x * gridDim.y) - 1) {
      links.state->num_done = 0;
      links.state->round = p.parts == nullptr ? round : round + 1;
    }
  }
  cluster.sync();  // Nobody leaves while its results may still be read.
}

using Kernel = void (*)(AttentionOverRanks);
template <int kDim>
Kernel KernelFor(int num_ranks) {
  switch (num_ranks) {
    case 2:
      return OverRanksKernel<kDim, 2>;
    case 4:
      return OverRanksKernel<kDim, 4>;
    case 8:
      return OverRanksKernel<kDim, 8>;
    default:
      return nullptr;
  }
}

int64_t TilesOfBlock(int64_t max_keys) {
  return CeilDiv(InSteps(CeilDiv(max_keys, int64_t{kAttentionKeys})), int64_t{kBlocks});
}

// In place of `before` unless that is 0. What was launched is the open attention; false: it was too late.
bool Launch(CudaContext& context, uint64_t before, const AttentionOverRanks& params) {
  const dim3 grid(kBlocks, static_cast<unsigned>(params.part.num_heads / kAttentionHeads));
  const auto launch = [&]<int kDim>() {
    const size_t shared_bytes =
        sizeof(Memory<kDim>) + static_cast<size_t>(params.tiles_of_block - 1) * sizeof(TileResults<kDim>);
    return context.queue().LaunchInPlaceOf(before, KernelFor<kDim>(params.links.size), grid,
                                           kAttentionThreads, shared_bytes, params);
  };
  const uint64_t number =
      params.part.head_dim == 512 ? launch.template operator()<512>() : launch.template operator()<128>();
  if (number == 0) return false;
  context.open_attention() = std::make_shared<OpenAttention>(OpenAttention{
      .launch = number, .table = {}, .over_ranks = std::make_shared<AttentionOverRanks>(params)});
  return true;
}

// The open attention over ranks, if its launch is the last.
const OpenAttention* OpenOverRanks(CudaContext& context) {
  const OpenAttention* const open = context.open_attention().get();
  const bool is_open =
      open != nullptr && open->over_ranks != nullptr && context.queue().IsLastLaunch(open->launch);
  return is_open ? open : nullptr;
}

}  // namespace

void NoteGathered(CudaContext& context, uint64_t launch, const PeerLinks& links, const void* mine, void* all,
                  int64_t num_bytes) {
  AttentionOverRanks gathered;
  gathered.links = links;
  gathered.own_q = static_cast<const uint32_t*>(mine);
  gathered.all_q = static_cast<uint32_t*>(all);
  gathered.own_heads = static_cast<int>(num_bytes);  // Bytes until it is known how long a head is.
  context.open_attention() = std::make_shared<OpenAttention>(OpenAttention{
      .launch = launch, .table = {}, .over_ranks = std::make_shared<AttentionOverRanks>(gathered)});
}

std::shared_ptr<AttentionOverRanks> OpenQueries(CudaContext& context, const PartParams& part, DType dtype,
                                                int64_t max_keys) {
  const OpenAttention* const open = OpenOverRanks(context);
  if (open == nullptr || open->over_ranks->part.num_tokens != 0 || open->over_ranks->all_q != part.q ||
      part.num_tokens != 1 || dtype != DType::kBF16 || (part.head_dim != 512 && part.head_dim != 128) ||
      TilesOfBlock(max_keys) > kMaxTiles) {
    return nullptr;
  }
  auto over_ranks = std::make_shared<AttentionOverRanks>(*open->over_ranks);
  const int64_t num_bytes = over_ranks->own_heads;
  const int64_t own_heads = num_bytes / (part.head_dim * int64_t{sizeof(uint16_t)});
  if (KernelFor<512>(over_ranks->links.size) == nullptr ||
      own_heads * over_ranks->links.size != part.num_heads || own_heads % kAttentionHeads != 0 ||
      reinterpret_cast<uintptr_t>(over_ranks->own_q) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(over_ranks->all_q) % 16 != 0) {
    return nullptr;
  }
  over_ranks->own_heads = static_cast<int>(own_heads);
  return over_ranks;
}

bool PartOverRanks(CudaContext& context, uint64_t before, const AttentionOverRanks& over_ranks,
                   const SequenceTable& table, const PartParams& part, int64_t max_keys) {
  AttentionOverRanks params = over_ranks;
  params.table = table;
  params.part = part;
  params.tiles_of_block = static_cast<int>(TilesOfBlock(max_keys));
  return Launch(context, before, params);
}

bool PartsJoinPart(CudaContext& context, const void* mine, void* parts,
                   std::span<const int64_t> piece_bytes) {
  const OpenAttention* const open = OpenOverRanks(context);
  if (open == nullptr) return false;
  AttentionOverRanks params = *open->over_ranks;
  const int64_t row_bytes = (params.part.head_dim + 2) * int64_t{sizeof(float)};
  const int64_t bytes = params.own_heads * row_bytes;
  if (params.part.num_tokens != 1 || params.parts != nullptr || params.part.part != mine ||
      bytes > kMaxPackedBytes ||
      std::ranges::any_of(piece_bytes, [&](int64_t piece) { return piece != bytes; })) {
    return false;
  }
  // The kernel writes a part and reads keys and queries until others wait for it.
  const int64_t parts_bytes = params.links.size * bytes;
  if (BytesOverlap(parts, parts_bytes, params.all_q,
                   params.part.num_heads * params.part.head_dim * int64_t{2}) ||
      BytesOverlap(parts, parts_bytes, params.own_q, params.own_heads * params.part.head_dim * int64_t{2}) ||
      BytesOverlap(parts, parts_bytes, mine, params.part.num_heads * row_bytes)) {
    return false;
  }
  params.parts = static_cast<float*>(parts);
  return Launch(context, open->launch, params);
}

bool MergeJoinsParts(CudaContext& context, const ops::MergeAttentionArgs& args) {
  const OpenAttention* const open = OpenOverRanks(context);
  if (open == nullptr) return false;
  AttentionOverRanks params = *open->over_ranks;
  const int64_t heads = params.own_heads;
  const int64_t dim = params.part.head_dim;
  if (params.parts == nullptr || params.o != nullptr || args.parts.data != params.parts ||
      args.parts.shape != Shape{params.links.size, 1, heads, dim + 2} || args.o.dtype != DType::kBF16) {
    return false;
  }
  const int64_t o_bytes = args.o.num_bytes();
  const int64_t row_bytes = (dim + 2) * int64_t{sizeof(float)};
  if (BytesOverlap(args.o.data, o_bytes, params.all_q, params.part.num_heads * dim * 2) ||
      BytesOverlap(args.o.data, o_bytes, params.own_q, heads * dim * 2) ||
      BytesOverlap(args.o.data, o_bytes, params.part.part, params.part.num_heads * row_bytes) ||
      BytesOverlap(args.o.data, o_bytes, params.parts, args.parts.num_bytes()) ||
      BytesOverlap(args.o.data, o_bytes, args.sink.data, args.sink.num_bytes())) {
    return false;
  }
  params.sink = args.sink.as<const float>();
  params.o = args.o.as<uint16_t>();
  return Launch(context, open->launch, params);
}

bool RopeJoinsRanks(CudaContext& context, const ops::RopeArgs& args) {
  const OpenAttention* const open = OpenOverRanks(context);
  if (open == nullptr) return false;
  AttentionOverRanks params = *open->over_ranks;
  const int64_t num_frequencies = args.frequencies.shape[0];
  if (params.o == nullptr || params.rotation.num_frequencies != 0 || args.x.data != params.o ||
      args.x.dtype != DType::kBF16 || args.x.shape != Shape{1, params.own_heads, params.part.head_dim} ||
      2 * num_frequencies > kAttentionThreads ||
      BytesOverlap(args.x.data, args.x.num_bytes(), args.frequencies.data, args.frequencies.num_bytes()) ||
      BytesOverlap(args.x.data, args.x.num_bytes(), args.positions.data, args.positions.num_bytes())) {
    return false;
  }
  params.rotation = {.frequencies = args.frequencies.as<const float>(),
                     .positions = args.positions.as<const int32_t>(),
                     .fault = context.fault(),
                     .num_frequencies = static_cast<int>(num_frequencies),
                     .inverse = args.inverse};
  return Launch(context, open->launch, params);
}

}  // namespace dsv4::backend::cuda
