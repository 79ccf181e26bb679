// Work of attention and indexer_select, as they record it and as kernels are told it.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/device/sync/fault.h"
#include "backend/cuda/lowering/work/attention_params.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// attention by kernels/attention/decode_cluster.cu.
struct AttentionWork {
  SequenceTable table;
  AttentionParams params;
  int64_t max_keys;  // The most that any query sees.
};

// The op rope on what attention gives; no frequencies: not asked for.
struct OutputRotation {
  const float* frequencies;
  const int32_t* positions;
  Fault* fault;
  int num_frequencies;
  bool inverse;
};

// rope of x, [tokens, heads, width].
struct RopeWork {
  const void* x;
  DType dtype;
  Shape shape;
  OutputRotation rotation;
};

// A sequence's tokens in a step.
struct SequenceTokens {
  int64_t begin;
  int64_t count;
  int64_t first_position;
  friend bool operator==(const SequenceTokens&, const SequenceTokens&) = default;
};
template <typename Sequences>
std::vector<SequenceTokens> TokensOf(const Sequences& sequences) {
  std::vector<SequenceTokens> tokens;
  for (const auto& s : sequences) {
    if (s.num_tokens > 0) tokens.push_back({s.token_begin, s.num_tokens, s.first_position});
  }
  return tokens;
}

// A list of entries: what indexer_select has written, in ascending order, of all visible entries up to top_k,
// then -1; and what attention reads.
struct EntryListWork {
  const void* selected;  // [num_tokens, top_k]
  int64_t num_tokens;
  int64_t top_k;
  int64_t ratio;
  std::vector<SequenceTokens> sequences;  // Sequences that have tokens, in order.
  friend bool operator==(const EntryListWork&, const EntryListWork&) = default;
};

}  // namespace dsv4::backend::cuda
