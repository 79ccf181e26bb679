// Work of ranks that divide a sequence's entries: the indexer's candidates, exchanges by LL words, attention's parts. As ops record it and
// as kernels are told it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backend/cuda/collectives/peer_links.h"
#include "backend/cuda/kernels/attention/part_params.h"
#include "backend/cuda/kernels/attention/sequence_table.h"
#include "backend/cuda/kernels/indexer/score_params.h"
#include "backend/cuda/lowering/work/attention.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// The list that merge_candidates has written, as one rank knows it.
struct ChosenList {
  EntryListWork list;
  int64_t shard_index;
  int64_t shard_count;
  friend bool operator==(const ChosenList&, const ChosenList&) = default;
};

// What kernels/indexer/indexer_over_ranks.cu does: indexer_candidates of one token; the all-gather of candidates; merge_candidates, and
// the list of those chosen that are here.
struct IndexerOverRanks {
  SequenceTable table;
  ScoreParams score = {};  // Of the rows that are here; without scores they are made by the kernel.
  int64_t shard_index = 0;
  int64_t shard_count = 1;
  int64_t top_k = 0;
  uint64_t* candidates = nullptr;  // [top_k]
  PeerLinks links = {};
  uint64_t* all = nullptr;      // [ranks, top_k]; null: candidates are not exchanged.
  int32_t* selected = nullptr;  // [top_k]; null: nothing is chosen.
  int32_t* rows = nullptr;      // [1 + top_k]: how many of those chosen are here, and which rows.
};
struct CandidatesWork {
  IndexerOverRanks params;  // Without exchange and choice.
  ChosenList chosen;        // Its list has yet to be written: `selected` is null.
};

// An all-gather or all-to-all of one row by LL words, as many bytes from every rank to every other.
struct ExchangeWork {
  ExchangeParams params;
  ExchangeKernel kernel;
  unsigned blocks;
  const void* mine;
  void* all;            // What comes from all ranks, one behind the other.
  int64_t piece_bytes;  // From each.
  // Behind the launch that has just chosen entries: what it knows.
  std::optional<ChosenList> chosen = {};
};

struct MergeCandidatesWork {
  const uint64_t* candidates;  // [1, ranks * top_k]
  Shape shape;
  int32_t* selected;  // [1, top_k]
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
  const float* parts;  // [ranks, 1, heads, dim + 2]
  Shape shape;
  const float* sink;
  void* o;
  DType dtype;
};

// What kernels/attention/attention_over_ranks.cu does.
struct AttentionOverRanks {
  SequenceTable table;
  PartParams part = {};  // Of all ranks' heads.
  PeerLinks links = {};
  const uint32_t* own_q = nullptr;  // This rank's heads, two elements a word,
  uint32_t* all_q = nullptr;        // and where all ranks' are wanted: what part reads.
  int own_heads = 0;
  int tiles_of_block = 0;
  float* parts = nullptr;       // [ranks, own_heads, dim + 2]; null: parts are not exchanged.
  const float* sink = nullptr;  // Of this rank's heads,
  uint16_t* o = nullptr;        // as is this; null: parts are not merged.
  OutputRotation rotation = {};
};

inline constexpr int kOverRanksBlocks = 8;        // Of a cluster; tile t is block t % 8's.
inline constexpr int64_t kMaxOverRanksTiles = 4;  // Of a block: what its shared memory holds.
inline constexpr int64_t kOverRanksHeads = 16;    // Of a cluster.

}  // namespace dsv4::backend::cuda
