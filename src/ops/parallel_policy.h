// ParallelPolicy: from which sizes on several ranks of one layer divide work, or send one thing instead of
// another. The graph asks for it. A backend gives it with its table, because the cost of an exchange beside a
// launch is a matter of the device. All ranks must have the same policy: they decide alike without a word. No
// result depends on it but for few_queries, which changes last bits.
#pragma once

#include <cstdint>

namespace dsv4::ops {

// The defaults are those of Hopper GPUs joined by NVLink, seen on H200s. Backends of the host keep them, so
// that a run on CPUs takes the ways that a run on GPUs takes.
struct ParallelPolicy {
  // Indexer, context parallel: ranks divide the tokens of a pass, not the keys, from so many tokens on. They
  // do so while keys are at most so many bytes for a byte of the candidates that would be exchanged.
  int64_t min_index_tokens = 512;
  int64_t most_key_bytes = 8;
  // Cost of a token's queries and choice, in keys that it scores. It balances the tokens between ranks.
  int64_t index_token_cost = 700;
  // Attention, context parallel: of a sequence with at most so many queries these are sent, not the entries,
  // whatever is fewer bytes. The shards' parts are then merged, so last bits are others than with the entries
  // on one rank: most_rows_like_steps of a model says so.
  int64_t few_queries = 16;
  // At most so many queries are sent at a time, which bounds the arena: each takes 200 KB with its parts.
  int64_t most_sent_queries = 512;
  // Tensor parallel with cut sums: ranks divide the residual streams from so many tokens on. Fewer are
  // exchanged as fast whole.
  int64_t min_stream_tokens = 512;
  // Operands are sizes without memory: ops and exchanges do nothing, and the graph takes every way that may
  // need memory. For plans.
  bool sizes_only = false;
};

}  // namespace dsv4::ops
