#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/open_launches.h"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/swiglu.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  const float* logits;
  const float* bias;
  const void* hash_table;
  bool hash_is_i64;
  int64_t vocab_size;
  const int32_t* token_ids;
  int32_t* indices;
  float* weights;
  int num_experts;
  int top_k;
  float route_scale;
};

__device__ double Affinity(float logit) {
  const double x = static_cast<double>(logit);
  return sqrt(x > 20.0 ? x : log1p(exp(x)));
}

struct Candidate {
  double score;
  int expert;  // num_experts when there is none.
};

// Higher score first, equal scores by lowest index.
__device__ bool Better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.expert < b.expert);
}

__device__ Candidate WarpBest(Candidate best) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const Candidate other = {__shfl_xor_sync(kWholeWarp, best.score, offset),
                             __shfl_xor_sync(kWholeWarp, best.expert, offset)};
    if (Better(other, best)) best = other;
  }
  return best;
}

// By a block: the k best by k searches for the next best.
__device__ void RouteToken(const Params& p, int64_t token, Fault* fault) {
  extern __shared__ double affinities[];  // [num_experts], then the steered ones.
  double* const steered = affinities + p.num_experts;
  __shared__ Candidate bests[kThreads / 32];
  const float* const logits = p.logits + token * p.num_experts;
  int32_t* const indices = p.indices + token * p.top_k;

  for (int e = threadIdx.x; e < p.num_experts; e += kThreads) {
    affinities[e] = Affinity(logits[e]);
    const double score = affinities[e] + (p.bias == nullptr ? 0.0 : static_cast<double>(p.bias[e]));
    steered[e] = isnan(score) ? -INFINITY : score;
  }
  __syncthreads();

  if (p.hash_table == nullptr) {
    Candidate last = {INFINITY, -1};
    for (int k = 0; k < p.top_k; ++k) {
      Candidate best = {-INFINITY, p.num_experts};
      for (int e = threadIdx.x; e < p.num_experts; e += kThreads) {
        const Candidate candidate = {steered[e], e};
        if (Better(last, candidate) && Better(candidate, best)) best = candidate;
      }
      best = WarpBest(best);
      __syncthreads();
      if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
      __syncthreads();
      best = bests[0];
      for (int w = 1; w < kThreads / 32; ++w) {
        if (Better(bests[w], best)) best = bests[w];
      }
      if (threadIdx.x == 0) indices[k] = best.expert;
      last = best;
    }
  } else if (threadIdx.x == 0) {
    const int64_t id = p.token_ids[token];
    if (id < 0 || id >= p.vocab_size) {
      ReportFault(fault, FaultKind::kRouterTokenId, token, 0, id, p.vocab_size);
      for (int k = 0; k < p.top_k; ++k) indices[k] = 0;
    } else {
      for (int k = 0; k < p.top_k; ++k) {
        const int64_t place = id * p.top_k + k;
        int64_t expert = p.hash_is_i64 ? static_cast<const int64_t*>(p.hash_table)[place]
                                       : static_cast<const int32_t*>(p.hash_table)[place];
        if (expert < 0 || expert >= p.num_experts) {
          ReportFault(fault, FaultKind::kHashExpert, id, k, expert, p.num_experts);
          expert = 0;
        }
        indices[k] = static_cast<int32_t>(expert);
      }
    }
  }
  if (threadIdx.x != 0) return;
  // The bias steers the choice only.
  double sum = 0.0;
  for (int k = 0; k < p.top_k; ++k) sum += affinities[indices[k]];
  for (int k = 0; k < p.top_k; ++k) {
    Store(p.weights, token * p.top_k + k, affinities[indices[k]] / sum * static_cast<double>(p.route_scale));
  }
}

__global__ void RouterKernel(const Params p, Fault* fault) {
  BeginKernel();
  RouteToken(p, blockIdx.x, fault);
}

// Blocks behind those of the tokens do a swiglu that was launched before.
template <typename T>
__global__ void RouterAndSwigluKernel(const Params p, Fault* fault, const OpenSwiglu swiglu, int num_tokens) {
  BeginKernel();
  const int block = static_cast<int>(blockIdx.x);
  if (block < num_tokens) return RouteToken(p, block, fault);
  const int64_t i = int64_t{block - num_tokens} * kThreads + threadIdx.x;
  SwigluElement(static_cast<const T*>(swiglu.gate), static_cast<const T*>(swiglu.up), swiglu.row_weights,
                static_cast<T*>(swiglu.y), i, swiglu.count, swiglu.width, swiglu.limit);
}

// The swiglu in front, if all that either reads the other does not write.
const OpenSwiglu* SwigluBefore(CudaContext& context, const ops::RouterArgs& args) {
  constexpr int64_t kMaxTokens = 8;  // Many fill the device without.
  const OpenSwiglu* const open = context.open_swiglu().get();
  if (open == nullptr || args.logits.shape[0] > kMaxTokens) return nullptr;
  const int64_t bytes = open->count * ElementBytes(open->dtype);
  const int64_t rows = open->count / open->width;
  for (const TensorView* const written : {&args.indices, &args.weights}) {
    if (BytesOverlap(written->data, written->num_bytes(), open->gate, bytes) ||
        BytesOverlap(written->data, written->num_bytes(), open->up, bytes) ||
        BytesOverlap(written->data, written->num_bytes(), open->y, bytes) ||
        (open->row_weights != nullptr &&
         BytesOverlap(written->data, written->num_bytes(), open->row_weights, rows * 4))) {
      return nullptr;
    }
  }
  for (const TensorView* const read : {&args.logits, &args.bias, &args.hash_table, &args.token_ids}) {
    if (!read->is_null() && BytesOverlap(read->data, read->num_bytes(), open->y, bytes)) return nullptr;
  }
  return open;
}

}  // namespace

Status Router(CudaContext& context, const ops::RouterArgs& args) {
  const int64_t num_tokens = args.logits.shape[0];
  const int64_t num_experts = args.logits.shape[1];
  if (num_tokens == 0 || args.indices.shape[1] == 0) return {};
  constexpr int64_t kMaxExperts = 3000;  // 47 KB of shared memory.
  if (num_experts > kMaxExperts) {
    return Unimplemented("op router: logits: " + args.logits.shape.ToString() +
                         ", this backend takes up to 3000 experts");
  }
  const Params params = {.logits = args.logits.as<const float>(),
                         .bias = args.bias.as<const float>(),
                         .hash_table = args.hash_table.data,
                         .hash_is_i64 = args.hash_table.dtype == DType::kI64,
                         .vocab_size = args.hash_table.is_null() ? 0 : args.hash_table.shape[0],
                         .token_ids = args.token_ids.as<const int32_t>(),
                         .indices = args.indices.as<int32_t>(),
                         .weights = args.weights.as<float>(),
                         .num_experts = static_cast<int>(num_experts),
                         .top_k = static_cast<int>(args.indices.shape[1]),
                         .route_scale = args.route_scale};
  const size_t shared_bytes = static_cast<size_t>(2 * num_experts) * sizeof(double);
  if (const OpenSwiglu* const open = SwigluBefore(context, args); open != nullptr) {
    OpenSwiglu swiglu = *open;
    swiglu.launch = 0;  // Equal steps are equal bytes.
    const auto blocks = static_cast<unsigned>(num_tokens + CeilDiv(open->count, kThreads));
    uint64_t launch = 0;
    WithElement(open->dtype, [&]<typename T>(T*) {
      launch = context.queue().LaunchInPlaceOf(open->launch, RouterAndSwigluKernel<T>, blocks, kThreads,
                                               shared_bytes, params, context.fault(), swiglu,
                                               static_cast<int>(num_tokens));
    });
    if (launch != 0) return {};
  }
  context.Launch(RouterKernel, static_cast<unsigned>(num_tokens), kThreads, shared_bytes, params,
                 context.fault());
  return {};
}

}  // namespace dsv4::backend::cuda
