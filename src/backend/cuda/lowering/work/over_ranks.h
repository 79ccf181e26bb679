// Work of ranks that divide a sequence's entries: the indexer's candidates, exchanges by LL words,
// attention's parts. As ops record it and as kernels are told it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/cuda/collectives/peer_links.h"
#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/work/attention.h"
#include "backend/cuda/lowering/work/part_params.h"
#include "backend/cuda/lowering/work/score_params.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

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

// A list of entries: what merge_candidates has written, in ascending order, of all visible entries up to top_k,
// then -1; and what attention reads.
struct EntryListWork {
  const void* selected;  // [num_tokens, top_k]
  int64_t num_tokens;
  int64_t top_k;
  int64_t ratio;
  std::vector<SequenceTokens> sequences;  // Sequences that have tokens, in order.
  friend bool operator==(const EntryListWork&, const EntryListWork&) = default;
};

// The list that merge_candidates has written, as one rank knows it.
struct ChosenList {
  EntryListWork list;
  int64_t shard_index;
  int64_t shard_count;
  friend bool operator==(const ChosenList&, const ChosenList&) = default;
};

// Tokens that one launch takes.
inline constexpr int64_t kMaxOverRanksTokens = 8;

// Steps of kernels/indexer/indexer_over_ranks.cu: indexer_candidates; the all-gather of candidates;
// merge_candidates, and the lists of those chosen that are here.
struct IndexerOverRanks {
  SequenceTable table;
  ScoreParams score = {};  // Scores of the rows that are here; without scores they are made by the kernel.
  int64_t shard_index = 0;
  int64_t shard_count = 1;
  int64_t top_k = 0;
  int64_t num_tokens = 0;
  uint64_t* candidates = nullptr;  // [num_tokens, top_k]
  PeerLinks links = {};
  uint64_t* all = nullptr;      // [num_tokens, ranks, top_k]; null: candidates are not exchanged.
  int32_t* selected = nullptr;  // [num_tokens, top_k]; null: nothing is chosen.
  int32_t* num_rows = nullptr;  // [num_tokens]: how many of those chosen are here,
  int32_t* rows = nullptr;      // [num_tokens, top_k]: and which rows.
};
struct CandidatesWork {
  IndexerOverRanks params;  // Without exchange and choice.
  ChosenList chosen;        // Its list has yet to be written: `selected` is null.
};

// An all-gather or all-to-all of params.num_rows rows by LL words, as many bytes from every rank to every
// other.
struct ExchangeWork {
  ExchangeParams params;
  ExchangeKernel kernel;
  unsigned blocks;
  const void* mine;
  void* all;            // Data of all ranks: row by row of an all-gather, rank by rank of an all-to-all.
  int64_t piece_bytes;  // A row, from each.
  // Behind the launch that has just chosen entries: what it knows.
  std::optional<ChosenList> chosen = {};
};

struct MergeCandidatesWork {
  const uint64_t* candidates;  // [tokens, ranks * top_k]
  Shape shape;
  int32_t* selected;  // [tokens, top_k]
  Shape selected_shape;
};

// Rows that are to be listed in front of attention_part.
struct RowsToList {
  const int32_t* selected = nullptr;  // Null: they are known.
  int32_t* rows = nullptr;
  int32_t* num_rows = nullptr;
};
struct AttentionPartWork {
  SequenceTable table;
  PartParams params;
  DType dtype;
  int64_t max_keys;
  RowsToList list;
};

struct MergeAttentionWork {
  const float* parts;  // [ranks, tokens, heads, dim + 2]
  Shape shape;
  const float* sink;
  void* o;
  DType dtype;
};

// Parameters of kernels/attention/attention_over_ranks.cu.
struct AttentionOverRanks {
  SequenceTable table;
  PartParams part = {};  // Part for all ranks' heads.
  PeerLinks links = {};
  const uint32_t* own_q = nullptr;  // [tokens, own_heads, dim], two elements a word,
  uint32_t* all_q = nullptr;        // and where all ranks' are wanted: what part reads.
  int own_heads = 0;
  float* parts = nullptr;       // [ranks, tokens, own_heads, dim + 2]; null: parts are not exchanged.
  const float* sink = nullptr;  // Sinks of this rank's heads,
  uint16_t* o = nullptr;        // as is this, [tokens, own_heads, dim]; null: parts are not merged.
  OutputRotation rotation = {};
};

inline constexpr int kMaxOverRanksBlocks = 8;     // Blocks of a cluster; of n blocks tile t is block t % n's.
inline constexpr int64_t kMaxOverRanksTiles = 4;  // Tiles of a block: what its shared memory holds.
inline constexpr int64_t kOverRanksHeads = 16;    // A cluster's.

}  // namespace dsv4::backend::cuda
