// Scores are dot products in fp32 of packed panels, sixteen keys at a time for a group of neighbouring
// queries. Scores of the release's FP4-rounded queries and keys are exact in fp32 and equal the reference's.
// Other bf16 operands may differ where a dot product lies next to a bf16 midpoint. Keys that are stored as
// the release's codes are multiplied as such where the tier can (kernels/fp4_keys.h), with the same scores.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "backend/cpu/cached_rows.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/values.h"
#include "base/per_thread.h"
#include "base/text.h"

namespace dsv4::backend::cpu {

namespace {

// Neighbouring queries of a sequence that must be scored: tokens [first_token, first_token + visible.size()).
struct KeyGroup {
  const ops::IndexerSequence* sequence = nullptr;
  int64_t first_token = 0;
  std::vector<int64_t> visible;  // Visible rows that are here. Ascending.

  int64_t num_queries() const { return static_cast<int64_t>(visible.size()); }
};

// A group's queries as the kernels read them.
struct PackedQueries {
  std::vector<uint8_t> panels;
  std::vector<uint8_t> bytes;  // For keys in codes; empty: they are widened.
};

// Memory of a thread that scores panels.
struct PanelScratch {
  Scratch keys;
  Scratch dots;
  Scratch wide;
};

class Scorer {
 public:
  Scorer(const Kernels& kernels, const TensorView& q, const std::vector<float>& weights)
      : q_(q),
        kernels_(kernels),
        rows_(kernels.rows),
        panels_(q.dtype == DType::kBF16 && kernels.bf16_panels.lanes > 0 ? kernels.bf16_panels
                                                                         : kernels.float_panels),
        weights_(weights),
        bf16_(q.dtype == DType::kBF16),
        num_heads_(q.shape[1]),
        width_(q.shape[2]),
        head_panels_((num_heads_ + panels_.lanes - 1) / panels_.lanes) {}

  PackedQueries Pack(const KeyGroup& group) const {
    PackedQueries packed;
    packed.panels.resize(static_cast<size_t>(group.num_queries() * PanelBytes()));
    std::vector<const uint8_t*> rows(static_cast<size_t>(num_heads_));
    for (int64_t i = 0; i < group.num_queries(); ++i) {
      for (int64_t h = 0; h < num_heads_; ++h) rows[static_cast<size_t>(h)] = Row(group.first_token + i, h);
      for (int64_t p = 0; p < head_panels_; ++p) {
        const int64_t first = p * panels_.lanes;
        panels_.pack_lanes(rows.data() + first, std::min(panels_.lanes, num_heads_ - first), bf16_, width_,
                           packed.panels.data() + i * PanelBytes() + p * panels_.PanelBytes(width_));
      }
    }
    if (!TakesCodes(group.sequence->keys.format)) return packed;
    const int64_t query_bytes = Fp4KeyKernels::QueryBytes(num_heads_);
    packed.bytes.resize(static_cast<size_t>(group.num_queries() * query_bytes));
    for (int64_t i = 0; i < group.num_queries(); ++i) {
      if (!kernels_.fp4_keys.pack_query(Row(group.first_token + i, 0), WeightsOf(group.first_token + i),
                                        num_heads_, packed.bytes.data() + i * query_bytes)) {
        packed.bytes.clear();
        break;
      }
    }
    return packed;
  }

  // Scores of entries [begin, end) for every query of a group that sees them; query i's at scores[i].
  void Score(const KeyGroup& group, const PackedQueries& packed, int64_t begin, int64_t end,
             std::span<std::vector<float>> scores) const {
    while (begin < end) {
      int64_t count = std::min(kFp4Keys, end - begin);
      if (packed.bytes.empty() || !ScoreCodes(group, packed, begin, count, scores)) {
        count = std::min(kScoreKeys, end - begin);
        ScorePanels(group, packed, begin, count, scores);
      }
      begin += count;
    }
  }

 private:
  const uint8_t* Row(int64_t token, int64_t head) const {
    return At(q_.data, q_.dtype, (token * num_heads_ + head) * width_);
  }
  const float* WeightsOf(int64_t token) const { return weights_.data() + token * num_heads_; }
  int64_t PanelBytes() const { return head_panels_ * panels_.PanelBytes(width_); }

  bool TakesCodes(const CacheFormat& format) const {
    return kernels_.fp4_keys.score != nullptr && bf16_ && width_ == kFp4KeyWidth &&
           format.code == CacheCode::kE2m1 && format.scale == CacheScale::kE8m0 &&
           format.num_coded == width_ && format.group == kFp4KeyGroup;
  }

  // Scores of `count` keys from `first` on, to each query that sees some.
  template <typename ScoreQuery>
  static void ForEachSeeing(const KeyGroup& group, int64_t first, int64_t count,
                            std::span<std::vector<float>> scores, const ScoreQuery& score) {
    std::array<float, kFp4Keys> block;
    for (int64_t i = 0; i < group.num_queries(); ++i) {
      const int64_t seen = std::min(count, group.visible[static_cast<size_t>(i)] - first);
      if (seen <= 0) continue;
      score(i, block.data());
      std::copy_n(block.begin(), seen, scores[static_cast<size_t>(i)].begin() + first);
    }
  }

  // False where a key is none for these kernels.
  bool ScoreCodes(const KeyGroup& group, const PackedQueries& packed, int64_t first, int64_t count,
                  std::span<std::vector<float>> scores) const {
    alignas(64) std::array<uint8_t, kFp4KeyBlockBytes> keys;
    std::array<const uint8_t*, kFp4Keys> rows;
    PagedRowPointers(group.sequence->keys, first, count, rows.data());
    if (!kernels_.fp4_keys.pack_keys(rows.data(), count, keys.data())) return false;
    const int64_t query_bytes = Fp4KeyKernels::QueryBytes(num_heads_);
    ForEachSeeing(group, first, count, scores, [&](int64_t i, float* block) {
      kernels_.fp4_keys.score(packed.bytes.data() + i * query_bytes, keys.data(), num_heads_, block);
    });
    return true;
  }

  void ScorePanels(const KeyGroup& group, const PackedQueries& packed, int64_t first, int64_t count,
                   std::span<std::vector<float>> scores) const {
    auto& scratch = PerThread<PanelScratch>();
    static_assert(kScoreKeys % 4 == 0 && kScoreKeys <= kFp4Keys);
    const int64_t panels_per_block = kScoreKeys / panels_.lanes;
    uint8_t* const keys = scratch.keys.Get(panels_per_block * panels_.PanelBytes(width_));
    float* const dots = scratch.dots.Floats(num_heads_ * kScoreKeys);
    const ops::PagedRows& pages = group.sequence->keys;
    std::array<const uint8_t*, kScoreKeys> rows = {};
    PagedRowPointers(pages, first, count, rows.data());
    if (pages.format.packed()) {
      const int64_t row_bytes = width_ * ElementBytes(q_.dtype);
      uint8_t* const wide = scratch.wide.Get(kScoreKeys * row_bytes);
      for (int64_t j = 0; j < count; ++j) {
        WidenRow(kernels_, pages.format, width_, rows[static_cast<size_t>(j)], wide + j * row_bytes);
        rows[static_cast<size_t>(j)] = wide + j * row_bytes;
      }
    }
    for (int64_t p = 0; p < panels_per_block; ++p) {
      panels_.pack_lanes(rows.data() + p * panels_.lanes, panels_.lanes, bf16_, width_,
                         keys + p * panels_.PanelBytes(width_));
    }
    ForEachSeeing(group, first, count, scores, [&](int64_t i, float* block) {
      for (int64_t p = 0; p < head_panels_; ++p) {
        const int64_t head = p * panels_.lanes;
        panels_.multiply(packed.panels.data() + i * PanelBytes() + p * panels_.PanelBytes(width_), keys,
                         panels_.PanelBytes(width_), panels_per_block, width_,
                         std::min(panels_.lanes, num_heads_ - head), false, dots + head * kScoreKeys,
                         kScoreKeys);
      }
      rows_.index_scores(dots, kScoreKeys, num_heads_, WeightsOf(group.first_token + i), bf16_, block);
    });
  }

  const TensorView& q_;
  const Kernels& kernels_;
  const RowKernels& rows_;
  const PanelKernels& panels_;
  const std::vector<float>& weights_;
  bool bf16_;
  int64_t num_heads_;
  int64_t width_;
  int64_t head_panels_;
};

// Memory of a thread that selects.
struct TopKScratch {
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> sharing;  // Candidates that share the digits before.
};

// The `top_k` highest scores, equal ones by lowest index, in ascending order of index. The rank of the last
// one that is taken is found digit by digit, from the counts of the entries that share the digits before.
void TopK(std::span<const float> scores, int64_t top_k, int32_t* selected) {
  auto& [ranks, sharing] = PerThread<TopKScratch>();
  ranks.resize(scores.size());
  std::transform(scores.begin(), scores.end(), ranks.begin(), ops::ScoreOrder);
  constexpr int kDigitBits = 11;
  constexpr int kShifts[] = {21, 10, 0};
  uint32_t last = 0;
  int64_t wanted = top_k;  // How many of those that share them are taken.
  std::span<const uint32_t> left = ranks;
  for (const int shift : kShifts) {
    const uint32_t digit_mask = ((1U << kDigitBits) - 1) & (UINT32_MAX >> shift);
    std::array<int32_t, 1 << kDigitBits> counts = {};
    for (const uint32_t rank : left) ++counts[rank >> shift & digit_mask];
    uint32_t digit = digit_mask;
    while (counts[digit] < wanted) wanted -= counts[digit--];
    last |= digit << shift;
    // Replaces it where it is `sharing` that is read.
    const auto num_sharing = static_cast<size_t>(counts[digit]);
    if (shift == kShifts[0]) sharing.resize(num_sharing);
    size_t next = 0;
    for (const uint32_t rank : left) {
      if ((rank >> shift & digit_mask) == digit) sharing[next++] = rank;
    }
    left = std::span(sharing).first(num_sharing);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] > last || (ranks[i] == last && wanted-- > 0)) *selected++ = static_cast<int32_t>(i);
  }
}

// Problem of a choice: what is chosen from, and how many.
struct Problem {
  const TensorView& q;
  const TensorView& weights;
  int64_t ratio;
  EntryShard shard;
  int64_t top_k;
  std::span<const ops::IndexerSequence> sequences;
  int64_t unscored = top_k;  // Most visible entries of a query without scores.
};

// Queries with no more than `unscored` visible entries take them all: take_all(token, rows here). The others
// are returned in groups.
template <typename TakeAll>
std::vector<KeyGroup> Groups(const Problem& problem, const TakeAll& take_all) {
  constexpr int64_t kMaxRows = 256;  // Queries times heads that meet a packed key while it is near.
  const int64_t max_queries = std::max<int64_t>(1, kMaxRows / std::max<int64_t>(1, problem.q.shape[1]));
  std::vector<KeyGroup> groups;
  for (const ops::IndexerSequence& sequence : problem.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      const int64_t token = sequence.token_begin + i;
      const int64_t visible = (sequence.first_position + i + 1) / problem.ratio;
      const int64_t num_rows = problem.shard.NumRows(visible);
      if (visible <= problem.unscored) {
        take_all(token, num_rows);
        continue;
      }
      if (groups.empty() || groups.back().sequence != &sequence || groups.back().num_queries() == max_queries)
        groups.push_back({.sequence = &sequence, .first_token = token, .visible = {}});
      groups.back().visible.push_back(num_rows);
    }
  }
  return groups;
}

// Calls take_all(token, rows here) for the queries that need no scores. Calls choose(token, scores of the
// rows here) for the others, on any thread.
template <typename TakeAll, typename Choose>
void ForEachQuery(ops::OpContext& context, const Problem& problem, const TakeAll& take_all,
                  const Choose& choose) {
  if (problem.top_k == 0) return;
  const std::vector<KeyGroup> groups = Groups(problem, take_all);
  if (groups.empty()) return;
  const std::vector<float> weights = LoadAll(KernelsOf(context), problem.weights);
  const Scorer scorer(KernelsOf(context), problem.q, weights);

  // A few groups at a time: their scores fit into memory at any context length, and one group is split by
  // entries.
  struct Task {
    size_t group;
    int64_t begin;
  };
  constexpr int64_t kKeysPerTask = 256;
  const size_t num_at_once = static_cast<size_t>(context.threads().num_threads());
  for (size_t first = 0; first < groups.size(); first += num_at_once) {
    const std::span<const KeyGroup> now =
        std::span(groups).subspan(first, std::min(num_at_once, groups.size() - first));
    std::vector<std::vector<std::vector<float>>> scores(now.size());  // [group][query][entry]
    std::vector<PackedQueries> packed(now.size());
    std::vector<Task> tasks;
    std::vector<std::pair<size_t, size_t>> queries;
    for (size_t g = 0; g < now.size(); ++g) {
      packed[g] = scorer.Pack(now[g]);
      for (size_t i = 0; i < now[g].visible.size(); ++i) {
        scores[g].emplace_back(static_cast<size_t>(now[g].visible[i]));
        queries.emplace_back(g, i);
      }
      for (int64_t begin = 0; begin < now[g].visible.back(); begin += kKeysPerTask)
        tasks.push_back({g, begin});
    }
    context.threads().ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto [g, entry] = tasks[static_cast<size_t>(i)];
        scorer.Score(now[g], packed[g], entry, std::min(now[g].visible.back(), entry + kKeysPerTask),
                     scores[g]);
      }
    });
    context.threads().ParallelFor(static_cast<int64_t>(queries.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const auto [g, i] = queries[static_cast<size_t>(k)];
        choose(now[g].first_token + static_cast<int64_t>(i), scores[g][i]);
      }
    });
  }
}

// A row of an I32 list, filled up with -1.
std::span<int32_t> ListOf(const TensorView& lists, int64_t token) {
  const std::span<int32_t> list(lists.as<int32_t>() + token * lists.shape[1],
                                static_cast<size_t>(lists.shape[1]));
  std::ranges::fill(list, -1);
  return list;
}

void TakeAll(std::span<int32_t> list, int64_t count) { std::iota(list.begin(), list.begin() + count, 0); }

// The best blocks by scores of all visible entries.
void ChooseBlocks(const ops::IndexerSelectArgs& args, std::span<const float> scores, int64_t token) {
  const std::span<int32_t> best = ListOf(args.best, token);
  const auto visible = std::ssize(scores);
  const int64_t num_blocks = (visible + args.block_size - 1) / args.block_size;
  if (num_blocks <= std::ssize(best)) return TakeAll(best, num_blocks);
  std::vector<float> blocks(static_cast<size_t>(num_blocks), -std::numeric_limits<float>::infinity());
  for (int64_t j = 0; j < visible; ++j) {
    float& block = blocks[static_cast<size_t>(j / args.block_size)];
    block = std::max(block, scores[static_cast<size_t>(j)]);  // NaN leaves it as it is.
  }
  blocks.back() = std::numeric_limits<float>::infinity();
  TopK(blocks, std::ssize(best), best.data());
}

// The visible entries of a query's blocks, ascending.
std::vector<int32_t> EntriesWithin(const ops::IndexerSelectArgs& args, int64_t visible, int64_t token) {
  std::vector<int32_t> entries;
  const int32_t* const blocks = args.within.as<const int32_t>() + token * args.within.shape[1];
  for (int64_t i = 0; i < args.within.shape[1] && blocks[i] >= 0; ++i) {
    const int64_t begin = blocks[i] * args.block_size;
    for (int64_t j = begin; j < std::min(visible, begin + args.block_size); ++j)
      entries.push_back(static_cast<int32_t>(j));
  }
  std::ranges::sort(entries);
  return entries;
}

Status CheckWithin(const ops::IndexerSelectArgs& args) {
  for (const ops::IndexerSequence& sequence : args.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      const int64_t token = sequence.token_begin + i;
      const int64_t visible = (sequence.first_position + i + 1) / args.ratio;
      const int32_t* const blocks = args.within.as<const int32_t>() + token * args.within.shape[1];
      for (int64_t k = 0; k < args.within.shape[1] && blocks[k] >= 0; ++k) {
        if (blocks[k] * args.block_size < visible) continue;
        return OutOfRange(fmt::format("indexer_select: within[{}, {}]: block {}, wanted one of {}", token, k,
                                      blocks[k], Counted(visible, "entry")));
      }
    }
  }
  return {};
}

// The best of those entries that a query's blocks have; `scores` of all visible ones, or none where all of
// them may be taken.
void ChooseWithin(const ops::IndexerSelectArgs& args, std::span<const float> scores, int64_t visible,
                  int64_t token) {
  const std::span<int32_t> selected = ListOf(args.selected, token);
  const std::vector<int32_t> entries = EntriesWithin(args, visible, token);
  if (entries.size() <= selected.size()) {
    std::ranges::copy(entries, selected.begin());
    return;
  }
  std::vector<float> of_entries;
  for (const int32_t entry : entries) of_entries.push_back(scores[static_cast<size_t>(entry)]);
  TopK(of_entries, std::ssize(selected), selected.data());
  for (int32_t& chosen : selected) chosen = entries[static_cast<size_t>(chosen)];
}

}  // namespace

Status IndexerSelect(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t top_k = args.selected.shape[1];
  Problem problem = {.q = args.q,
                     .weights = args.weights,
                     .ratio = args.ratio,
                     .shard = {},
                     .top_k = top_k,
                     .sequences = args.sequences};
  if (!args.within.is_null()) {
    DSV4_RETURN_IF_ERROR(CheckWithin(args));
    ForEachQuery(
        context, problem, [&](int64_t token, int64_t visible) { ChooseWithin(args, {}, visible, token); },
        [&](int64_t token, std::span<const float> scores) {
          ChooseWithin(args, scores, std::ssize(scores), token);
        });
    return {};
  }
  if (!args.best.is_null()) {
    problem.unscored = std::min(top_k, args.best.shape[1] * args.block_size);
    ForEachQuery(
        context, problem,
        [&](int64_t token, int64_t visible) {
          TakeAll(ListOf(args.selected, token), visible);
          TakeAll(ListOf(args.best, token), (visible + args.block_size - 1) / args.block_size);
        },
        [&](int64_t token, std::span<const float> scores) {
          const std::span<int32_t> selected = ListOf(args.selected, token);
          if (std::ssize(scores) <= top_k) {
            TakeAll(selected, std::ssize(scores));
          } else {
            TopK(scores, top_k, selected.data());
          }
          ChooseBlocks(args, scores, token);
        });
    return {};
  }
  ForEachQuery(
      context, problem,
      [&](int64_t token, int64_t num_rows) {
        int32_t* const selected = args.selected.as<int32_t>() + token * top_k;
        std::iota(selected, selected + num_rows, 0);
        std::fill(selected + num_rows, selected + top_k, -1);
      },
      [&](int64_t token, std::span<const float> scores) {
        TopK(scores, top_k, args.selected.as<int32_t>() + token * top_k);
      });
  return {};
}

Status IndexerCandidates(ops::OpContext& context, const ops::IndexerCandidatesArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t top_k = args.candidates.shape[1];
  const Problem problem = {.q = args.q,
                           .weights = args.weights,
                           .ratio = args.ratio,
                           .shard = args.shard,
                           .top_k = top_k,
                           .sequences = args.sequences};
  const auto list = [&](int64_t token, std::span<const int32_t> rows, const auto& score) {
    uint64_t* const candidates = args.candidates.as<uint64_t>() + token * top_k;
    uint64_t* next = candidates;
    for (const int32_t row : rows) *next++ = ops::MakeCandidate(score(row), args.shard.Entry(row));
    std::sort(candidates, next, std::greater<>());
    std::fill(next, candidates + top_k, uint64_t{0});
  };
  const auto all = [](int64_t num_rows) {
    std::vector<int32_t> rows(static_cast<size_t>(num_rows));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  };
  ForEachQuery(
      context, problem,
      [&](int64_t token, int64_t num_rows) { list(token, all(num_rows), [](int32_t) { return 0.0F; }); },
      [&](int64_t token, std::span<const float> scores) {
        const auto num_rows = static_cast<int64_t>(scores.size());
        std::vector<int32_t> rows = all(std::min(top_k, num_rows));
        if (num_rows > top_k) TopK(scores, top_k, rows.data());
        list(token, rows, [&](int32_t row) { return scores[static_cast<size_t>(row)]; });
      });
  return {};
}

Status MergeCandidates(ops::OpContext& context, const ops::MergeCandidatesArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t count = args.candidates.shape[1];
  const int64_t top_k = args.selected.shape[1];
  context.threads().ParallelFor(args.candidates.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> best;
    for (int64_t token = begin; token < end; ++token) {
      const uint64_t* const all = args.candidates.as<const uint64_t>() + token * count;
      best.assign(all, all + count);
      if (count > top_k) {
        std::nth_element(best.begin(), best.begin() + top_k, best.end(), std::greater<>());
        best.resize(static_cast<size_t>(top_k));
      }
      int32_t* const selected = args.selected.as<int32_t>() + token * top_k;
      int32_t* next = selected;
      for (const uint64_t candidate : best) {
        if (candidate != 0) *next++ = ops::EntryOfCandidate(candidate);
      }
      std::sort(selected, next);
      std::fill(next, selected + top_k, -1);
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
