// Attention as two matrix products of packed panels: the queries of a group against the rows they see for the logits, the
// softmax weights against the same rows for the values. All heads share K = V, and neighbouring queries of a sequence share
// most of what they see, so a row is packed once for all of them.
//
// A group lays the rows out in slots: the window's positions from an even one on, then the entries. With bf16 steps a pair of
// slots is therefore the same for every query that sees it, whatever the group, and a query's sums run over its own slots
// only: a neighbour's slot in a pair at the border has weight 0, which adds nothing. (Unless it holds a NaN or an infinity;
// such queries are taken one by one.)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

struct Query {
  const ops::AttentionSequence* sequence = nullptr;
  int64_t token = 0;
  int64_t position = 0;
  int64_t window_begin = 0;
  int64_t num_entries = 0;      // It sees [0, num_entries),
  std::vector<int32_t> chosen;  // or, if not empty, these in ascending order.
};

// The entries that `selected` names for a query, checked.
Status TakeSelected(const ops::AttentionArgs& args, int64_t num_visible, Query& query) {
  const int64_t top_k = args.selected.shape[1];
  const int32_t* const list = args.selected.as<const int32_t>() + query.token * top_k;
  // Most often all there are, in order.
  while (query.num_entries < std::min(top_k, num_visible) &&
         list[query.num_entries] == static_cast<int32_t>(query.num_entries)) {
    ++query.num_entries;
  }
  if (std::all_of(list + query.num_entries, list + top_k, [](int32_t entry) { return entry == -1; }))
    return {};
  for (int64_t i = 0; i < top_k; ++i) {
    if (list[i] == -1) continue;
    if (list[i] < 0 || list[i] >= num_visible) {
      return InvalidArgument(
          fmt::format("op attention: selected[{}, {}]: {}, want -1 or 0 to {} at position {}", query.token, i,
                      list[i], num_visible - 1, query.position));
    }
    query.chosen.push_back(list[i]);
  }
  if (!std::is_sorted(query.chosen.begin(), query.chosen.end()))
    std::sort(query.chosen.begin(), query.chosen.end());
  const auto repeat = std::adjacent_find(query.chosen.begin(), query.chosen.end());
  if (repeat != query.chosen.end()) {
    return InvalidArgument(fmt::format("op attention: selected[{}]: entry {} more than once, want no repeats",
                                       query.token, *repeat));
  }
  query.num_entries = static_cast<int64_t>(query.chosen.size());
  return {};
}

// Every query's visible set, in order of tokens.
Result<std::vector<Query>> Queries(ops::OpContext& context, const ops::AttentionArgs& args) {
  std::vector<Query> queries;
  for (const ops::AttentionSequence& sequence : args.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i) {
      const int64_t position = sequence.first_position + i;
      queries.push_back({.sequence = &sequence,
                         .token = sequence.token_begin + i,
                         .position = position,
                         .window_begin = std::max<int64_t>(0, position - args.window_size + 1),
                         .num_entries = 0,
                         .chosen = {}});
    }
  }
  if (args.ratio == 0) return queries;
  std::vector<Status> statuses(queries.size());
  context.threads().ParallelFor(static_cast<int64_t>(queries.size()), 64, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const int64_t num_visible = (queries[i].position + 1) / args.ratio;
      if (args.selected.is_null()) {
        queries[i].num_entries = num_visible;
      } else {
        statuses[i] = TakeSelected(args, num_visible, queries[i]);
      }
    }
  });
  for (Status& status : statuses) {
    if (!status.ok()) return Error(std::move(status));
  }
  return queries;
}

// Memory of the thread that runs a part.
struct PartScratch {
  Scratch keys;
  Scratch values;
  Scratch weights;
};
PartScratch& ThisThread() {
  thread_local PartScratch scratch;
  return scratch;
}

// What a group keeps between its phases.
struct GroupScratch {
  Scratch queries;  // Packed.
  Scratch logits;   // [query, head, slot], then the weights.
  Scratch narrow;   // The weights as bf16.
  Scratch outputs;  // [query, head, column] before the division.
};

// Neighbouring queries of one sequence, in phases of independent units.
class Group {
 public:
  Group(ops::OpContext& context, const ops::AttentionArgs& args, const std::vector<float>& sink,
        std::span<const Query> queries, GroupScratch& scratch)
      : args_(args),
        kernels_(KernelsOf(context)),
        panels_(PanelsFor(kernels_, args.q.dtype)),
        sink_(sink),
        queries_(queries),
        scratch_(scratch),
        bf16_(args.q.dtype == DType::kBF16),
        num_heads_(args.q.shape[1]),
        dim_(args.q.shape[2]),
        head_panels_((num_heads_ + panels_.lanes - 1) / panels_.lanes) {
    AddSegments();
    stride_ = RoundUp(window_slots_ + entry_slots_, panels_.lanes);
    const int64_t num_rows = NumRows();
    scratch_.queries.Get(num_queries() * head_panels_ * panels_.PanelBytes(dim_));
    scratch_.logits.Floats(num_rows * stride_);
    if (panels_.step == 2) scratch_.narrow.Get(2 * num_rows * stride_);
    output_stride_ = RoundUp(dim_, panels_.lanes);
    scratch_.outputs.Floats(num_rows * output_stride_);
    normalizers_.resize(static_cast<size_t>(num_rows));
  }

  static const PanelKernels& PanelsFor(const Kernels& kernels, DType dtype) {
    return dtype == DType::kBF16 && kernels.bf16_panels.lanes > 0 ? kernels.bf16_panels
                                                                  : kernels.float_panels;
  }

  // Whether queries may share the steps at the borders of what they see.
  bool Separable() const {
    if (panels_.step == 1 || num_queries() == 1) return true;
    for (const Segment& segment : segments_) {
      for (const uint8_t* const row : segment.rows) {
        if (row != nullptr && !kernels_.rows.all_finite(row, bf16_, dim_)) return false;
      }
    }
    return true;
  }

  static constexpr int kNumPhases = 4;
  // Part `part` of `num_parts` of a phase; all of a phase before any of the next.
  void Run(int phase, int64_t part, int64_t num_parts) {
    const auto units = [&](int64_t count, const auto& run) {
      const int64_t end = count * (part + 1) / num_parts;
      for (int64_t unit = count * part / num_parts; unit < end; ++unit) run(unit);
    };
    switch (phase) {
      case 0:
        return units(num_queries() * head_panels_, [&](int64_t unit) { PackQueries(unit); });
      case 1: {
        int64_t num_panels = 0;
        for (const Segment& segment : segments_) num_panels += segment.num_panels;
        return units(num_panels, [&](int64_t unit) { Logits(unit); });
      }
      case 2:
        return units(NumRows(), [&](int64_t unit) { Softmax(unit); });
      default: {
        const int64_t num_panels = output_stride_ / panels_.lanes;
        return Values(num_panels * part / num_parts * panels_.lanes,
                      std::min(dim_, num_panels * (part + 1) / num_parts * panels_.lanes));
      }
    }
  }

 private:
  // Rows of queries [query_begin, query_end), in slots from slot_begin on.
  struct Segment {
    int64_t query_begin;
    int64_t query_end;
    int64_t slot_begin;
    std::vector<const uint8_t*> rows;  // Null: nobody sees this slot.
    int64_t num_panels;
  };
  struct Slots {
    int64_t begin;
    int64_t end;
  };

  int64_t num_queries() const { return static_cast<int64_t>(queries_.size()); }
  int64_t NumRows() const { return num_queries() * num_heads_; }

  void AddSegments() {
    const ops::AttentionSequence& sequence = *queries_[0].sequence;
    first_slot_position_ = queries_[0].window_begin / 2 * 2;
    const auto add = [&](int64_t begin, int64_t end, int64_t slot, std::vector<const uint8_t*> rows) {
      const auto num_panels = (static_cast<int64_t>(rows.size()) + panels_.lanes - 1) / panels_.lanes;
      segments_.push_back({begin, end, slot, std::move(rows), num_panels});
    };
    std::vector<const uint8_t*> rows;
    if (first_slot_position_ < queries_[0].window_begin) rows.push_back(nullptr);
    for (int64_t p = queries_[0].window_begin; p <= queries_.back().position; ++p) {
      rows.push_back(At(sequence.window.data, sequence.window.dtype,
                        p % sequence.window.capacity * sequence.window.width));
    }
    window_slots_ = RoundUp(static_cast<int64_t>(rows.size()), std::max<int64_t>(2, panels_.lanes));
    add(0, num_queries(), 0, std::move(rows));
    const ops::PagedRows& entries = sequence.entries;
    const auto entry_row = [&](int64_t entry) {
      return At(entries.pages[static_cast<size_t>(entry / entries.rows_per_page)], entries.dtype,
                entry % entries.rows_per_page * entries.width);
    };
    // Queries that see a prefix of the entries share them; the others have lists of their own.
    for (int64_t i = 0; i < num_queries();) {
      const Query& query = queries_[static_cast<size_t>(i)];
      entry_slots_ = std::max(entry_slots_, RoundUp(query.num_entries, std::max<int64_t>(2, panels_.lanes)));
      rows.clear();
      if (!query.chosen.empty()) {
        for (const int32_t entry : query.chosen) rows.push_back(entry_row(entry));
        add(i, i + 1, window_slots_, std::move(rows));
        ++i;
        continue;
      }
      const int64_t begin = i;
      int64_t count = 0;
      for (; i < num_queries() && queries_[static_cast<size_t>(i)].chosen.empty(); ++i)
        count = std::max(count, queries_[static_cast<size_t>(i)].num_entries);
      entry_slots_ = std::max(entry_slots_, RoundUp(count, std::max<int64_t>(2, panels_.lanes)));
      for (int64_t entry = 0; entry < count; ++entry) rows.push_back(entry_row(entry));
      if (count > 0) add(begin, i, window_slots_, std::move(rows));
    }
  }

  // What query i sees of a segment, counted from its first slot.
  Slots Visible(const Segment& segment, int64_t i) const {
    const Query& query = queries_[static_cast<size_t>(i)];
    if (segment.slot_begin > 0) return {0, query.num_entries};
    return {query.window_begin - first_slot_position_, query.position + 1 - first_slot_position_};
  }

  int64_t HeadsOf(int64_t head_panel) const {
    return std::min(panels_.lanes, num_heads_ - head_panel * panels_.lanes);
  }
  float* LogitsOf(int64_t row) const { return scratch_.logits.floats() + row * stride_; }
  uint8_t* PackedQuery(int64_t unit) const {
    return scratch_.queries.data() + unit * panels_.PanelBytes(dim_);
  }

  void PackQueries(int64_t unit) const {
    const int64_t head = unit % head_panels_ * panels_.lanes;
    const int64_t row = queries_[static_cast<size_t>(unit / head_panels_)].token * num_heads_ + head;
    std::vector<const uint8_t*> rows;
    for (int64_t h = 0; h < HeadsOf(unit % head_panels_); ++h)
      rows.push_back(At(args_.q.data, args_.q.dtype, (row + h) * dim_));
    panels_.pack_lanes(rows.data(), static_cast<int64_t>(rows.size()), bf16_, dim_, PackedQuery(unit));
  }

  void Logits(int64_t panel) const {
    size_t s = 0;
    for (; panel >= segments_[s].num_panels; ++s) panel -= segments_[s].num_panels;
    const Segment& segment = segments_[s];
    const int64_t first = panel * panels_.lanes;
    const int64_t count = std::min(panels_.lanes, static_cast<int64_t>(segment.rows.size()) - first);
    uint8_t* const keys = ThisThread().keys.Get(panels_.PanelBytes(dim_));
    panels_.pack_lanes(segment.rows.data() + first, count, bf16_, dim_, keys);
    for (int64_t i = segment.query_begin; i < segment.query_end; ++i) {
      const Slots visible = Visible(segment, i);
      if (first + count <= visible.begin || first >= visible.end) continue;
      for (int64_t p = 0; p < head_panels_; ++p) {
        panels_.multiply(PackedQuery(i * head_panels_ + p), keys, 0, 1, dim_, HeadsOf(p), false,
                         LogitsOf(i * num_heads_ + p * panels_.lanes) + segment.slot_begin + first, stride_);
      }
    }
  }

  // The weights r(exp(l - M)) in place of the logits, 0 in the slots that share a step with the first and the last.
  void Softmax(int64_t row) {
    const int64_t i = row / num_heads_;
    const double scale = static_cast<double>(args_.softmax_scale);
    float low = std::numeric_limits<float>::infinity();
    float high = -low;
    ForEachVisible(i, [&](int64_t begin, int64_t end) {
      float smallest = 0;
      float largest = 0;
      kernels_.rows.range(LogitsOf(row) + begin, end - begin, &smallest, &largest);
      low = std::min(low, smallest);
      high = std::max(high, largest);
    });
    // A negative scale turns the order around.
    const double max = scale * static_cast<double>(scale < 0 ? low : high);
    double sum = std::exp(static_cast<double>(sink_[static_cast<size_t>(row % num_heads_)]) - max);
    ForEachVisible(i, [&](int64_t begin, int64_t end) {
      float* const weights = LogitsOf(row);
      sum += kernels_.rows.exponentials(weights + begin, end - begin, scale, max, bf16_, weights + begin);
      const int64_t from = begin / panels_.step * panels_.step;
      const int64_t to = RoundUp(end, panels_.step);
      std::fill(weights + from, weights + begin, 0.0F);
      std::fill(weights + end, weights + to, 0.0F);
      if (panels_.step == 2)
        kernels_.narrow_bf16(weights + from, to - from, scratch_.narrow.data() + 2 * (row * stride_ + from));
    });
    normalizers_[static_cast<size_t>(row)] = sum;
  }

  // Calls run(begin, end) with the slots of a row that query i sees: of the window, then of the entries.
  template <typename Call>
  void ForEachVisible(int64_t i, const Call& run) const {
    for (const Segment& segment : segments_) {
      if (i < segment.query_begin || i >= segment.query_end) continue;
      const Slots visible = Visible(segment, i);
      if (visible.begin < visible.end)
        run(segment.slot_begin + visible.begin, segment.slot_begin + visible.end);
    }
  }

  // Columns [begin, end) of the outputs.
  void Values(int64_t begin, int64_t end) {
    if (begin >= end) return;
    // Entries are taken so many at a time; a query's runs start with the first, so that no sum depends on it. The window's runs
    // start with each query's own first slot, so it is one block.
    constexpr int64_t kEntriesPerBlock = 2 * kPanelRun;
    for (const Segment& segment : segments_) {
      const auto num_slots = static_cast<int64_t>(segment.rows.size());
      const int64_t block = segment.slot_begin == 0 ? num_slots : kEntriesPerBlock;
      for (int64_t first = 0; first < num_slots; first += block)
        BlockValues(segment, first, std::min(num_slots, first + block), begin, end);
    }
    for (int64_t row = 0; row < NumRows(); ++row) {
      float* const o = scratch_.outputs.floats() + row * output_stride_ + begin;
      kernels_.rows.scale(o, nullptr, end - begin, 1.0 / normalizers_[static_cast<size_t>(row)], o);
      const int64_t q_row =
          queries_[static_cast<size_t>(row / num_heads_)].token * num_heads_ + row % num_heads_;
      StoreFloats(kernels_, o, end - begin,
                  args_.o.as<uint8_t>() + (q_row * dim_ + begin) * ElementBytes(args_.o.dtype),
                  args_.o.dtype);
    }
  }

  // Adds slots [first, last) of a segment to columns [begin, end).
  void BlockValues(const Segment& segment, int64_t first, int64_t last, int64_t begin, int64_t end) const {
    PartScratch& memory = ThisThread();
    const int64_t num_panels = (end - begin + panels_.lanes - 1) / panels_.lanes;
    const int64_t panel_bytes = panels_.PanelBytes(last - first);
    uint8_t* const values = memory.values.Get(num_panels * panel_bytes);
    panels_.pack_columns(segment.rows.data() + first, last - first, bf16_, begin, end - begin, values,
                         panel_bytes);
    uint8_t* const packed_weights = memory.weights.Get(panels_.PanelBytes(last - first + panels_.step));
    std::vector<const uint8_t*> rows(static_cast<size_t>(panels_.lanes));
    for (int64_t i = segment.query_begin; i < segment.query_end; ++i) {
      const Slots visible = Visible(segment, i);
      const int64_t from = std::max(visible.begin, first) / panels_.step * panels_.step;
      const int64_t to = RoundUp(std::min(visible.end, last), panels_.step);
      if (from >= to) continue;
      for (int64_t p = 0; p < head_panels_; ++p) {
        const int64_t row = i * num_heads_ + p * panels_.lanes;
        for (int64_t h = 0; h < HeadsOf(p); ++h) {
          const int64_t at = (row + h) * stride_ + segment.slot_begin + from;
          rows[static_cast<size_t>(h)] =
              panels_.step == 2 ? scratch_.narrow.data() + 2 * at
                                : reinterpret_cast<const uint8_t*>(scratch_.logits.floats() + at);
        }
        panels_.pack_lanes(rows.data(), HeadsOf(p), panels_.step == 2, to - from, packed_weights);
        panels_.multiply(packed_weights, values + (from - first) / panels_.step * panels_.StepBytes(),
                         panel_bytes, num_panels, to - from, HeadsOf(p), segment.slot_begin > 0,
                         scratch_.outputs.floats() + row * output_stride_ + begin, output_stride_);
      }
    }
  }

  const ops::AttentionArgs& args_;
  const Kernels& kernels_;
  const PanelKernels& panels_;
  const std::vector<float>& sink_;
  std::span<const Query> queries_;
  GroupScratch& scratch_;
  bool bf16_;
  int64_t num_heads_;
  int64_t dim_;
  int64_t head_panels_;
  int64_t first_slot_position_ = 0;
  int64_t window_slots_ = 0;
  int64_t entry_slots_ = 0;
  int64_t stride_ = 0;
  int64_t output_stride_ = 0;
  std::vector<Segment> segments_;
  std::vector<double> normalizers_;
};

// Neighbouring queries of a sequence, as many as share a row to advantage and keep their logits in the cache.
std::vector<std::span<const Query>> Groups(std::span<const Query> queries, int64_t num_heads,
                                           int64_t window_size) {
  constexpr int64_t kMaxRows = 256;
  constexpr int64_t kMaxLogits = 1 << 17;
  std::vector<std::span<const Query>> groups;
  for (size_t begin = 0; begin < queries.size();) {
    size_t end = begin;
    int64_t num_entries = 0;
    for (; end < queries.size() && queries[end].sequence == queries[begin].sequence; ++end) {
      num_entries = std::max(num_entries, queries[end].num_entries);
      const int64_t rows = static_cast<int64_t>(end - begin + 1) * num_heads;
      if (end > begin && (rows > kMaxRows || rows * (window_size + num_entries) > kMaxLogits)) break;
    }
    groups.push_back(queries.subspan(begin, end - begin));
    begin = end;
  }
  return groups;
}

}  // namespace

Status Attention(ops::OpContext& context, const ops::AttentionArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_heads = args.q.shape[1];
  if (args.q.shape[0] == 0 || num_heads == 0 || args.q.shape[2] == 0) return {};
  const std::vector<float> sink = LoadAll(KernelsOf(context), args.sink);
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<Query> queries, Queries(context, args));
  const std::vector<std::span<const Query>> groups = Groups(queries, num_heads, args.window_size);
  const auto num_groups = static_cast<int64_t>(groups.size());

  // Many groups: each on a thread of its own. Few: every phase of them is shared by all threads.
  const int64_t num_threads = context.threads().num_threads();
  const auto run_alone = [&](std::span<const Query> some) {
    thread_local GroupScratch scratch;
    const auto run = [&](Group& group) {
      for (int phase = 0; phase < Group::kNumPhases; ++phase) group.Run(phase, 0, 1);
    };
    Group group(context, args, sink, some, scratch);
    if (group.Separable()) return run(group);
    for (size_t i = 0; i < some.size(); ++i) {
      Group single(context, args, sink, some.subspan(i, 1), scratch);
      run(single);
    }
  };
  if (num_threads == 1 || num_groups >= 2 * num_threads) {
    context.threads().ParallelFor(num_groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run_alone(groups[static_cast<size_t>(i)]);
    });
    return {};
  }
  thread_local std::vector<GroupScratch> scratch;
  if (scratch.size() < queries.size()) scratch.resize(queries.size());
  std::vector<Group> shared;
  for (const std::span<const Query> some : groups) {
    shared.emplace_back(context, args, sink, some, scratch[shared.size()]);
    if (shared.back().Separable()) continue;
    shared.pop_back();
    for (size_t i = 0; i < some.size(); ++i)
      shared.emplace_back(context, args, sink, some.subspan(i, 1), scratch[shared.size()]);
  }
  for (int phase = 0; phase < Group::kNumPhases; ++phase) {
    context.threads().ParallelFor(
        static_cast<int64_t>(shared.size()) * num_threads, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            shared[static_cast<size_t>(i / num_threads)].Run(phase, i % num_threads, num_threads);
          }
        });
  }
  return {};
}

}  // namespace dsv4::backend::cpu
