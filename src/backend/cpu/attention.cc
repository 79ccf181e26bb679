// Attention as two GEMMs of packed panels. The queries of a group meet the rows they see for the logits; the
// softmax weights meet the same rows for the values. All heads share K = V, and neighbouring queries of a
// sequence see mostly the same rows. So a row is packed once for all of them. Rows that one query alone sees
// are multiplied as they lie.
//
// A group lays the rows out in slots: the window's positions from an even one on, then the entries. With bf16
// steps a pair of slots is therefore the same for every query that sees it, whatever the group. A query's
// sums run over its own slots only. A neighbour's slot in a pair at the border has weight 0, which adds
// nothing. (Unless it holds a NaN or an infinity; such queries are taken one by one.)
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "backend/cpu/attention_queries.h"
#include "backend/cpu/cached_rows.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/values.h"
#include "backend/cpu/widened_rows.h"
#include "base/per_thread.h"

namespace dsv4::backend::cpu {

namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Memory of the thread that runs a part.
struct PartScratch {
  Scratch keys;
  Scratch values;
  Scratch weights;
};
PartScratch& ThisThread() { return PerThread<PartScratch>(); }

// Scratch that a group keeps between its phases.
struct GroupScratch {
  Scratch rows;     // Cache rows, widened where they are stored as codes.
  Scratch queries;  // Packed.
  Scratch logits;   // [query, head, slot], then the weights.
  Scratch narrow;   // The weights as bf16.
  Scratch outputs;  // [query, head, column] before the division.
  Scratch zeros;    // A row.
};

// Result of the sums: divided and stored, the sink included, or left as a part.
struct Outcome {
  std::vector<float> sink;  // Sinks of the heads; empty for a part.
  TensorView o;
  TensorView part;

  bool is_part() const { return !part.is_null(); }
};

// Neighbouring queries of one sequence, in phases of independent units.
class Group {
 public:
  // `widened`: of the sequence; may be empty.
  Group(ops::OpContext& context, const AttentionProblem& problem, const Outcome& outcome,
        std::span<const Query> queries, const WidenedRows& widened, GroupScratch& scratch)
      : problem_(problem),
        kernels_(KernelsOf(context)),
        panels_(PanelsFor(kernels_, problem.q.dtype)),
        outcome_(outcome),
        queries_(queries),
        widened_(widened),
        scratch_(scratch),
        bf16_(problem.q.dtype == DType::kBF16),
        num_heads_(problem.q.shape[1]),
        dim_(problem.q.shape[2]),
        head_panels_((num_heads_ + panels_.lanes - 1) / panels_.lanes) {
    AddSegments();
    PlaceWidenedRows();
    stride_ = RoundUp(window_slots_ + entry_slots_, panels_.lanes);
    const int64_t num_rows = NumRows();
    scratch_.queries.Get(num_queries() * head_panels_ * panels_.PanelBytes(dim_));
    scratch_.logits.Floats(num_rows * stride_);
    if (panels_.step == 2) scratch_.narrow.Get(2 * num_rows * stride_);
    output_stride_ = RoundUp(dim_, panels_.lanes);
    scratch_.outputs.Floats(num_rows * output_stride_);
    std::fill_n(scratch_.zeros.Get(RowBytes()), RowBytes(), uint8_t{0});
    normalizers_.resize(static_cast<size_t>(num_rows));
  }

  static const PanelKernels& PanelsFor(const Kernels& kernels, DType dtype) {
    return dtype == DType::kBF16 && kernels.bf16_panels.lanes > 0 ? kernels.bf16_panels
                                                                  : kernels.float_panels;
  }

  // Whether queries may share the steps at the borders of what they see. Known after phase 0.
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
        units(static_cast<int64_t>(coded_rows_.size()), [&](int64_t unit) { Widen(unit); });
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
  // Rows of queries [query_begin, query_end), in slots from slot_begin on: of the window, or entries.
  struct Segment {
    bool entries;
    int64_t query_begin;
    int64_t query_end;
    int64_t slot_begin;
    std::vector<const uint8_t*> rows;  // Null: no query sees this slot.
    int64_t num_panels;
  };
  struct Slots {
    int64_t begin;
    int64_t end;
  };

  int64_t num_queries() const { return static_cast<int64_t>(queries_.size()); }
  bool has_window() const { return problem_.window_size > 0; }
  int64_t NumRows() const { return num_queries() * num_heads_; }

  // A row that is stored as codes and that the group widens, and the format of those.
  struct CodedRow {
    const uint8_t* row;
    const CacheFormat* format;
  };

  int64_t RowBytes() const { return dim_ * ElementBytes(problem_.q.dtype); }
  const CacheFormat& FormatOf(bool entries) const {
    const ops::AttentionSequence& sequence = *queries_[0].sequence;
    return entries ? sequence.entries.format : sequence.window.format;
  }
  bool WidensItself(bool entries) const { return widened_.empty() && FormatOf(entries).packed(); }

  void Add(bool entries, int64_t begin, int64_t end, std::vector<const uint8_t*> rows) {
    const CacheFormat& format = FormatOf(entries);
    if (WidensItself(entries)) {
      for (const uint8_t* const row : rows) {
        if (row != nullptr) coded_rows_.push_back({row, &format});
      }
    }
    const auto num_panels = (static_cast<int64_t>(rows.size()) + panels_.lanes - 1) / panels_.lanes;
    segments_.push_back({entries, begin, end, entries ? window_slots_ : 0, std::move(rows), num_panels});
  }

  // From here on segments name the indices of widened rows.
  void PlaceWidenedRows() {
    if (coded_rows_.empty()) return;
    const uint8_t* next = scratch_.rows.Get(static_cast<int64_t>(coded_rows_.size()) * RowBytes());
    for (Segment& segment : segments_) {
      if (!WidensItself(segment.entries)) continue;
      for (const uint8_t*& row : segment.rows) {
        if (row == nullptr) continue;
        row = next;
        next += RowBytes();
      }
    }
  }

  void Widen(int64_t i) const {
    // Rows that an indexer chose lie anywhere, so no hardware fetches the next one.
    constexpr int64_t kAhead = 4;
    if (i + kAhead < static_cast<int64_t>(coded_rows_.size())) {
      const CodedRow& ahead = coded_rows_[static_cast<size_t>(i + kAhead)];
      Prefetch(ahead.row, ahead.format->RowBytes(dim_));
    }
    const CodedRow& coded = coded_rows_[static_cast<size_t>(i)];
    WidenRow(kernels_, *coded.format, dim_, coded.row, scratch_.rows.data() + i * RowBytes());
  }

  void AddWindow() {
    const ops::RingRows& window = queries_[0].sequence->window;
    first_slot_position_ = queries_[0].window_begin / 2 * 2;
    std::vector<const uint8_t*> rows;
    if (first_slot_position_ < queries_[0].window_begin) rows.push_back(nullptr);
    for (int64_t p = queries_[0].window_begin; p < queries_.back().window_end; ++p)
      rows.push_back(widened_.empty() ? RingRow(window, p) : widened_.Window(p));
    window_slots_ = RoundUp(static_cast<int64_t>(rows.size()), std::max<int64_t>(2, panels_.lanes));
    Add(false, 0, num_queries(), std::move(rows));
  }

  void AddSegments() {
    if (has_window()) AddWindow();
    std::vector<const uint8_t*> rows;
    const ops::PagedRows& entries = queries_[0].sequence->entries;
    const auto entry_row = [&](int64_t entry) {
      return widened_.empty() ? PagedRow(entries, entry) : widened_.Entry(entry);
    };
    // Queries that see a prefix of the entries share them; the others have lists of their own.
    for (int64_t i = 0; i < num_queries();) {
      const Query& query = queries_[static_cast<size_t>(i)];
      entry_slots_ = std::max(entry_slots_, RoundUp(query.num_entries, std::max<int64_t>(2, panels_.lanes)));
      rows.clear();
      if (!query.chosen.empty()) {
        for (const int32_t entry : query.chosen) rows.push_back(entry_row(entry));
        Add(true, i, i + 1, std::move(rows));
        ++i;
        continue;
      }
      const int64_t begin = i;
      int64_t count = 0;
      for (; i < num_queries() && queries_[static_cast<size_t>(i)].chosen.empty(); ++i)
        count = std::max(count, queries_[static_cast<size_t>(i)].num_entries);
      entry_slots_ = std::max(entry_slots_, RoundUp(count, std::max<int64_t>(2, panels_.lanes)));
      for (int64_t entry = 0; entry < count; ++entry) rows.push_back(entry_row(entry));
      if (count > 0) Add(true, begin, i, std::move(rows));
    }
  }

  // Slots of a segment that query i sees, counted from its first.
  Slots Visible(const Segment& segment, int64_t i) const {
    const Query& query = queries_[static_cast<size_t>(i)];
    if (segment.entries) return {0, query.num_entries};
    return {query.window_begin - first_slot_position_, query.window_end - first_slot_position_};
  }

  // Whether a segment's rows are multiplied without being packed.
  bool AsTheyLie(const Segment& segment) const {
    return panels_.multiply_rows != nullptr && segment.query_end - segment.query_begin == 1 && dim_ % 2 == 0;
  }
  // Slots [first, last) of a segment as they lie.
  std::vector<const uint8_t*> RowsOf(const Segment& segment, int64_t first, int64_t last) const {
    std::vector<const uint8_t*> rows(static_cast<size_t>(last - first), scratch_.zeros.data());
    for (int64_t slot = first; slot < std::min(last, static_cast<int64_t>(segment.rows.size())); ++slot) {
      const uint8_t* const row = segment.rows[static_cast<size_t>(slot)];
      if (row != nullptr) rows[static_cast<size_t>(slot - first)] = row;
    }
    return rows;
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
      rows.push_back(At(problem_.q.data, problem_.q.dtype, (row + h) * dim_));
    panels_.pack_lanes(rows.data(), static_cast<int64_t>(rows.size()), bf16_, dim_, PackedQuery(unit));
  }

  void Logits(int64_t panel) const {
    size_t s = 0;
    for (; panel >= segments_[s].num_panels; ++s) panel -= segments_[s].num_panels;
    const Segment& segment = segments_[s];
    const int64_t first = panel * panels_.lanes;
    const int64_t count = std::min(panels_.lanes, static_cast<int64_t>(segment.rows.size()) - first);
    if (AsTheyLie(segment)) return LogitsAsTheyLie(segment, first, first + count);
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

  void LogitsAsTheyLie(const Segment& segment, int64_t first, int64_t last) const {
    const int64_t i = segment.query_begin;
    const std::vector<const uint8_t*> rows = RowsOf(segment, first, last);
    for (int64_t slot = first; slot < last; slot += kRowsAsTheyLie) {
      panels_.multiply_rows(rows.data() + (slot - first), std::min(kRowsAsTheyLie, last - slot),
                            PackedQuery(i * head_panels_), panels_.PanelBytes(dim_), num_heads_, dim_,
                            LogitsOf(i * num_heads_) + segment.slot_begin + slot, stride_);
    }
  }

  // The weights r(exp(l - M)) instead of the logits, 0 in the slots that share a step with the first and the
  // last.
  void Softmax(int64_t row) {
    const int64_t i = row / num_heads_;
    const double scale = static_cast<double>(problem_.softmax_scale);
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
    double sum = 0;
    if (!outcome_.is_part()) {
      sum = std::exp(static_cast<double>(outcome_.sink[static_cast<size_t>(row % num_heads_)]) - max);
    }
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
    if (outcome_.is_part()) {
      float* const part = PartOf(row);
      part[dim_] = static_cast<float>(max);
      part[dim_ + 1] = static_cast<float>(sum);
    }
  }

  // The row of queries and heads as the operands count it.
  int64_t OperandRow(int64_t row) const {
    return queries_[static_cast<size_t>(row / num_heads_)].token * num_heads_ + row % num_heads_;
  }
  float* PartOf(int64_t row) const { return outcome_.part.as<float>() + OperandRow(row) * (dim_ + 2); }

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
    // Entries are taken so many at a time; a query's runs start with the first, so that no sum depends on it.
    // The window's runs start with each query's own first slot, so it is one block.
    constexpr int64_t kEntriesPerBlock = 2 * kPanelRun;
    if (!has_window()) {  // Values of the window come first.
      for (int64_t row = 0; row < NumRows(); ++row)
        std::fill_n(scratch_.outputs.floats() + row * output_stride_ + begin, end - begin, 0.0F);
    }
    for (const Segment& segment : segments_) {
      const auto num_slots = static_cast<int64_t>(segment.rows.size());
      const int64_t block = segment.entries ? kEntriesPerBlock : num_slots;
      for (int64_t first = 0; first < num_slots; first += block)
        BlockValues(segment, first, std::min(num_slots, first + block), begin, end);
    }
    for (int64_t row = 0; row < NumRows(); ++row) {
      float* const o = scratch_.outputs.floats() + row * output_stride_ + begin;
      if (outcome_.is_part()) {
        std::copy_n(o, end - begin, PartOf(row) + begin);
        continue;
      }
      kernels_.rows.scale(o, nullptr, end - begin, 1.0 / normalizers_[static_cast<size_t>(row)], o);
      StoreFloats(
          kernels_, o, end - begin,
          outcome_.o.as<uint8_t>() + (OperandRow(row) * dim_ + begin) * ElementBytes(outcome_.o.dtype),
          outcome_.o.dtype);
    }
  }

  // Adds slots [first, last) of a segment to columns [begin, end).
  void BlockValues(const Segment& segment, int64_t first, int64_t last, int64_t begin, int64_t end) const {
    if (AsTheyLie(segment)) begin += BlockValuesAsTheyLie(segment, first, last, begin, end);
    if (begin == end) return;
    PartScratch& memory = ThisThread();
    const int64_t num_panels = (end - begin + panels_.lanes - 1) / panels_.lanes;
    // A line more, so that the panels' first lines, which are written one after the other, are of different
    // sets of the cache.
    const int64_t panel_bytes = panels_.PanelBytes(last - first) + panels_.StepBytes();
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
                         panel_bytes, num_panels, to - from, HeadsOf(p), segment.entries,
                         scratch_.outputs.floats() + row * output_stride_ + begin, output_stride_);
      }
    }
  }

  // The same; returns how many columns it did.
  int64_t BlockValuesAsTheyLie(const Segment& segment, int64_t first, int64_t last, int64_t begin,
                               int64_t end) const {
    constexpr int64_t kColumns = 32;  // At once.
    const int64_t i = segment.query_begin;
    const int64_t num_columns = (end - begin) / kColumns * kColumns;
    const Slots visible = Visible(segment, i);
    const int64_t from = std::max(visible.begin, first) / panels_.step * panels_.step;
    const int64_t to = RoundUp(std::min(visible.end, last), panels_.step);
    if (from >= to) return end - begin;
    const int64_t row = i * num_heads_;
    panels_.multiply_columns(scratch_.narrow.data() + 2 * (row * stride_ + segment.slot_begin + from),
                             2 * stride_, num_heads_, RowsOf(segment, from, to).data(), to - from, begin,
                             num_columns, segment.entries,
                             scratch_.outputs.floats() + row * output_stride_ + begin, output_stride_);
    return num_columns;
  }

  const AttentionProblem& problem_;
  const Kernels& kernels_;
  const PanelKernels& panels_;
  const Outcome& outcome_;
  std::span<const Query> queries_;
  const WidenedRows& widened_;
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
  std::vector<CodedRow> coded_rows_;  // In the order of segments and their rows.
  std::vector<double> normalizers_;
};

// Some queries of a sequence, and what was widened for all of the sequence.
struct GroupQueries {
  std::span<const Query> queries;
  const WidenedRows* widened;
  GroupQueries One(size_t i) const { return {queries.subspan(i, 1), widened}; }
};

// Rows of every sequence; `all` keeps them. Rows lie in `scratch`.
std::vector<const WidenedRows*> WidenForSequences(ops::OpContext& context, const AttentionProblem& problem,
                                                  std::span<const Query> queries,
                                                  std::deque<WidenedRows>& all,
                                                  std::deque<Scratch>& scratch) {
  std::vector<const WidenedRows*> of_query;
  const Kernels& kernels = KernelsOf(context);
  for (size_t begin = 0; begin < queries.size();) {
    size_t end = begin;
    while (end < queries.size() && queries[end].sequence == queries[begin].sequence) ++end;
    if (scratch.size() <= all.size()) scratch.resize(all.size() + 1);
    const WidenedRows& widened =
        all.emplace_back(WidenedRows::Of(problem, queries.subspan(begin, end - begin), scratch[all.size()]));
    constexpr int64_t kRowsOfTask = 16;
    context.threads().ParallelFor(widened.num_rows(), kRowsOfTask, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) widened.Widen(kernels, i);
    });
    of_query.resize(end, &widened);
    begin = end;
  }
  return of_query;
}

// Memory of a thread that runs an op, or groups of one.
struct RunScratch {
  std::deque<Scratch> widened;
  GroupScratch alone;
  std::vector<GroupScratch> shared;  // For groups, and for queries that must be taken one by one.
};

// Many groups: each on a thread of its own. Few: every phase of them is shared by all threads.
Status Run(ops::OpContext& context, const AttentionProblem& problem, const Outcome& outcome) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<Query> queries, AttentionQueries(context, problem));
  std::deque<WidenedRows> widened;
  RunScratch& own = PerThread<RunScratch>();
  const std::vector<const WidenedRows*> widened_of =
      WidenForSequences(context, problem, queries, widened, own.widened);
  std::vector<GroupQueries> groups;
  for (const std::span<const Query> some :
       NeighbouringQueries(queries, problem.q.shape[1], problem.window_size))
    groups.push_back({some, widened_of[static_cast<size_t>(some.data() - queries.data())]});
  const auto num_groups = static_cast<int64_t>(groups.size());

  const int64_t num_threads = context.threads().num_threads();
  const auto run_alone = [&](const GroupQueries& some) {
    GroupScratch& scratch = PerThread<RunScratch>().alone;
    const auto finish = [&](Group& group) {
      for (int phase = 1; phase < Group::kNumPhases; ++phase) group.Run(phase, 0, 1);
    };
    Group group(context, problem, outcome, some.queries, *some.widened, scratch);
    group.Run(0, 0, 1);
    if (group.Separable()) return finish(group);
    for (size_t i = 0; i < some.queries.size(); ++i) {
      Group single(context, problem, outcome, some.One(i).queries, *some.widened, scratch);
      single.Run(0, 0, 1);
      finish(single);
    }
  };
  if (num_threads == 1 || num_groups >= 2 * num_threads) {
    context.threads().ParallelFor(num_groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run_alone(groups[static_cast<size_t>(i)]);
    });
    return {};
  }
  std::vector<GroupScratch>& scratch = own.shared;
  if (scratch.size() < groups.size() + queries.size()) scratch.resize(groups.size() + queries.size());
  const auto run_shared = [&](int phase, std::span<Group* const> shared) {
    context.threads().ParallelFor(
        static_cast<int64_t>(shared.size()) * num_threads, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            shared[static_cast<size_t>(i / num_threads)]->Run(phase, i % num_threads, num_threads);
          }
        });
  };
  std::deque<Group> made;
  const auto make = [&](const GroupQueries& some) {
    return &made.emplace_back(context, problem, outcome, some.queries, *some.widened, scratch[made.size()]);
  };
  std::vector<Group*> whole;
  for (const GroupQueries& some : groups) whole.push_back(make(some));
  run_shared(0, whole);
  std::vector<Group*> shared;
  std::vector<Group*> singles;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (whole[g]->Separable()) {
      shared.push_back(whole[g]);
      continue;
    }
    for (size_t i = 0; i < groups[g].queries.size(); ++i) singles.push_back(make(groups[g].One(i)));
  }
  if (!singles.empty()) run_shared(0, singles);
  shared.insert(shared.end(), singles.begin(), singles.end());
  for (int phase = 1; phase < Group::kNumPhases; ++phase) run_shared(phase, shared);
  return {};
}

}  // namespace

Status Attention(ops::OpContext& context, const ops::AttentionArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.o.num_elements() == 0) return {};
  const AttentionProblem problem = {.op = "attention",
                                    .q = args.q,
                                    .selected = args.selected,
                                    .softmax_scale = args.softmax_scale,
                                    .window_size = args.window_size,
                                    .ratio = args.ratio,
                                    .shard = {},
                                    .sequences = args.sequences};
  return Run(context, problem, {.sink = LoadAll(KernelsOf(context), args.sink), .o = args.o, .part = {}});
}

Status AttentionPart(ops::OpContext& context, const ops::AttentionPartArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.part.num_elements() == 0) return {};
  const AttentionProblem problem = {.op = "attention_part",
                                    .q = args.q,
                                    .selected = args.selected,
                                    .softmax_scale = args.softmax_scale,
                                    .window_size = args.window_size,
                                    .ratio = args.ratio,
                                    .shard = args.shard,
                                    .sequences = args.sequences};
  return Run(context, problem, {.sink = {}, .o = {}, .part = args.part});
}

}  // namespace dsv4::backend::cpu
