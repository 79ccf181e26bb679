#include "backend/cuda/kernels/attention/attention_over_ranks.cuh"
#include "backend/cuda/runtime/open_attention.h"
#include "backend/cuda/runtime/open_launches.h"

namespace dsv4::backend::cuda {
namespace {

using over_ranks::AttentionOverRanksKernel;
using over_ranks::kBlocks;
using over_ranks::kMaxTiles;
using over_ranks::Memory;
using over_ranks::TileResults;

using Kernel = void (*)(AttentionOverRanks);
template <int kDim>
Kernel KernelFor(int num_ranks) {
  switch (num_ranks) {
    case 2:
      return AttentionOverRanksKernel<kDim, 2>;
    case 4:
      return AttentionOverRanksKernel<kDim, 4>;
    case 8:
      return AttentionOverRanksKernel<kDim, 8>;
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
  if (before != 0) context.Fused(FusionRule::kAttentionOverRanks);
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
