// Factory of the CUDA backend: the op table with its journal, choice of the device, and checks of modes from
// the environment.
#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <span>
#include <string_view>
#include <type_traits>

#include "backend/cuda/cuda_variables.h"
#include "backend/cuda/lowering/code_targets.h"
#include "backend/cuda/lowering/device_limits.h"
#include "backend/cuda/runtime/cuda_ops.h"
#include "backend/cuda/tiers/expert_tiers.h"

namespace dsv4::backend {
namespace cuda {
namespace {

// Record that the journal keeps of a call: the shapes of its first operands.
template <typename Args>
OpRecord Record(const char* name, const Args& args) {
  OpRecord record = {name, {}};
  size_t count = 0;
  const auto keep = [&](const Shape& shape) {
    if (shape.rank() > 0 && count < record.shapes.size()) record.shapes[count++] = shape;
  };
  ops::VisitOperands(args, [&](const auto& operand) {
    using Operand = std::remove_cvref_t<decltype(operand)>;
    if constexpr (std::is_same_v<Operand, TensorView>) {
      if (!operand.is_null()) keep(operand.shape);
    } else if constexpr (std::is_same_v<Operand, const Weight*>) {
      keep({operand->rows, operand->cols});
    } else if constexpr (std::is_same_v<Operand, std::span<const ops::ExpertWeights>>) {
      keep({static_cast<int64_t>(operand.size())});
    }
  });
  return record;
}

// The first tensor of a call that there is: its device is checked.
template <typename Args>
const TensorView& FirstTensor(const Args& args) {
  static const TensorView none;
  const TensorView* first = &none;
  ops::VisitOperands(args, [&](const auto& operand) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(operand)>, TensorView>) {
      if (first->is_null()) first = &operand;
    }
  });
  return *first;
}

// Experts whose table exists were valid when it was made. Checking hundreds of them takes longer than running them, so then
// one stands for all.
template <typename Args>
Status ValidateCall(CudaContext& cuda, const Args& args) {
  if constexpr (requires { args.experts; }) {
    if (cuda.expert_tables().Knows(args.experts, args.x.dtype) || cuda.expert_tiers().Knows(args.experts)) {
      Args checked = args;
      checked.experts = args.experts.first(1);
      return Validate(checked);
    }
  }
  return Validate(args);
}

// The table's entry for an op: validation, the checks every op needs, then the op.
template <typename Args>
Status Entry(const char* name, ops::OpContext& context, const Args& args,
             Status (*run)(CudaContext&, const Args&)) {
  auto& cuda = static_cast<CudaContext&>(context);
  DSV4_RETURN_IF_ERROR(ValidateCall(cuda, args));
  return cuda.RunOp(Record(name, args), FirstTensor(args), [&] { return run(cuda, args); });
}

// Reads host memory, and queues copies and what follows them.
Status Entry(const char*, ops::OpContext& context, const ops::PrepareWeightArgs& args,
             Status (*run)(CudaContext&, const ops::PrepareWeightArgs&)) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  return run(static_cast<CudaContext&>(context), args);
}

const std::vector<CodeTarget>& Targets() {
  static const std::vector<CodeTarget> targets = ParseCodeTargets(DSV4_CUDA_ARCHITECTURES);
  return targets;
}

// CUDA's own switch: no machine code is used, the driver compiles PTX.
bool WantsPtx() {
  const char* const value = std::getenv("CUDA_FORCE_PTX_JIT");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

// Checks of modes: other numerics, and settings of tests.
Status CheckModes(const CudaDeviceInfo& device, const DeviceLimits& limits, bool takes_shared_memory_away) {
  if (takes_shared_memory_away && limits.has_wgmma()) {
    return FailedPrecondition(
        fmt::format("backend cuda: DSV4_CUDA_SHARED_KB wants code of other devices than Hopper, whose "
                    "kernels take all of it, "
                    "and {} runs Hopper's (CUDA_FORCE_PTX_JIT=1 makes it run PTX)",
                    device.name));
  }
  if (limits.block_scaled != BlockScaledMode::kOff && !limits.has_block_scaled()) {
    return FailedPrecondition(
        fmt::format("backend cuda: block-scaled products (DSV4_CUDA_BLOCK_SCALED) want a device of compute "
                    "capability 10.0 (Blackwell), {} has {}.{}",
                    device.name, device.major, device.minor));
  }
  if (limits.fp8_products != Fp8Products::kOff && !limits.has_wgmma()) {
    return FailedPrecondition(fmt::format(
        "backend cuda: products in FP8 (DSV4_CUDA_FP8_PRODUCTS) want a device of compute "
        "capability 9.0 (Hopper) and its machine code, {} has {}.{} and runs code for {}.{}",
        device.name, device.major, device.minor, limits.code_capability / 10, limits.code_capability % 10));
  }
  return {};
}

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
  const cuda::CodeFor code = cuda::FindCode(cuda::Targets(), 10 * device.major + device.minor);
  return code == cuda::CodeFor::kMachineCode || (code == cuda::CodeFor::kPtx && cuda::WantsPtx());
}

std::string MachineCodeOfBuild() { return cuda::NameMachineCode(cuda::Targets()); }

std::string CudaFault() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return cudaGetErrorString(error);
}

Result<ops::Backend> MakeCudaBackend(const CudaOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const CudaVariables variables, ReadCudaVariables());
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
        fmt::format("backend cuda: {} has compute capability {}.{}, this build has machine code for {}",
                    device->name, device->major, device->minor, cuda::NameMachineCode(cuda::Targets()))));
  }
  const cuda::BlockScaledMode block_scaled =
      options.block_scaled == cuda::BlockScaledMode::kOff ? variables.block_scaled : options.block_scaled;
  const cuda::Fp8Products fp8_products =
      options.fp8_products == cuda::Fp8Products::kOff ? variables.fp8_products : options.fp8_products;
  const cuda::QueueOptions queue_options = {.device = options.device,
                                            .synchronous = options.synchronous || variables.synchronous,
                                            .graphs = options.graphs && variables.graphs,
                                            .overlap = options.overlap && variables.overlap,
                                            .check_replays = options.check_replays || variables.check_replays,
                                            .most_shared_bytes = variables.most_shared_bytes,
                                            .watch = options.watch};
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<cuda::DeviceQueue> queue, cuda::DeviceQueue::Create(queue_options));
  ops::Backend backend;
  auto context = std::make_shared<cuda::CudaContext>(
      std::move(queue), block_scaled, fp8_products,
      cuda::HostTierOptions{.backend = options.host.value_or(ops::Backend()),
                            .deadline = options.host_deadline});
  DSV4_TRY(cuda::CheckModes(*device, context->limits(), variables.most_shared_bytes != 0));
  const int code = context->limits().code_capability;
  backend.name = code / 10 == device->major
                     ? fmt::format("cuda ({})", device->name)
                     : fmt::format("cuda ({} with code for {}.{})", device->name, code / 10, code % 10);
  backend.modes = fmt::format("{} {} {} {}", static_cast<int>(block_scaled), static_cast<int>(fp8_products),
                              variables.most_shared_bytes, options.host ? options.host->name : std::string());
  if (options.explain || variables.explain) context->Explain(variables.explain);
  if (options.replay && variables.replay) context->SetReplayer(context->MakeReplayer());
  backend.context = std::move(context);
  backend.packs_rows = kCudaPacksRows;
#define DSV4_OP_ENTRY(name, Op)                                            \
  backend.table.name = [](ops::OpContext& to, const ops::Op##Args& args) { \
    return cuda::Entry(#name, to, args, cuda::Op);                         \
  };
  DSV4_FOR_EVERY_OP(DSV4_OP_ENTRY)
#undef DSV4_OP_ENTRY
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
  return CudaRoom{
      .total = static_cast<int64_t>(total), .free = static_cast<int64_t>(free), .scratch = kScratchBytes};
}

CudaCounters CountersOf(const ops::Backend& backend) {
  auto& context = static_cast<cuda::CudaContext&>(*backend.context);
  const cuda::LaunchCounters counters = context.queue().counters();
  return {counters.launches, counters.lists, counters.replayed_lists, counters.graphs_captured,
          context.num_inexact_experts()};
}

bool RunsHopperCode(const ops::Backend& backend) {
  return static_cast<cuda::CudaContext&>(*backend.context).limits().has_wgmma();
}

void SetReplay(const ops::Backend& backend, bool replay) {
  auto& context = static_cast<cuda::CudaContext&>(*backend.context);
  context.SetReplayer(replay ? context.MakeReplayer() : nullptr);
}

ops::ReplayCounters ReplayCountersOf(const ops::Backend& backend) {
  return static_cast<cuda::CudaContext&>(*backend.context).queue().replay_counters();
}

ExpertCacheCounters ExpertCacheCountersOf(const ops::Backend& backend) {
  const cuda::ExpertCache& cache = static_cast<cuda::CudaContext&>(*backend.context).expert_tiers().cache();
  const cuda::ExpertCacheWords words = cache.counters();
  return {cache.num_slots(), static_cast<int64_t>(words.hits), static_cast<int64_t>(words.misses),
          static_cast<int64_t>(words.bytes)};
}

HostExpertCounters HostExpertCountersOf(const ops::Backend& backend) {
  const tiers::HostExperts* const host =
      static_cast<cuda::CudaContext&>(*backend.context).expert_tiers().host();
  if (host == nullptr) return {};
  const tiers::HostExpertsCounters counters = host->counters();
  return {counters.requests, counters.experts, counters.seconds};
}

Status SetExpertSlots(const ops::Backend& backend, int64_t slots) {
  auto& context = static_cast<cuda::CudaContext&>(*backend.context);
  // They know where slots are.
  context.queue().DropRecords();
  return context.expert_tiers().cache().Resize(slots);
}

Status ForgetWeights(const ops::Backend& backend) {
  auto& context = static_cast<cuda::CudaContext&>(*backend.context);
  DSV4_RETURN_IF_ERROR(context.queue().CallOnStream(
      "the end of a model", [](cudaStream_t stream) { return cudaStreamSynchronize(stream); }));
  context.expert_tables().WeightsChange();
  context.expert_tiers().Forget();
  return {};
}

PinnedLoad PinnedLoadOf(const ops::Backend& backend) {
  return static_cast<cuda::CudaContext&>(*backend.context).expert_tiers().cache().load_counters();
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
