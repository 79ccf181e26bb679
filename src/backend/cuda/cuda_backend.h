// The CUDA backend: every op on one NVIDIA GPU since Ampere that the build has code for. The page
// docs/cuda/overview.md says how it is built, what it promises, and on which GPUs it has run.
//
// Operands are device memory of the backend's own `Memory`; ops are queued on its stream and return before
// they are done. The device alone sees an index outside its table or a launch that fails. The next call that
// waits for it reports it: Memory::CopyToHost, or the op itself when `synchronous` is set.
//
// Numerics keep all rounding points of the contracts. Sums of GEMMs and attention are in fp32 (exact products
// for bf16 operands), all else in double as in the reference. A row's result depends neither on the other
// rows of the batch nor on how a prompt is cut. CudaOptions::block_scaled and fp8_products are other
// numerics.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/block_scaled_mode.h"
#include "backend/cuda/fp8_products.h"
#include "ops/op_table.h"
#include "ops/step_replay.h"

namespace dsv4::backend {

// Backend::packs_rows of this backend.
inline constexpr bool kCudaPacksRows = true;
// A pass with so many choices for each of a layer's experts brings the cached ones before the router has
// chosen. With so many random choices one expert in fifty is left out.
inline constexpr int64_t kStreamedChoicesOfExpert = 4;

struct CudaOptions {
  int device = 0;
  // Every op waits for itself, so that a fault names the op that made it. DSV4_CUDA_SYNC=1 sets it from
  // outside.
  bool synchronous = false;
  // Launches that come again run as CUDA graphs. DSV4_CUDA_GRAPHS=0 turns it off from outside.
  bool graphs = true;
  // A decode step like an earlier one is queued without a walk through the model (ops/step_replay.h).
  // DSV4_CUDA_REPLAY=0 turns it off from outside; a backend that is synchronous or explains does not do it.
  bool replay = true;
  // A step that would be replayed is walked, and is an error where launches or staged bytes of both differ. DSV4_CUDA_REPLAY=check
  // sets it from outside.
  bool check_replays = false;
  // Kernels start while the one in front of them ends. DSV4_CUDA_OVERLAP=0 turns it off from outside.
  bool overlap = true;
  // Products on Blackwell's block-scaled tensor cores (never run). Where it is kOff
  // DSV4_CUDA_BLOCK_SCALED=fp8 or fp4 sets it from outside. A device of another compute capability than 10.0
  // is refused with it.
  cuda::BlockScaledMode block_scaled = cuda::BlockScaledMode::kOff;
  // Products in FP8 on Hopper's tensor cores (wgmma). Where it is kOff DSV4_CUDA_FP8_PRODUCTS=many or all
  // sets it from outside. A device of another compute capability than 9.0 is refused with it.
  cuda::Fp8Products fp8_products = cuda::Fp8Products::kOff;
  // Keeps which kernel every op and shape takes, and why, for ChoicesOf. DSV4_CUDA_EXPLAIN=1 does, and writes
  // each to the log when it first comes.
  bool explain = false;
  // Sees the bytes of every list of launches that is handed to the device, and the staged arrays that they
  // bring first. For tests.
  std::function<void(std::span<const std::byte> launches, std::span<const std::byte> staged)> watch = {};
  // Multiplies experts that stay on the host (ops::WeightTier::kHost): a backend of the host, this one's
  // alone. Without one they are refused.
  std::optional<ops::Backend> host = {};
  // How long the device waits for the host's terms of one layer.
  std::chrono::milliseconds host_deadline = std::chrono::minutes(2);
};

// Kernel that an op of some shape became.
struct CudaChoice {
  std::string op;  // With its shapes.
  std::string
      kernel;  // Its file below src/backend/cuda/kernels; empty: the op became part of the launch in front.
  std::string
      reason;         // The rule: of docs/cuda/kernels.md, or where `kernel` is empty of docs/cuda/fusion.md.
  int64_t count = 0;  // Calls.
};

// Counts of what a backend of MakeCudaBackend has launched since it was made; launches that are still
// collected do not count.
struct CudaCounters {
  int64_t launches = 0;         // Kernels.
  int64_t lists = 0;            // They reach the device in lists,
  int64_t replayed_lists = 0;   // some of them as graphs.
  int64_t graphs_captured = 0;  // Graphs made.
  // Layers whose MXFP4 experts would have gone through products in FP8, but whose scales in a row lie too far
  // apart for e4m3. They are multiplied in bf16, and a warning says so once a layer.
  int64_t inexact_experts = 0;
};

// Cached experts (ops::WeightTier::kCached) since their weights came: a call counts each expert once, however
// many tokens chose it.
struct ExpertCacheCounters {
  int64_t slots = 0;   // Slots that the device has.
  int64_t hits = 0;    // Chosen experts that were there,
  int64_t misses = 0;  // and that were not.
  int64_t bytes = 0;   // Brought for them.
};

// Experts of the host (ops::WeightTier::kHost) since the first step with any.
struct HostExpertCounters {
  int64_t requests = 0;  // Requests of one layer in one step.
  int64_t experts = 0;   // Chosen experts, that they chose, each counted once a request.
  double seconds = 0;    // From seeing requests to answering them.
};

// How cached experts came to pinned memory since the backend was made. Threads copy, and others touch and pin
// memory, side by side and beside the one that loads.
struct PinnedLoad {
  int64_t bytes = 0;             // Copied.
  int threads = 0;               // Threads that copied,
  double copying = 0;            // for so many seconds together.
  int makers = 0;                // Threads that made blocks of memory,
  double pinning = 0;            // for so many seconds together.
  double waited_for_memory = 0;  // Seconds for which the loading thread waited,
  double waited_for_copies = 0;
};

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  int major = 0;  // Compute capability.
  int minor = 0;
  size_t total_bytes = 0;
};

// Devices the driver shows, the unfit included; empty without a driver.
std::vector<CudaDeviceInfo> CudaDevices();

// Whether this build has machine code for the device, or PTX where CUDA_FORCE_PTX_JIT=1 asks for it.
// docs/cuda/overview.md has the GPUs.
bool HasCodeFor(const CudaDeviceInfo& device);
// The compute capabilities that this build has machine code for, "8.0, 8.6 and 9.0"; empty in a build without
// the backend.
std::string MachineCodeOfBuild();
// Why the driver shows no device, in CUDA's words; empty where it shows one.
std::string CudaFault();

// The name is "cuda" and the card's: "cuda (NVIDIA H200)", and what its code was compiled for where that is
// an older generation. FailedPrecondition without a driver, without that device, or
// when the build has no code for the device's compute capability; the message says which it is.
// InvalidArgument for a value of DSV4_CUDA_BLOCK_SCALED or DSV4_CUDA_FP8_PRODUCTS that is none.
Result<ops::Backend> MakeCudaBackend(const CudaOptions& options);

// Memory of a device, in bytes.
struct CudaRoom {
  int64_t total = 0;  // Memory that is not free is also the context's, and other processes'.
  int64_t free = 0;
  // Share of the latter that this backend may take beside weights, states and the step's arena. It is for
  // scratch of the largest op, staging, graphs and tables of experts. An allowance; cuda_step_bench prints
  // what was taken.
  int64_t scratch = 0;
};

Result<CudaRoom> RoomOf(int device);

// Counters of a backend that MakeCudaBackend made.
CudaCounters CountersOf(const ops::Backend& backend);
// Whether its device runs Hopper's machine code: several ops of some sizes are one launch there alone.
bool RunsHopperCode(const ops::Backend& backend);

// Whether steps are replayed, from the next one on.
void SetReplay(const ops::Backend& backend, bool replay);
ops::ReplayCounters ReplayCountersOf(const ops::Backend& backend);

// As far as the device has come; zeros without cached experts. From any thread while nothing loads.
ExpertCacheCounters ExpertCacheCountersOf(const ops::Backend& backend);

// Counters of the requests answered so far; zeros without experts of the host. From any thread while nothing
// loads.
HostExpertCounters HostExpertCountersOf(const ops::Backend& backend);

// From the next step on the device has room for so many cached experts, which come again as they are chosen;
// no bit changes. Between steps, by the thread that queues them. ResourceExhausted where the device has no
// memory for them: then it has room for as many as before, or for none.
Status SetExpertSlots(const ops::Backend& backend, int64_t slots);

// No model is on the backend any more. Data that it keeps of weights goes, with its memory of host and
// device. Else it would stay until other weights replace it. Counters of experts begin anew. Waits for the
// device.
Status ForgetWeights(const ops::Backend& backend);

// From any thread.
PinnedLoad PinnedLoadOf(const ops::Backend& backend);

// Bytes a second that cudaMemcpyAsync brings from pinned memory of the host: the best of five passes of 256
// MB. Waits for the device; ResourceExhausted without memory for it.
Result<double> HostToDeviceRate(const ops::Backend& backend);

// In the order in which they first came; empty unless the backend explains (CudaOptions).
std::vector<CudaChoice> ChoicesOf(const ops::Backend& backend);

}  // namespace dsv4::backend
