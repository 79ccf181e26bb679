// Every block finds this rank's best by itself, puts a sixteenth of them in order and sends those, to the
// first block too. That block takes the other ranks' entries and chooses. So no other block waits for one
// once all have all scores, and those that have sent leave.

#include "backend/cuda/collectives/ll_exchange.cuh"
#include "backend/cuda/device/sync/cluster_barrier.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/indexer/indexer_cluster.cuh"
#include "backend/cuda/kernels/indexer/indexer_over_ranks.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

namespace {

constexpr int kThreads = kIndexerThreads;
constexpr int kWarps = kIndexerWarps;
constexpr int kMaxTopK = static_cast<int>(kMaxOverRanksTopK);
constexpr int kMaxScoredRows = static_cast<int>(kMaxOverRanksRows);

// Address of number `place` of a list: words that a search by halves looks at lie in different banks.
__host__ __device__ constexpr int Spread(int place) { return place + (place >> 5); }

template <int kMaxRows>
struct Choice {
  static constexpr int kMaxWords = kMaxPeers * kMaxRows / 32;
  KeyHistograms histograms;
  // This rank's best: rows in ascending order, and what Ordered gives for them.
  int32_t rows[kMaxTopK];
  alignas(16) uint32_t ordered[kMaxTopK];
  // Every rank's best, each rank's by its own rows, highest first at Spread indices; behind them 0, which is
  // none.
  uint32_t best[kMaxPeers][Spread(kMaxTopK)];
  int sampled[kMaxPeers];  // How many of a list's samples are chosen.
  // A bit for every entry that is chosen, and again for one that is here.
  uint32_t chosen[kMaxWords];
  uint32_t here[kMaxWords];
  uint32_t before[kMaxWords];  // Bits in the words before: chosen in the low half, here in the high one.
  uint32_t of_warp[kWarps];
};

template <int kMaxRows>
struct Memory {
  union {
    IndexerScoring scoring;
    Choice<kMaxRows> choice;
  };
  IndexerKey all[kMaxRows];
  uint64_t best_came;  // In the first block: this rank's list.
};

// A key and its row as one number: the higher key first, then the lower row.
__device__ __forceinline__ uint32_t Ordered(uint32_t key, int row) {
  return key << 16 | (0xFFFFU - static_cast<uint32_t>(row));
}
// ops::MakeCandidate of it. Below the bits of a bf16 number are zeros, and ones where a negative number's are
// turned around.
__device__ __forceinline__ uint64_t CandidateOf(uint32_t ordered, const IndexerOverRanks& p) {
  const uint32_t order = (ordered & 0x80000000U) != 0 ? ordered & 0xFFFF0000U : ordered | 0xFFFFU;
  const uint32_t row = 0xFFFFU - (ordered & 0xFFFFU);
  const uint32_t entry = row * static_cast<uint32_t>(p.shard_count) + static_cast<uint32_t>(p.shard_index);
  return uint64_t{order} << 32 | (UINT32_MAX - entry);
}

// This rank's best of rows [0, visible), by all threads of a block; how many there are.
template <int kMaxRows>
__device__ int ListBest(Choice<kMaxRows>& m, const IndexerKey* all, int visible, int top_k) {
  const auto key_at = [&](int row) { return uint32_t{all[row]}; };
  // No key is 0: without a threshold all rows are above it.
  Threshold threshold{.prefix = 0, .left = top_k};
  if (visible > top_k) threshold = FindThreshold(m.histograms, key_at, visible, top_k);
  const int2 share = WarpShare<kWarps>(visible);
  const Before before = SumOverWarps<kWarps>(Count(key_at, share.x, share.y, threshold.prefix));
  WriteChosen(key_at, share.x, share.y, 0, threshold, before.warps, m.rows);
  __syncthreads();
  const int count = min(visible, top_k);
  for (int i = static_cast<int>(threadIdx.x); i < kMaxTopK; i += kThreads)
    m.ordered[i] = i < count ? Ordered(all[m.rows[i]], m.rows[i]) : 0;
  __syncthreads();
  return count;
}

// A token's memory in that of one launch for all.
struct TokenPlaces {
  uint64_t* candidates;  // [top_k]
  uint64_t* all;         // [ranks, top_k]; null: candidates are not exchanged.
  int32_t* selected;     // [top_k]; null: nothing is chosen.
  int32_t* num_rows;
  int32_t* rows;       // [top_k]
  int64_t first_word;  // First of the rank's candidates among LL words.
  __device__ TokenPlaces(const IndexerOverRanks& p, int64_t token)
      : candidates(p.candidates + token * p.top_k),
        all(p.all == nullptr ? nullptr : p.all + token * p.links.size * p.top_k),
        selected(p.selected == nullptr ? nullptr : p.selected + token * p.top_k),
        num_rows(p.num_rows + token),
        rows(p.rows + token * p.top_k),
        first_word(2 * token * p.top_k) {}
};

// One block's part of the list goes to its slots here. Where something is chosen it goes to the first block,
// and where `sends` to every other rank. Eight lanes count together how many are greater than one, then each
// sends it to another rank.
template <int kMaxRows>
__device__ void SendBest(Choice<kMaxRows>& m, uint64_t* best_came, const IndexerOverRanks& p,
                         const TokenPlaces& places, int block, int count, bool sends, uint64_t round) {
  constexpr int kLanes = kMaxPeers;
  constexpr int kAtOnce = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto top_k = static_cast<int>(p.top_k);
  const PeerLinks& links = p.links;
  // All lanes of a warp go around together.
  for (int base = block * kAtOnce; base < top_k; base += kIndexerBlocks * kAtOnce) {
    const int i = base + static_cast<int>(threadIdx.x) / kLanes;
    const uint32_t mine = i < count ? m.ordered[i] : 0;
    int place = 0;
    for (int other = lane * 4; other < count; other += kLanes * 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(m.ordered + other);
      place += (four.x > mine ? 1 : 0) + (four.y > mine ? 1 : 0) + (four.z > mine ? 1 : 0) +
               (four.w > mine ? 1 : 0);
    }
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      place += __shfl_xor_sync(kWholeWarp, place, offset);
    if (i >= top_k) continue;
    if (i >= count) place = i;  // Absent ones are behind all others.
    const uint64_t candidate = i < count ? CandidateOf(mine, p) : 0;
    if (lane == 0) {
      if (places.selected != nullptr) SendTo(&m.best[links.rank][Spread(place)], mine, best_came, 0);
      places.candidates[place] = candidate;
      if (places.all != nullptr) places.all[links.rank * top_k + place] = candidate;
    } else if (sends && lane < links.size) {
      const int peer = (links.rank + lane) % links.size;  // Not all to the same one first.
      StorePacked(WordPlace(links.mailboxes[peer], round, links.rank, places.first_word + int64_t{2} * place),
                  {static_cast<uint32_t>(candidate), static_cast<uint32_t>(candidate >> 32)}, MarkOf(round));
    }
  }
}

// The other ranks' best, by one block; whether they came, and none of them where they did not. What is taken
// is not cleared: words are written over at their next use, and no mark comes again before two thousand
// million rounds. An entry that is not below `num_entries`, which there cannot be, counts as none.
template <int kMaxRows>
__device__ bool TakeBest(Choice<kMaxRows>& m, const IndexerOverRanks& p, const TokenPlaces& places,
                         uint64_t round, uint32_t num_entries) {
  // Requests to every rank at once: each is a way to the second cache and back.
  constexpr int kTogether = 2;
  const auto top_k = static_cast<int>(p.top_k);
  const PeerLinks& links = p.links;
  std::byte* const mailbox = links.mailboxes[links.rank];
  // Factor by which an entry gives 2^32 times its row: exact below 2^29, and for two ranks or more.
  const uint32_t rows_of_entries = UINT32_MAX / static_cast<uint32_t>(links.size) + 1;
  bool whole = links.state->broken == 0;
  for (int first = static_cast<int>(threadIdx.x); first < top_k; first += kTogether * kThreads) {
    const auto takes = [&](int k, int r) {
      return r < links.size && r != links.rank && first + k * kThreads < top_k;
    };
    uint2 words[kTogether][kMaxPeers] = {};
    if (whole) {
      whole = WaitUntil(links, [&] {
        bool there[kTogether][kMaxPeers];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
#pragma unroll
          for (int r = 0; r < kMaxPeers; ++r) {
            const int64_t word = places.first_word + int64_t{2} * (first + k * kThreads);
            there[k][r] =
                !takes(k, r) || LoadPacked(WordPlace(mailbox, round, r, word), MarkOf(round), words[k][r]);
          }
        }
        int source = -1;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
#pragma unroll
          for (int r = 0; r < kMaxPeers; ++r) {
            if (!there[k][r]) source = r;
          }
        }
        return source;
      });
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
#pragma unroll
      for (int r = 0; r < kMaxPeers; ++r) {
        if (!takes(k, r)) continue;
        const int place = first + k * kThreads;
        const uint64_t candidate = whole ? uint64_t{words[k][r].y} << 32 | words[k][r].x : 0;
        const uint32_t entry = UINT32_MAX - static_cast<uint32_t>(candidate);
        const auto row = static_cast<int>(__umulhi(entry, rows_of_entries));
        places.all[r * top_k + place] = candidate;
        m.best[r][Spread(place)] =
            entry < num_entries ? Ordered(static_cast<uint32_t>(candidate >> 48), row) : 0;
      }
    }
  }
  return whole;
}

// Which list a thread looks at: some warps have one together, and take every so many-th number of it as a
// sample.
struct ListShare {
  int list;  // No rank's: none.
  int thread;
  int num_threads;
  int stride;
  __device__ ListShare(int num_ranks, int top_k) {
    const int num_warps = kWarps / num_ranks;
    const auto warp = static_cast<int>(threadIdx.x) / 32;
    list = warp / num_warps;
    num_threads = num_warps * 32;
    thread = static_cast<int>(threadIdx.x) - list * num_threads;
    stride = (top_k + num_threads - 1) / num_threads;
  }
};
static_assert(kMaxPeers <= kWarps && kMaxTopK <= 32 * 32,
              "A warp has a list, and a lane what is between samples.");

// Nothing is chosen yet.
template <int kMaxRows>
__device__ void ClearChoice(Choice<kMaxRows>& m, int num_words) {
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < num_words; i += kThreads) m.chosen[i] = m.here[i] = 0;
  if (t < kMaxPeers) m.sampled[t] = 0;
}

// How many of numbers window_of(r) = [begin, end) of every rank's list, none of which has more than
// `longest`, are before `mine` of `list`. Of equal keys and rows those of the lower rank are, whose entry is
// the lower one. Searches by halves, in several lists side by side.
template <int kMaxRows, typename WindowOf>
__device__ __forceinline__ int NumBefore(const Choice<kMaxRows>& m, uint32_t mine, int list, int num_ranks,
                                         int longest, WindowOf window_of) {
  constexpr int kTogether = 4;
  static_assert(kMaxPeers % kTogether == 0);
  int num_before = 0;
  for (int first = 0; first < num_ranks; first += kTogether) {
    int2 window[kTogether];
    uint32_t bound[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int r = first + j;
      window[j] = r < num_ranks ? window_of(r) : int2{0, 0};
      bound[j] = r < list ? mine - 1 : mine;
      num_before -= window[j].x;
    }
    for (int step = 1 << (31 - __clz(longest | 1)); step > 0; step /= 2) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int next = min(window[j].x + step, window[j].y);
        const uint32_t last = m.best[first + j][Spread(max(0, next - 1))];  // Anything where there are none.
        window[j].x = last > bound[j] ? next : window[j].x;
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) num_before += window[j].x;
  }
  return num_before;
}

// How many of the list that this thread looks at are chosen, which are its first ones.
template <int kMaxRows>
__device__ int NumChosen(Choice<kMaxRows>& m, const ListShare& share, int num_ranks, int top_k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto is_chosen = [&](int i, int end, int left, int longest, auto window_of) {
    if (i >= end) return false;
    const uint32_t mine = m.best[share.list][Spread(i)];
    return mine != 0 && NumBefore(m, mine, share.list, num_ranks, longest, window_of) < left;
  };
  const auto whole_list = [&](int r) { return int2{0, r < num_ranks ? top_k : 0}; };
  const bool sample_chosen =
      is_chosen(share.thread * share.stride, whole_list(share.list).y, top_k, top_k, whole_list);
  const unsigned samples = __ballot_sync(kWholeWarp, sample_chosen);
  if (lane == 0 && share.list < num_ranks) atomicAdd(&m.sampled[share.list], __popc(samples));
  __syncthreads();

  // Entries behind the last sample that is chosen and in front of the next is open.
  const auto open_part = [&](int r) {
    const int end = m.sampled[r] * share.stride;
    return int2{max(0, end - share.stride + 1), min(end, top_k)};
  };
  int left = top_k;
#pragma unroll
  for (int r = 0; r < kMaxPeers; ++r) left -= open_part(r).x;  // No sample of what is no rank's.
  // Every warp of a list finds the same.
  const int2 open = open_part(share.list);
  const bool chosen = is_chosen(open.x + lane, open.y, left, share.stride - 1, open_part);
  return open.x + __popc(__ballot_sync(kWholeWarp, chosen));
}

// The best of all ranks' best, in ascending order, by one block that has met behind ClearChoice: a bit for
// every entry puts them there.
template <int kMaxRows>
__device__ void ChooseOfAll(Choice<kMaxRows>& m, const IndexerOverRanks& p, const TokenPlaces& places,
                            const ListShare& share, int num_words) {
  const int t = static_cast<int>(threadIdx.x);
  const auto top_k = static_cast<int>(p.top_k);
  const int num_of_list = NumChosen(m, share, p.links.size, top_k);
  const bool list_is_here = share.list == p.links.rank;
  const auto for_chosen = [&](auto take) {
    for (int i = share.thread; i < num_of_list; i += share.num_threads) {
      const uint32_t ordered = m.best[share.list][Spread(i)];
      const auto row = static_cast<int>(0xFFFFU - (ordered & 0xFFFFU));
      // None is among them where a rank's are not in order, which is after an exchange that broke.
      if (ordered != 0) take(row, row * p.links.size + share.list);
    }
  };
  for_chosen([&](int /*row*/, int entry) {
    atomicOr(&m.chosen[entry / 32], 1U << entry % 32);
    if (list_is_here) atomicOr(&m.here[entry / 32], 1U << entry % 32);
  });
  __syncthreads();

  // Each thread some words that follow each other, behind those of the threads before it.
  const int words_of_thread = (num_words + kThreads - 1) / kThreads;
  const int first = min(num_words, t * words_of_thread);
  const int last = min(num_words, first + words_of_thread);
  const auto bits_of = [&](int word) {
    return static_cast<uint32_t>(__popc(m.chosen[word]) | __popc(m.here[word]) << 16);
  };
  uint32_t own = 0;
  for (int i = first; i < last; ++i) own += bits_of(i);
  uint32_t up_to = own;
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, up_to, offset);
    if (t % 32 >= offset) up_to += other;
  }
  if (t % 32 == 31) m.of_warp[t / 32] = up_to;
  __syncthreads();
  uint32_t running = up_to - own;
  uint32_t total = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < t / 32) running += m.of_warp[warp];
    total += m.of_warp[warp];
  }
  for (int i = first; i < last; ++i) {
    m.before[i] = running;
    running += bits_of(i);
  }
  __syncthreads();

  for_chosen([&](int row, int entry) {
    const int word = entry / 32;
    const uint32_t lower = (1U << entry % 32) - 1;
    const uint32_t before = m.before[word];
    const int place = static_cast<int>(before & 0xFFFFU) + __popc(m.chosen[word] & lower);
    if (place < top_k) places.selected[place] = entry;  // Always, unless a rank's were not in order.
    if (list_is_here) places.rows[static_cast<int>(before >> 16) + __popc(m.here[word] & lower)] = row;
  });
  for (int i = static_cast<int>(total & 0xFFFFU) + t; i < top_k; i += kThreads) places.selected[i] = -1;
  if (t == 0) *places.num_rows = static_cast<int32_t>(total >> 16);
}

// Whether a token sees no more entries, of all ranks, than are chosen. The first of a few tokens may,
// although the last has something to choose from.
__device__ __forceinline__ bool SeesNoMoreThanChosen(const IndexerOverRanks& p, const SequenceRows& sequence,
                                                     int64_t token) {
  // Positions here are later ones, for which the rows that are here can be counted (record/indexer.cc).
  const auto ratio =
      static_cast<int64_t>(static_cast<uint32_t>(p.score.ratio) / static_cast<uint32_t>(p.shard_count));
  const int64_t shift = ratio * (p.shard_count - 1 - p.shard_index);
  const int64_t end = sequence.first_position - shift + token - sequence.token_begin + 1;
  return end < (p.top_k + 1) * ratio;
}

// Grid: blocks of a cluster, tokens. A cluster waits for those of the same token on other ranks only. So
// clusters need not all be on the device at once (attention_over_ranks.cuh).
template <int kMaxRows>
__global__ void __cluster_dims__(kIndexerBlocks) __launch_bounds__(kThreads)
    IndexerOverRanksKernel(const __grid_constant__ IndexerOverRanks p) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<Memory<kMaxRows>*>(raw);
  const auto cluster = cooperative_groups::this_cluster();
  const int block = static_cast<int>(cluster.block_rank());
  const PeerLinks& links = p.links;
  const int64_t token = blockIdx.y;
  const TokenPlaces places(p, token);
  const bool exchanges = p.all != nullptr;
  // Rounds that the first blocks end by and by, all of a cluster have read when they meet.
  const uint64_t round = exchanges ? links.state->round + 1 : 0;
  const bool active = exchanges && links.state->broken == 0;
  const bool chooses = exchanges && p.selected != nullptr;
  if (chooses && block == 0 && threadIdx.x == 0)
    InitReceipts(&m.best_came, static_cast<uint32_t>(p.top_k * int64_t{sizeof(uint32_t)}));
  __syncwarp();
  const SequenceRows& sequence = p.table.Of(token);
  const int visible = static_cast<int>(NumVisible(sequence, token, p.score.ratio));
  if (SeesNoMoreThanChosen(p, sequence, token)) {
    // All are chosen, and none has a score.
    constexpr IndexerKey kNoScore = 0x8000;  // OrderedKey(0.0F) >> 16.
    for (int row = static_cast<int>(threadIdx.x); row < visible; row += kThreads) m.all[row] = kNoScore;
    cluster.sync();
  } else if constexpr (kMaxRows <= kIndexerMaxEntries) {
    ScoreInCluster(m.scoring, m.all, p.table, sequence, p.score, token, visible);
  } else {
    const float* const scores = p.score.scores + token * p.score.max_visible;
#pragma unroll 8
    for (int row = static_cast<int>(threadIdx.x); row < visible; row += kThreads)
      m.all[row] = static_cast<IndexerKey>(OrderedKey(scores[row]) >> 16);
    cluster.sync();
  }

  const int count = ListBest(m.choice, m.all, visible, static_cast<int>(p.top_k));
  SendBest(m.choice, &m.best_came, p, places, block, count, active, round);
  if (!exchanges || block != 0) return;

  // Another rank may have one row more.
  const auto num_entries = static_cast<int>(min(int64_t{visible} + 1, int64_t{kMaxRows}) * p.shard_count);
  const int num_words = (num_entries + 31) / 32;
  const ListShare share(links.size, static_cast<int>(p.top_k));
  if (chooses) ClearChoice(m.choice, num_words);
  const bool whole = TakeBest(m.choice, p, places, round, static_cast<uint32_t>(num_entries));
  if (chooses) WaitForReceipts(&m.best_came);
  const bool all_whole = __syncthreads_and(whole ? 1 : 0) != 0;
  // The last of all tokens' ends the round. Which one that is comes while it chooses.
  int left_before = 0;
  if (threadIdx.x == 0 && active) {
    if (!all_whole) atomicExch(&links.state->broken, 1);
    left_before = atomicAdd(&links.state->num_done, 1);
  }
  if (chooses) ChooseOfAll(m.choice, p, places, share, num_words);
  if (threadIdx.x == 0 && active && left_before == static_cast<int>(gridDim.y) - 1) {
    links.state->num_done = 0;
    links.state->round = round;
  }
}

}  // namespace

bool HoldsIndexerOverRanks(LaunchContext& context, bool scored_before) {
  const auto holds = [&]<int kMaxRows>() {
    return context.HasCluster(reinterpret_cast<const void*>(IndexerOverRanksKernel<kMaxRows>), kIndexerBlocks,
                              kThreads, sizeof(Memory<kMaxRows>));
  };
  return scored_before ? holds.template operator()<kMaxScoredRows>()
                       : holds.template operator()<kIndexerMaxEntries>();
}

void LaunchIndexerOverRanks(LaunchContext& context, const IndexerOverRanks& params) {
  const auto launch = [&]<int kMaxRows>() {
    context.Launch(IndexerOverRanksKernel<kMaxRows>,
                   dim3(kIndexerBlocks, static_cast<unsigned>(params.num_tokens)), kThreads,
                   sizeof(Memory<kMaxRows>), params);
  };
  params.score.scores == nullptr ? launch.template operator()<kIndexerMaxEntries>()
                                 : launch.template operator()<kMaxScoredRows>();
}

}  // namespace dsv4::backend::cuda
