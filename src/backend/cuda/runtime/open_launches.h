// Launches of small ops that the op behind them may take over (DeviceQueue::LaunchInPlaceOf): what it has to know to do their work too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/runtime/memory_range.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// moe_combine, for hc_post: y = routed + shared, `count` elements each. Where `links` are not none, the sum of that over all ranks
// (PackedSum): an all-reduce, for moe_combine of its sum alone, and that, for hc_post.
struct OpenCombine {
  uint64_t launch = 0;
  const float* routed = nullptr;
  const void* shared = nullptr;  // May be y.
  void* y = nullptr;
  int64_t count = 0;
  DType dtype = DType::kBF16;  // Of y; of shared too, which over ranks is F32.
  PeerLinks links = {};
  float* sum = nullptr;  // Over ranks: before it is rounded. May be routed or shared.
};

// hc_post of four bf16 streams, with moe_combine in front of it or without, for hc_pre.
struct OpenHcPost {
  uint64_t launch = 0;
  void* y = nullptr;               // [num_tokens, dim]; what moe_combine gives, if routed is not null.
  const float* routed = nullptr;   // moe_combine's
  const void* shared = nullptr;    // operands.
  const void* residual = nullptr;  // [num_tokens, 4, dim], as is
  void* out = nullptr;             // this, which may be the same.
  const float* post = nullptr;
  const float* comb = nullptr;
  int64_t num_tokens = 0;
  int64_t dim = 0;
  PeerLinks links = {};  // As OpenCombine.
  float* sum = nullptr;
};

// swiglu, for router: the two do not depend on each other.
struct OpenSwiglu {
  uint64_t launch = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  const float* row_weights = nullptr;  // Null: 1.
  void* y = nullptr;                   // May be gate or up.
  int64_t count = 0;
  int64_t width = 0;
  float limit = 0.0F;
  DType dtype = DType::kBF16;
};

struct IndexerOverRanks;  // kernels/indexer/indexer_over_ranks.cu

// indexer_select, for attention: lists in ascending order, of all visible entries up to top_k, then -1. As long as its launch is
// the last, they are what it wrote. Or indexer_candidates of one token, for what follows until attention_part.
struct OpenSelection {
  struct Tokens {
    int64_t begin;
    int64_t count;
    int64_t first_position;
    friend bool operator==(const Tokens&, const Tokens&) = default;
  };
  uint64_t launch = 0;
  const void* selected = nullptr;  // [num_tokens, top_k]; null: nothing has been chosen yet.
  int64_t num_tokens = 0;
  int64_t top_k = 0;
  int64_t ratio = 1;
  std::vector<Tokens> sequences;  // That have tokens, in order.
  std::shared_ptr<IndexerOverRanks> over_ranks = {};
  Buffer rows = {};  // Its list of rows.
};

// The tokens of an op's sequences as OpenSelection holds them.
template <typename Sequences>
std::vector<OpenSelection::Tokens> TokensOf(const Sequences& sequences) {
  std::vector<OpenSelection::Tokens> tokens;
  for (const auto& s : sequences) {
    if (s.num_tokens > 0) tokens.push_back({s.token_begin, s.num_tokens, s.first_position});
  }
  return tokens;
}

// Whether [a, a + a_bytes) and [b, b + b_bytes) have a byte in common.
inline bool BytesOverlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  return Overlap({a, static_cast<size_t>(a_bytes)}, {b, static_cast<size_t>(b_bytes)});
}

// Whether it has a byte of what the sum over ranks reads or writes in fp32.
inline bool OverlapsOperands(const OpenCombine& sum, const void* data, int64_t num_bytes) {
  const int64_t bytes = sum.count * static_cast<int64_t>(sizeof(float));
  return BytesOverlap(data, num_bytes, sum.routed, bytes) || BytesOverlap(data, num_bytes, sum.sum, bytes) ||
         (sum.shared != nullptr && BytesOverlap(data, num_bytes, sum.shared, bytes));
}

}  // namespace dsv4::backend::cuda
