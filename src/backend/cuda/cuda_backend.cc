#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "backend/cuda/cuda_ops.h"

namespace dsv4::backend {
namespace cuda {
namespace {

// What the journal keeps of an op, and the operand whose device is checked.
OpRecord Record(const ops::EmbedArgs& a) { return {"embed", {a.table.shape, a.streams.shape}}; }
OpRecord Record(const ops::RmsNormArgs& a) { return {"rms_norm", {a.x.shape}}; }
OpRecord Record(const ops::HeadRmsNormArgs& a) { return {"head_rms_norm", {a.x.shape}}; }
OpRecord Record(const ops::LinearArgs& a) {
  return {"linear", {a.x.shape, {a.weight->rows, a.weight->cols}}};
}
OpRecord Record(const ops::GroupedLinearArgs& a) {
  return {"grouped_linear", {a.x.shape, {a.weight->rows, a.weight->cols}}};
}
OpRecord Record(const ops::RopeArgs& a) { return {"rope", {a.x.shape, a.frequencies.shape}}; }
OpRecord Record(const ops::SimulateFp8Args& a) { return {"simulate_fp8", {a.x.shape}}; }
OpRecord Record(const ops::HadamardFp4Args& a) { return {"hadamard_fp4", {a.x.shape}}; }
OpRecord Record(const ops::ScaleArgs& a) { return {"scale", {a.x.shape}}; }
OpRecord Record(const ops::HcPreArgs& a) { return {"hc_pre", {a.streams.shape, a.fn.shape}}; }
OpRecord Record(const ops::HcPostArgs& a) { return {"hc_post", {a.residual.shape}}; }
OpRecord Record(const ops::HcHeadArgs& a) { return {"hc_head", {a.streams.shape, a.fn.shape}}; }
OpRecord Record(const ops::StoreRowsArgs& a) { return {"store_rows", {a.source.shape}}; }
OpRecord Record(const ops::CompressorPoolArgs& a) {
  return {"compressor_pool", {a.values.shape, a.pooled.shape}};
}
OpRecord Record(const ops::IndexerSelectArgs& a) { return {"indexer_select", {a.q.shape, a.selected.shape}}; }
OpRecord Record(const ops::AttentionArgs& a) { return {"attention", {a.q.shape, a.selected.shape}}; }
OpRecord Record(const ops::RouterArgs& a) { return {"router", {a.logits.shape, a.indices.shape}}; }
OpRecord Record(const ops::SwigluArgs& a) { return {"swiglu", {a.gate.shape}}; }
OpRecord Record(const ops::RoutedExpertsArgs& a) {
  return {"routed_experts", {a.x.shape, a.indices.shape, {static_cast<int64_t>(a.experts.size())}}};
}
OpRecord Record(const ops::MoeCombineArgs& a) { return {"moe_combine", {a.routed.shape}}; }
OpRecord Record(const ops::SampleArgs& a) { return {"sample", {a.logits.shape}}; }
OpRecord Record(const ops::IndexerCandidatesArgs& a) {
  return {"indexer_candidates", {a.q.shape, a.candidates.shape}};
}
OpRecord Record(const ops::MergeCandidatesArgs& a) {
  return {"merge_candidates", {a.candidates.shape, a.selected.shape}};
}
OpRecord Record(const ops::AttentionPartArgs& a) { return {"attention_part", {a.q.shape, a.selected.shape}}; }
OpRecord Record(const ops::MergeAttentionArgs& a) { return {"merge_attention", {a.parts.shape}}; }
OpRecord Record(const ops::GatherRowsArgs& a) { return {"gather_rows", {a.rows.shape}}; }
OpRecord Record(const ops::SumRowsArgs& a) { return {"sum_rows", {a.rows.shape, a.out.shape}}; }
OpRecord Record(const ops::ExpertTermsArgs& a) {
  return {"expert_terms", {a.x.shape, a.indices.shape, {static_cast<int64_t>(a.experts.size())}}};
}
OpRecord Record(const ops::SumTermsArgs& a) { return {"sum_terms", {a.parts.shape}}; }

const TensorView& Operand(const ops::EmbedArgs& a) { return a.streams; }
const TensorView& Operand(const ops::RmsNormArgs& a) { return a.x; }
const TensorView& Operand(const ops::HeadRmsNormArgs& a) { return a.x; }
const TensorView& Operand(const ops::LinearArgs& a) { return a.x; }
const TensorView& Operand(const ops::GroupedLinearArgs& a) { return a.x; }
const TensorView& Operand(const ops::RopeArgs& a) { return a.x; }
const TensorView& Operand(const ops::SimulateFp8Args& a) { return a.x; }
const TensorView& Operand(const ops::HadamardFp4Args& a) { return a.x; }
const TensorView& Operand(const ops::ScaleArgs& a) { return a.x; }
const TensorView& Operand(const ops::HcPreArgs& a) { return a.streams; }
const TensorView& Operand(const ops::HcPostArgs& a) { return a.residual; }
const TensorView& Operand(const ops::HcHeadArgs& a) { return a.streams; }
const TensorView& Operand(const ops::StoreRowsArgs& a) { return a.source; }
const TensorView& Operand(const ops::CompressorPoolArgs& a) { return a.values; }
const TensorView& Operand(const ops::IndexerSelectArgs& a) { return a.q; }
const TensorView& Operand(const ops::AttentionArgs& a) { return a.q; }
const TensorView& Operand(const ops::RouterArgs& a) { return a.logits; }
const TensorView& Operand(const ops::SwigluArgs& a) { return a.gate; }
const TensorView& Operand(const ops::RoutedExpertsArgs& a) { return a.x; }
const TensorView& Operand(const ops::MoeCombineArgs& a) { return a.routed; }
const TensorView& Operand(const ops::SampleArgs& a) { return a.logits; }
const TensorView& Operand(const ops::IndexerCandidatesArgs& a) { return a.q; }
const TensorView& Operand(const ops::MergeCandidatesArgs& a) { return a.candidates; }
const TensorView& Operand(const ops::AttentionPartArgs& a) { return a.part; }
const TensorView& Operand(const ops::MergeAttentionArgs& a) { return a.o; }
const TensorView& Operand(const ops::GatherRowsArgs& a) { return a.rows; }
const TensorView& Operand(const ops::SumRowsArgs& a) { return a.out; }
const TensorView& Operand(const ops::ExpertTermsArgs& a) { return a.x; }
const TensorView& Operand(const ops::SumTermsArgs& a) { return a.y; }

// The table's entry for an op: validation, the checks every op needs, then the op.
template <typename Args, Status (*kRun)(CudaContext&, const Args&)>
Status Entry(ops::OpContext& context, const Args& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  auto& cuda = static_cast<CudaContext&>(context);
  return cuda.RunOp(Record(args), Operand(args), [&] { return kRun(cuda, args); });
}

// Experts whose table exists were valid when it was made. Checking hundreds of them takes longer than running them, so then
// one stands for all.
template <typename Args, Status (*kRun)(CudaContext&, const Args&)>
Status ExpertsEntry(ops::OpContext& context, const Args& args) {
  auto& cuda = static_cast<CudaContext&>(context);
  Args checked = args;
  if (cuda.expert_tables().Knows(args.experts, args.x.dtype)) checked.experts = args.experts.first(1);
  DSV4_RETURN_IF_ERROR(Validate(checked));
  return cuda.RunOp(Record(args), Operand(args), [&] { return kRun(cuda, args); });
}

// Reads host memory, and queues copies and what follows them.
Status PrepareWeightEntry(ops::OpContext& context, const ops::PrepareWeightArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  return PrepareWeight(static_cast<CudaContext&>(context), args);
}

bool Says(const char* value, std::string_view wanted) { return value != nullptr && value == wanted; }

Result<BlockScaledMode> BlockScaledFromOutside() {
  const char* const value = std::getenv("DSV4_CUDA_BLOCK_SCALED");
  if (value == nullptr || *value == '\0') return BlockScaledMode::kOff;
  if (Says(value, "fp8")) return BlockScaledMode::kFp8;
  if (Says(value, "fp4")) return BlockScaledMode::kFp4;
  return Error(
      InvalidArgument(fmt::format("backend cuda: DSV4_CUDA_BLOCK_SCALED is \"{}\", want fp8 or fp4", value)));
}

Result<Fp8Products> Fp8ProductsFromOutside() {
  const char* const value = std::getenv("DSV4_CUDA_FP8_PRODUCTS");
  if (value == nullptr || *value == '\0') return Fp8Products::kOff;
  if (Says(value, "many")) return Fp8Products::kMany;
  if (Says(value, "all")) return Fp8Products::kAll;
  return Error(InvalidArgument(
      fmt::format("backend cuda: DSV4_CUDA_FP8_PRODUCTS is \"{}\", want many or all", value)));
}

#ifdef DSV4_CUDA_BLACKWELL
constexpr bool kHasBlackwell = true;
#else
constexpr bool kHasBlackwell = false;
#endif

}  // namespace
}  // namespace cuda

std::vector<CudaDeviceInfo> CudaDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::vector<CudaDeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    devices.push_back({i, properties.name, properties.major, properties.minor, properties.totalGlobalMem});
  }
  return devices;
}

bool HasCodeFor(const CudaDeviceInfo& device) {
  if (device.minor != 0) return false;
  return device.major == 9 || (device.major == 10 && cuda::kHasBlackwell);
}

Result<ops::Backend> MakeCudaBackend(const CudaOptions& options) {
  const std::vector<CudaDeviceInfo> devices = CudaDevices();
  if (devices.empty()) {
    return Error(FailedPrecondition("backend cuda: no NVIDIA device or driver on this machine"));
  }
  const CudaDeviceInfo* device = nullptr;
  for (const CudaDeviceInfo& candidate : devices) {
    if (candidate.index == options.device) device = &candidate;
  }
  if (device == nullptr) {
    return Error(FailedPrecondition(
        fmt::format("backend cuda: device {}, want 0 to {}", options.device, devices.size() - 1)));
  }
  if (!HasCodeFor(*device)) {
    return Error(FailedPrecondition(
        fmt::format("backend cuda: {} has compute capability {}.{}, this build has code for {}", device->name,
                    device->major, device->minor,
                    cuda::kHasBlackwell ? "9.0 (Hopper) and 10.0 (Blackwell)" : "9.0 (Hopper)")));
  }
  cuda::BlockScaledMode block_scaled = options.block_scaled;
  if (block_scaled == cuda::BlockScaledMode::kOff) {
    DSV4_ASSIGN_OR_RETURN(block_scaled, cuda::BlockScaledFromOutside());
  }
  if (block_scaled != cuda::BlockScaledMode::kOff && device->major != 10) {
    return Error(FailedPrecondition(
        fmt::format("backend cuda: block-scaled products (DSV4_CUDA_BLOCK_SCALED) want a device of compute "
                    "capability 10.0 (Blackwell), {} has {}.{}",
                    device->name, device->major, device->minor)));
  }
  cuda::Fp8Products fp8_products = options.fp8_products;
  if (fp8_products == cuda::Fp8Products::kOff) {
    DSV4_ASSIGN_OR_RETURN(fp8_products, cuda::Fp8ProductsFromOutside());
  }
  if (fp8_products != cuda::Fp8Products::kOff && device->major != 9) {
    return Error(FailedPrecondition(
        fmt::format("backend cuda: products in FP8 (DSV4_CUDA_FP8_PRODUCTS) want a device of compute "
                    "capability 9.0 (Hopper), {} has {}.{}",
                    device->name, device->major, device->minor)));
  }
  const cuda::QueueOptions queue_options = {
      .device = options.device,
      .synchronous = options.synchronous || cuda::Says(std::getenv("DSV4_CUDA_SYNC"), "1"),
      .graphs = options.graphs && !cuda::Says(std::getenv("DSV4_CUDA_GRAPHS"), "0"),
      .overlap = options.overlap && !cuda::Says(std::getenv("DSV4_CUDA_OVERLAP"), "0"),
      .prefetch = cuda::Says(std::getenv("DSV4_CUDA_PREFETCH"), "1")};
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceQueue> queue, cuda::DeviceQueue::Create(queue_options));
  ops::Backend backend;
  backend.name = fmt::format("cuda ({})", device->name);
  auto context = std::make_shared<cuda::CudaContext>(std::move(queue), block_scaled, fp8_products);
  const bool to_log = cuda::Says(std::getenv("DSV4_CUDA_EXPLAIN"), "1");
  if (options.explain || to_log) context->Explain(to_log);
  backend.context = std::move(context);
  using namespace cuda;  // NOLINT: the table reads as a table.
  backend.packs_rows = kCudaPacksRows;
  backend.table = {
      .prepare_weight = PrepareWeightEntry,
      .embed = Entry<ops::EmbedArgs, Embed>,
      .rms_norm = Entry<ops::RmsNormArgs, RmsNorm>,
      .head_rms_norm = Entry<ops::HeadRmsNormArgs, HeadRmsNorm>,
      .linear = Entry<ops::LinearArgs, Linear>,
      .grouped_linear = Entry<ops::GroupedLinearArgs, GroupedLinear>,
      .rope = Entry<ops::RopeArgs, Rope>,
      .simulate_fp8 = Entry<ops::SimulateFp8Args, SimulateFp8>,
      .hadamard_fp4 = Entry<ops::HadamardFp4Args, HadamardFp4>,
      .scale = Entry<ops::ScaleArgs, Scale>,
      .hc_pre = Entry<ops::HcPreArgs, HcPre>,
      .hc_post = Entry<ops::HcPostArgs, HcPost>,
      .hc_head = Entry<ops::HcHeadArgs, HcHead>,
      .store_rows = Entry<ops::StoreRowsArgs, StoreRows>,
      .compressor_pool = Entry<ops::CompressorPoolArgs, CompressorPool>,
      .indexer_select = Entry<ops::IndexerSelectArgs, IndexerSelect>,
      .attention = Entry<ops::AttentionArgs, Attention>,
      .router = Entry<ops::RouterArgs, Router>,
      .swiglu = Entry<ops::SwigluArgs, Swiglu>,
      .routed_experts = ExpertsEntry<ops::RoutedExpertsArgs, RoutedExperts>,
      .moe_combine = Entry<ops::MoeCombineArgs, MoeCombine>,
      .sample = Entry<ops::SampleArgs, Sample>,
      .indexer_candidates = Entry<ops::IndexerCandidatesArgs, IndexerCandidates>,
      .merge_candidates = Entry<ops::MergeCandidatesArgs, MergeCandidates>,
      .gather_rows = Entry<ops::GatherRowsArgs, GatherRows>,
      .attention_part = Entry<ops::AttentionPartArgs, AttentionPart>,
      .merge_attention = Entry<ops::MergeAttentionArgs, MergeAttention>,
      .sum_rows = Entry<ops::SumRowsArgs, SumRows>,
      .expert_terms = ExpertsEntry<ops::ExpertTermsArgs, ExpertTerms>,
      .sum_terms = Entry<ops::SumTermsArgs, SumTerms>,
  };
  return backend;
}

Result<CudaRoom> RoomOf(int device) {
  constexpr int64_t kScratchBytes = int64_t{2} << 30;
  size_t free = 0;
  size_t total = 0;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) {
    return Error(Internal(fmt::format("backend cuda: the memory of device {} cannot be read: {}", device,
                                      cudaGetErrorString(error))));
  }
  return CudaRoom{static_cast<int64_t>(free), kScratchBytes};
}

CudaCounters CountersOf(const ops::Backend& backend) {
  auto& context = static_cast<cuda::CudaContext&>(*backend.context);
  const cuda::LaunchCounters counters = context.queue().counters();
  return {counters.launches, counters.lists, counters.replayed_lists, counters.graphs_captured,
          context.num_inexact_experts()};
}

std::vector<CudaChoice> ChoicesOf(const ops::Backend& backend) {
  const cuda::Explanations* const explanations = static_cast<cuda::CudaContext&>(*backend.context).explain();
  std::vector<CudaChoice> choices;
  if (explanations == nullptr) return choices;
  for (const cuda::Explanation& line : explanations->lines())
    choices.push_back({line.op, line.kernel, line.reason, line.count});
  return choices;
}

}  // namespace dsv4::backend
