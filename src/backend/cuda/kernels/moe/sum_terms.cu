// sum_terms: a block has some columns of one token; its threads find the token's rows first, in the order of
// the sum.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/moe/chosen_experts.cuh"
#include "backend/cuda/kernels/moe/gemv_experts.h"
#include "backend/cuda/kernels/moe/sum_terms.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 128;
static_assert(kThreads >= kMaxTopK);
// Rows of which a thread's columns are in flight at once.
constexpr int kRowsAhead = 8;

template <typename T>
struct Params {
  const T* parts;          // [num_parts, num_tokens, top_k, dim]
  const int32_t* indices;  // [num_tokens, top_k]
  float* y;                // [num_tokens, dim]
  Fault* fault;
  int64_t dim;
  int num_tokens;
  int top_k;
  int num_parts;
  int32_t begins[ops::kMaxTermParts + 1];  // Zeros behind the last part's.
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Piece {
  T values[kCount];
};

// kColumns: of a thread, which lie together. Grid: tokens, columns.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads) SumTermsKernel(const __grid_constant__ Params<T> p) {
  BeginKernel();
  __shared__ int64_t rows[kMaxTopK];  // Elements in front of each.
  const int64_t token = blockIdx.x;
  const int32_t* const chosen = p.indices + token * p.top_k;
  const int slot = static_cast<int>(threadIdx.x);
  if (slot < p.top_k) {
    const int32_t expert = chosen[slot];
    const int32_t num_experts = p.begins[p.num_parts];
    int part = 0;
    if (expert < 0 || expert >= num_experts) {
      if (blockIdx.y == 0) ReportFault(p.fault, FaultKind::kSummedIndex, token, slot, expert, num_experts);
    } else {
      while (expert >= p.begins[part + 1]) ++part;
    }
    rows[RankOfSlot(chosen, p.top_k, slot)] =
        ((part * int64_t{p.num_tokens} + token) * p.top_k + slot) * p.dim;
  }
  __syncthreads();
  const int64_t column = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * kColumns;
  if (column >= p.dim) return;
  float sums[kColumns] = {};
#pragma unroll 1
  for (int first = 0; first < p.top_k; first += kRowsAhead) {
    Piece<T, kColumns> pieces[kRowsAhead];
#pragma unroll
    for (int k = 0; k < kRowsAhead; ++k) {
      if (first + k < p.top_k)
        pieces[k] = *reinterpret_cast<const Piece<T, kColumns>*>(p.parts + rows[first + k] + column);
    }
#pragma unroll
    for (int k = 0; k < kRowsAhead; ++k) {
#pragma unroll
      for (int d = 0; d < kColumns; ++d) {
        if (first + k < p.top_k) sums[d] += ToFloat(pieces[k].values[d]);
      }
    }
  }
  constexpr int kStored = std::min(kColumns, 4);
#pragma unroll
  for (int d = 0; d < kColumns; d += kStored) {
    Piece<float, kStored> piece;
#pragma unroll
    for (int i = 0; i < kStored; ++i) piece.values[i] = sums[d + i];
    *reinterpret_cast<Piece<float, kStored>*>(p.y + token * p.dim + column + d) = piece;
  }
}

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

template <typename T>
void Launch(LaunchContext& context, const ops::SumTermsArgs& args) {
  const int64_t dim = args.y.shape[1];
  Params<T> params = {.parts = args.parts.as<const T>(),
                      .indices = args.indices.as<const int32_t>(),
                      .y = args.y.as<float>(),
                      .fault = context.fault(),
                      .dim = dim,
                      .num_tokens = static_cast<int>(args.y.shape[0]),
                      .top_k = static_cast<int>(args.indices.shape[1]),
                      .num_parts = static_cast<int>(args.parts.shape[0]),
                      .begins = {}};
  std::ranges::transform(args.begins, params.begins, [](int64_t id) { return static_cast<int32_t>(id); });
  constexpr int kMany = 16 / sizeof(T);
  const bool many = dim % kMany == 0 && IsAligned(args.parts.data) && IsAligned(args.y.data);
  const dim3 grid(static_cast<unsigned>(args.y.shape[0]),
                  static_cast<unsigned>(CeilDiv(dim, kThreads * (many ? kMany : 1))));
  if (many) {
    context.Launch(SumTermsKernel<T, kMany>, grid, kThreads, 0, params);
  } else {
    context.Launch(SumTermsKernel<T, 1>, grid, kThreads, 0, params);
  }
}

}  // namespace

void LaunchSumTerms(LaunchContext& context, const ops::SumTermsArgs& args) {
  WithElement(args.parts.dtype, [&]<typename T>(T*) { Launch<T>(context, args); });
}

}  // namespace dsv4::backend::cuda
