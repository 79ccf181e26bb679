// Scores are dot products in fp32 of packed panels, sixteen keys at a time for a group of neighbouring queries. Those of the
// release's FP4-rounded queries and keys are exact in it, so there they equal the reference's; other bf16 operands may differ
// where a dot product lies next to a bf16 midpoint.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "backend/cpu/cached_rows.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

// Neighbouring queries of a sequence that must be scored: tokens [first_token, first_token + visible.size()).
struct Group {
  const ops::IndexerSequence* sequence = nullptr;
  int64_t first_token = 0;
  std::vector<int64_t> visible;  // Of the rows that are here. Ascending.

  int64_t num_queries() const { return static_cast<int64_t>(visible.size()); }
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

  int64_t QueryBytes() const { return head_panels_ * panels_.PanelBytes(width_); }

  void PackQuery(int64_t token, uint8_t* packed) const {
    std::vector<const uint8_t*> rows;
    for (int64_t h = 0; h < num_heads_; ++h)
      rows.push_back(At(q_.data, q_.dtype, (token * num_heads_ + h) * width_));
    for (int64_t p = 0; p < head_panels_; ++p) {
      const int64_t first = p * panels_.lanes;
      panels_.pack_lanes(rows.data() + first, std::min(panels_.lanes, num_heads_ - first), bf16_, width_,
                         packed + p * panels_.PanelBytes(width_));
    }
  }

  // Scores of entries [begin, end) for every query of a group that sees them; query i's at scores[i].
  void Score(const Group& group, const uint8_t* packed, int64_t begin, int64_t end,
             std::span<std::vector<float>> scores) const {
    thread_local Scratch key_scratch;
    thread_local Scratch dot_scratch;
    thread_local Scratch wide_scratch;
    static_assert(kScoreKeys % 4 == 0);
    const int64_t panels_per_block = kScoreKeys / panels_.lanes;
    uint8_t* const keys = key_scratch.Get(panels_per_block * panels_.PanelBytes(width_));
    float* const dots = dot_scratch.Floats(num_heads_ * kScoreKeys);
    const ops::PagedRows& pages = group.sequence->keys;
    uint8_t* const wide =
        pages.format.packed() ? wide_scratch.Get(kScoreKeys * width_ * ElementBytes(q_.dtype)) : nullptr;
    for (int64_t block = begin; block < end; block += kScoreKeys) {
      const int64_t count = std::min(kScoreKeys, end - block);
      std::array<const uint8_t*, kScoreKeys> rows = {};
      for (int64_t j = 0; j < count; ++j) rows[static_cast<size_t>(j)] = PagedRow(pages, block + j);
      const bool coded = PackCodes(pages.format, rows, count, keys);
      for (int64_t j = 0; !coded && pages.format.packed() && j < count; ++j) {
        const uint8_t*& row = rows[static_cast<size_t>(j)];
        uint8_t* const widened = wide + j * width_ * ElementBytes(q_.dtype);
        WidenRow(kernels_, pages.format, width_, row, widened);
        row = widened;
      }
      for (int64_t p = 0; !coded && p < panels_per_block; ++p) {
        panels_.pack_lanes(rows.data() + p * panels_.lanes, panels_.lanes, bf16_, width_,
                           keys + p * panels_.PanelBytes(width_));
      }
      for (int64_t i = 0; i < group.num_queries(); ++i) {
        const int64_t seen = std::min(count, group.visible[static_cast<size_t>(i)] - block);
        if (seen <= 0) continue;
        for (int64_t p = 0; p < head_panels_; ++p) {
          const int64_t head = p * panels_.lanes;
          panels_.multiply(packed + i * QueryBytes() + p * panels_.PanelBytes(width_), keys,
                           panels_.PanelBytes(width_), panels_per_block, width_,
                           std::min(panels_.lanes, num_heads_ - head), false, dots + head * kScoreKeys,
                           kScoreKeys);
        }
        std::array<float, kScoreKeys> block_scores;
        rows_.index_scores(dots, kScoreKeys, num_heads_,
                           weights_.data() + (group.first_token + i) * num_heads_, bf16_,
                           block_scores.data());
        std::copy_n(block_scores.begin(), seen, scores[static_cast<size_t>(i)].begin() + block);
      }
    }
  }

 private:
  // Packs `count` rows of codes as they are stored, where the tier and the format allow; false if not.
  bool PackCodes(const CacheFormat& format, const std::array<const uint8_t*, kScoreKeys>& rows, int64_t count,
                 uint8_t* keys) const {
    constexpr int64_t kMostGroups = 16;
    constexpr int kLargestExponent = 100;
    if (panels_.pack_e2m1_lanes == nullptr || panels_.lanes != kScoreKeys ||
        format.code != CacheCode::kE2m1 || format.scale != CacheScale::kE8m0 || format.num_coded != width_ ||
        width_ % 128 != 0 || format.group % 8 != 0 || format.NumScales() > kMostGroups) {
      return false;
    }
    std::array<int32_t, kMostGroups* kScoreKeys> exponents = {};
    for (int64_t j = 0; j < count; ++j) {
      const uint8_t* const scales = rows[static_cast<size_t>(j)] + format.ScaleBegin(width_);
      for (int64_t g = 0; g < format.NumScales(); ++g) {
        const int exponent = int{scales[g]} - kE8m0Bias;
        if (exponent < -kLargestExponent || exponent > kLargestExponent) return false;
        exponents[static_cast<size_t>(g * kScoreKeys + j)] = exponent;
      }
    }
    panels_.pack_e2m1_lanes(rows.data(), count, width_, format.group, exponents.data(), keys);
    return true;
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

// The `top_k` highest scores, equal ones by lowest index, in ascending order of index. The rank of the last one that is taken
// is found digit by digit, from the counts of the entries that share the digits before.
void TopK(std::span<const float> scores, int64_t top_k, int32_t* selected) {
  std::vector<uint32_t> ranks(scores.size());
  std::transform(scores.begin(), scores.end(), ranks.begin(), ops::ScoreOrder);
  constexpr int kDigitBits = 11;
  constexpr int kShifts[] = {21, 10, 0};
  uint32_t last = 0;
  uint32_t known = 0;      // Bits of `last` that are settled.
  int64_t wanted = top_k;  // How many of those that share them are taken.
  for (const int shift : kShifts) {
    const uint32_t digit_mask = ((1U << kDigitBits) - 1) & (UINT32_MAX >> shift);
    std::array<int32_t, 1 << kDigitBits> counts = {};
    for (const uint32_t rank : ranks) counts[rank >> shift & digit_mask] += (rank & known) == last ? 1 : 0;
    uint32_t digit = digit_mask;
    while (counts[digit] < wanted) wanted -= counts[digit--];
    last |= digit << shift;
    known |= digit_mask << shift;
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] > last || (ranks[i] == last && wanted-- > 0)) *selected++ = static_cast<int32_t>(i);
  }
}

// What is chosen from, and how many.
struct Problem {
  const TensorView& q;
  const TensorView& weights;
  int64_t ratio;
  EntryShard shard;
  int64_t top_k;
  std::span<const ops::IndexerSequence> sequences;
};

// Queries with no more than top_k visible entries take them all: take_all(token, rows here). The others are returned in groups.
template <typename TakeAll>
std::vector<Group> Groups(const Problem& problem, const TakeAll& take_all) {
  constexpr int64_t kMaxRows = 256;  // Queries times heads that meet a packed key while it is near.
  const int64_t max_queries = std::max<int64_t>(1, kMaxRows / std::max<int64_t>(1, problem.q.shape[1]));
  std::vector<Group> groups;
  for (const ops::IndexerSequence& sequence : problem.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      const int64_t token = sequence.token_begin + i;
      const int64_t visible = (sequence.first_position + i + 1) / problem.ratio;
      const int64_t num_rows = problem.shard.NumRows(visible);
      if (visible <= problem.top_k) {
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

// Calls take_all(token, rows here) for the queries that need no scores and choose(token, scores of the rows here) for the others,
// the latter on any thread.
template <typename TakeAll, typename Choose>
void ForEachQuery(ops::OpContext& context, const Problem& problem, const TakeAll& take_all,
                  const Choose& choose) {
  if (problem.top_k == 0) return;
  const std::vector<Group> groups = Groups(problem, take_all);
  if (groups.empty()) return;
  const std::vector<float> weights = LoadAll(KernelsOf(context), problem.weights);
  const Scorer scorer(KernelsOf(context), problem.q, weights);

  // A few groups at a time: their scores fit into memory at any context length, and one group is split by entries.
  struct Task {
    size_t group;
    int64_t begin;
  };
  constexpr int64_t kKeysPerTask = 256;
  const size_t num_at_once = static_cast<size_t>(context.threads().num_threads());
  for (size_t first = 0; first < groups.size(); first += num_at_once) {
    const std::span<const Group> now =
        std::span(groups).subspan(first, std::min(num_at_once, groups.size() - first));
    std::vector<std::vector<std::vector<float>>> scores(now.size());  // [group][query][entry]
    std::vector<std::vector<uint8_t>> packed(now.size());
    std::vector<Task> tasks;
    std::vector<std::pair<size_t, size_t>> queries;
    for (size_t g = 0; g < now.size(); ++g) {
      packed[g].resize(static_cast<size_t>(now[g].num_queries() * scorer.QueryBytes()));
      for (size_t i = 0; i < now[g].visible.size(); ++i) {
        scorer.PackQuery(now[g].first_token + static_cast<int64_t>(i),
                         packed[g].data() + static_cast<int64_t>(i) * scorer.QueryBytes());
        scores[g].emplace_back(static_cast<size_t>(now[g].visible[i]));
        queries.emplace_back(g, i);
      }
      for (int64_t begin = 0; begin < now[g].visible.back(); begin += kKeysPerTask)
        tasks.push_back({g, begin});
    }
    context.threads().ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto [g, entry] = tasks[static_cast<size_t>(i)];
        scorer.Score(now[g], packed[g].data(), entry, std::min(now[g].visible.back(), entry + kKeysPerTask),
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

}  // namespace

Status IndexerSelect(ops::OpContext& context, const ops::IndexerSelectArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t top_k = args.selected.shape[1];
  const Problem problem = {.q = args.q,
                           .weights = args.weights,
                           .ratio = args.ratio,
                           .shard = {},
                           .top_k = top_k,
                           .sequences = args.sequences};
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
