// Check `visible`: keys that each query attends to, measured, against the window and entry rules.
#include "diag/checks/visible_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "diag/checks/attention_probe.h"
#include "diag/recording.h"
#include "diag/report/visible_map.h"

namespace dsv4::diag {
namespace {

// A complaint about one query of one layer.
struct Complaint {
  Location location;
  std::string text;
};

// Record of one layer's ops.
struct LayerView {
  std::vector<SeenKeys> seen;  // By query.
  std::vector<std::vector<int64_t>>
      allowed;                    // By query: the entries that the indexer left; empty without an indexer.
  double sink_weight = 0;         // exp(sink) of head 0.
  const void* entries = nullptr;  // First pages of the entries that its queries read,
  const void* keys = nullptr;     // and of the keys that it scores.
  std::vector<std::vector<int64_t>> blocks;  // By query: its candidate blocks, where it makes any.
};

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> values(static_cast<size_t>(std::max<int64_t>(0, end - begin)));
  std::iota(values.begin(), values.end(), begin);
  return values;
}

// "0 3..130 135", "none".
std::string Show(const std::vector<int64_t>& values) {
  std::string text;
  for (size_t begin = 0; begin < values.size();) {
    size_t end = begin + 1;
    while (end < values.size() && values[end] == values[end - 1] + 1) ++end;
    if (!text.empty()) text += " ";
    text += end - begin < 3 ? std::to_string(values[begin])
                            : fmt::format("{}..{}", values[begin], values[end - 1]);
    begin = end - begin < 3 ? begin + 1 : end;
  }
  return text.empty() ? "none" : text;
}

// The first difference between what was seen and what the rule says; empty when there is none.
std::string Differences(std::string_view what, const std::vector<int64_t>& seen,
                        const std::vector<int64_t>& want) {
  std::vector<int64_t> missing;
  std::vector<int64_t> extra;
  std::set_difference(want.begin(), want.end(), seen.begin(), seen.end(), std::back_inserter(missing));
  std::set_difference(seen.begin(), seen.end(), want.begin(), want.end(), std::back_inserter(extra));
  std::string text;
  if (!missing.empty()) text += fmt::format("does not see {} {}", what, Show(missing));
  if (!extra.empty())
    text += fmt::format("{}sees {} {}, which it must not", text.empty() ? "" : " and ", what, Show(extra));
  return text;
}

class Watcher {
 public:
  Watcher(const Subject& subject, const VisibleOptions& options) : subject_(subject), options_(options) {
    views_.resize(static_cast<size_t>(subject.model.num_layers()));
  }

  OpHooks Hooks() {
    OpHooks hooks;
    hooks.indexer_select = [this](const auto& inner, const ops::IndexerSelectArgs& args) -> Status {
      DSV4_RETURN_IF_ERROR(inner(args));
      return WantsChoice() ? WatchIndexer(args) : Status();
    };
    hooks.attention = [this](const auto& inner, const ops::AttentionArgs& args) -> Status {
      DSV4_RETURN_IF_ERROR(inner(args));
      const Status status = Wanted() ? WatchAttention(inner, args) : Status();
      ++layer_;  // Every layer calls attention once, behind its indexer.
      return status;
    };
    return hooks;
  }

  const std::vector<LayerView>& views() const { return views_; }
  // In graph order.
  const std::vector<Complaint>& complaints() const { return complaints_; }

  // Keys that were seen beside the rule, of the layers that were watched. The first query has position 0.
  std::vector<LayerKeys> Keys() const {
    std::vector<LayerKeys> layers;
    for (size_t i = 0; i < views_.size(); ++i) {
      if (views_[i].seen.empty()) continue;
      const model::LayerPlan& layer = config().layers[i];
      LayerKeys keys{.layer = static_cast<int>(i), .kind = std::string(model::AttentionName(layer))};
      for (size_t t = 0; t < views_[i].seen.size(); ++t) {
        const auto position = static_cast<int64_t>(t);
        keys.queries.push_back({.position = position,
                                .window = views_[i].seen[t].window,
                                .window_rule = WindowRule(position),
                                .entries = views_[i].seen[t].entries,
                                .entries_rule = EntriesRule(i, t, position),
                                .num_visible_entries = layer.VisibleEntries(position)});
      }
      layers.push_back(std::move(keys));
    }
    return layers;
  }

 private:
  // An entry's score as computed here, and how far off another correct computation may be.
  struct Score {
    double value = 0;
    double slack = 0;
  };

  static int64_t candidates_room(const ops::IndexerSelectArgs& args) {
    return args.best.is_null() ? args.within.shape[1] : args.best.shape[1];
  }
  // A query's candidate blocks, ascending.
  static std::vector<int64_t> BlocksOf(const std::vector<float>& candidates, int64_t t, int64_t num_tokens) {
    const auto room = std::ssize(candidates) / std::max<int64_t>(1, num_tokens);
    std::vector<int64_t> blocks;
    for (int64_t i = 0; i < room; ++i) {
      const auto block = static_cast<int64_t>(candidates[static_cast<size_t>(t * room + i)]);
      if (block >= 0) blocks.push_back(block);
    }
    std::ranges::sort(blocks);
    return blocks;
  }

  std::vector<int64_t> WindowRule(int64_t position) const {
    return Range(std::max<int64_t>(0, position - config().sliding_window + 1), position + 1);
  }
  std::vector<int64_t> EntriesRule(size_t layer, size_t t, int64_t position) const {
    const model::LayerPlan& plan = config().layers[layer];
    return plan.reads_selection() ? views_[static_cast<size_t>(plan.selection)].allowed[t]
                                  : Range(0, plan.VisibleEntries(position));
  }

  bool Wanted() const { return !options_.layer || *options_.layer == layer_; }
  // Whether this layer's choice is that of a layer that is watched.
  bool WantsChoice() const {
    return !options_.layer || config().layers[static_cast<size_t>(*options_.layer)].selection == layer_;
  }
  LayerView& view() { return views_[static_cast<size_t>(layer_)]; }
  const model::ModelConfig& config() const { return subject_.model.config(); }

  void Complain(std::string tensor, std::string op, int64_t position, std::string text) {
    complaints_.push_back({Location{layer_, std::move(tensor), std::move(op), position}, std::move(text)});
  }

  // Rows of another layer than the plan's owner: `mine` and `owners` are where they lie.
  void CheckOwner(std::string_view what, const void* mine, int owner, const void* owners,
                  std::string_view tensor, std::string_view op) {
    if (owners == nullptr || mine == owners) return;
    Complain(std::string(tensor), std::string(op), 0,
             fmt::format("reads {} that are not those of layer {}", what, owner));
  }

  static const void* FirstPage(const PagedRows& rows) { return rows.pages.empty() ? nullptr : rows.pages[0]; }

  // The blocks of a query: the newest visible one, and the best of the others by their best entry.
  std::string BlocksComplaint(const std::vector<int64_t>& blocks, const std::vector<Score>& scores,
                              int64_t block_size, int64_t most) const {
    std::vector<Score> best;
    for (size_t j = 0; j < scores.size(); ++j) {
      const size_t block = j / static_cast<size_t>(block_size);
      if (block == best.size()) best.push_back(scores[j]);
      if (scores[j].value > best[block].value) best[block] = scores[j];
    }
    if (best.empty()) return blocks.empty() ? "" : "has candidate blocks and sees no entry";
    const auto newest = static_cast<int64_t>(best.size()) - 1;
    if (std::ranges::find(blocks, newest) == blocks.end())
      return fmt::format("the newest block {} is no candidate", newest);
    best.pop_back();
    std::vector<int64_t> others = blocks;
    std::erase(others, newest);
    const std::string text = SelectionComplaint(others, best, most - 1);
    return text.empty() ? text : "candidate blocks: " + text;
  }

  Status WatchIndexer(const ops::IndexerSelectArgs& args) {
    ops::OpContext& context = subject_.context();
    const model::LayerPlan& plan = config().layers[static_cast<size_t>(layer_)];
    view().keys = FirstPage(args.sequences[0].keys);
    CheckOwner("indexer keys", view().keys, plan.keys, views_[static_cast<size_t>(plan.keys)].keys,
               "attn.indexer.selected", "indexer_select");
    std::vector<float> candidates;
    if (!args.best.is_null() || !args.within.is_null()) {
      DSV4_ASSIGN_OR_RETURN_STATUS(candidates,
                                   ToHostFloats(context, args.best.is_null() ? args.within : args.best));
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> selected, ToHostFloats(context, args.selected));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> q, ToHostFloats(context, args.q));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> weights, ToHostFloats(context, args.weights));
    const int64_t heads = args.q.shape[1];
    const int64_t width = args.q.shape[2];
    const int64_t top_k = args.selected.shape[1];
    const int64_t num_tokens = args.q.shape[0];
    const ops::IndexerSequence& sequence = args.sequences[0];
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const std::vector<float> keys,
        ReadPagedRows(context, sequence.keys, (sequence.first_position + num_tokens) / args.ratio,
                      args.q.device));
    // Change that rounding the dot products, their weighted relu and the sum may change
    // (ops/indexer_select.h).
    const double unit = args.q.dtype == DType::kBF16 ? 0x1p-7 : 0x1p-18;
    bool complained = false;
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int64_t position = sequence.first_position + t;
      const int64_t visible = (position + 1) / args.ratio;
      std::vector<int64_t> chosen;
      for (int64_t i = 0; i < top_k; ++i) {
        const auto entry = static_cast<int64_t>(selected[static_cast<size_t>(t * top_k + i)]);
        if (entry >= 0) chosen.push_back(entry);
      }
      std::sort(chosen.begin(), chosen.end());
      view().allowed.push_back(chosen);
      const std::vector<int64_t> blocks = BlocksOf(candidates, t, num_tokens);
      if (!args.best.is_null()) view().blocks.push_back(blocks);
      if (complained) continue;
      std::vector<Score> scores(static_cast<size_t>(visible));
      for (int64_t j = 0; j < visible; ++j) {
        for (int64_t h = 0; h < heads; ++h) {
          const float* query = q.data() + (t * heads + h) * width;
          const double dot = std::inner_product(query, query + width, keys.data() + j * width, 0.0);
          const double term = weights[static_cast<size_t>(t * heads + h)] * std::max(dot, 0.0);
          scores[static_cast<size_t>(j)].value += term;
          scores[static_cast<size_t>(j)].slack += unit * std::abs(term);
        }
      }
      std::string text;
      if (!args.best.is_null()) {
        text = BlocksComplaint(blocks, scores, args.block_size, candidates_room(args));
      } else if (!args.within.is_null()) {
        // Candidates of the layer that makes them, and nothing outside of them.
        const LayerView& maker = views_[static_cast<size_t>(plan.candidates)];
        if (!maker.blocks.empty() && maker.blocks[static_cast<size_t>(t)] != blocks)
          text = fmt::format("has candidate blocks that are not those of layer {}", plan.candidates);
        std::vector<Score> within;
        std::vector<int64_t> places(static_cast<size_t>(visible), -1);
        for (int64_t j = 0; j < visible; ++j) {
          if (!std::ranges::binary_search(blocks, j / args.block_size)) continue;
          places[static_cast<size_t>(j)] = std::ssize(within);
          within.push_back(scores[static_cast<size_t>(j)]);
        }
        for (int64_t& entry : chosen) {
          if (entry < visible && places[static_cast<size_t>(entry)] < 0 && text.empty())
            text = fmt::format("entry {} is chosen, whose block {} is no candidate", entry,
                               entry / args.block_size);
          if (entry < visible) entry = places[static_cast<size_t>(entry)];
        }
        scores = std::move(within);
      }
      if (text.empty()) text = SelectionComplaint(chosen, scores, top_k);
      if (text.empty()) continue;
      complained = true;
      Complain("attn.indexer.selected", "indexer_select", position, text);
    }
    return {};
  }

  // The best min(top_k, visible) entries by score, whichever way ties within rounding fall.
  static std::string SelectionComplaint(const std::vector<int64_t>& chosen, const std::vector<Score>& scores,
                                        int64_t top_k) {
    const auto visible = static_cast<int64_t>(scores.size());
    const int64_t want = std::min(top_k, visible);
    if (std::adjacent_find(chosen.begin(), chosen.end()) != chosen.end()) return "an entry is chosen twice";
    if (!chosen.empty() && chosen.back() >= visible) {
      return fmt::format("entry {} is chosen; the query sees {}", chosen.back(), visible);
    }
    if (static_cast<int64_t>(chosen.size()) != want) {
      return fmt::format("{} chosen, wanted the best {} of {}",
                         Counted(chosen.size(), "entry is", "entries are"), want, visible);
    }
    if (want == 0) return {};
    std::vector<double> lowest;
    for (const Score& score : scores) lowest.push_back(score.value - score.slack);
    std::nth_element(lowest.begin(), lowest.begin() + (want - 1), lowest.end(), std::greater<>());
    const double last = lowest[static_cast<size_t>(want - 1)];
    for (const int64_t entry : chosen) {
      const Score& score = scores[static_cast<size_t>(entry)];
      if (score.value + score.slack < last) {
        return fmt::format("entry {} is chosen with score {:.5g}; the {} best reach {:.5g}", entry,
                           score.value, want, last);
      }
    }
    return {};
  }

  Status WatchAttention(const InnerOp<ops::AttentionArgs>& inner, const ops::AttentionArgs& args) {
    ops::OpContext& context = subject_.context();
    const model::LayerPlan& plan = config().layers[static_cast<size_t>(layer_)];
    if (plan.sees_entries()) {
      view().entries = FirstPage(args.sequences[0].entries);
      CheckOwner("entries", view().entries, plan.entries, views_[static_cast<size_t>(plan.entries)].entries,
                 "attn.o", "attention");
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(view().seen, ProbeAttention(context, inner, args, config().nope_head_dim()));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> sink, ToHostFloats(context, args.sink));
    view().sink_weight = std::exp(static_cast<double>(sink[0]));
    for (size_t t = 0; t < view().seen.size(); ++t) {
      const std::string text = QueryComplaint(t, args.sequences[0].first_position + static_cast<int64_t>(t));
      if (text.empty()) continue;
      Complain("attn.o", "attention", args.sequences[0].first_position + static_cast<int64_t>(t), text);
      return {};
    }
    return {};
  }

  std::string QueryComplaint(size_t t, int64_t position) {
    const SeenKeys& seen = view().seen[t];
    std::string text = Differences("window positions", seen.window, WindowRule(position));
    const std::string entries =
        Differences("entries", seen.entries, EntriesRule(static_cast<size_t>(layer_), t, position));
    text += text.empty() || entries.empty() ? entries : "; " + entries;
    if (!text.empty()) return text;
    if (seen.uneven) return "equal keys do not weigh the same";
    const double want = static_cast<double>(seen.window.size() + seen.entries.size()) + view().sink_weight;
    if (std::abs(seen.denominator - want) > 0.01 * want) {
      return fmt::format("the softmax of {} equal keys is over {:.4g}, wanted {:.4g}: exp(sink) is {:.4g}",
                         seen.window.size() + seen.entries.size(), seen.denominator, want,
                         view().sink_weight);
    }
    return {};
  }

  const Subject& subject_;
  const VisibleOptions& options_;
  int layer_ = 0;
  std::vector<LayerView> views_;
  std::vector<Complaint> complaints_;
};

Table ShowPosition(const Subject& subject, const Watcher& watcher, int64_t position) {
  Table table{
      .title = fmt::format("keys attended at position {}", position),
      .columns = {"layer", "kind", "window", "compressed entries", "visible entries", "keys", "exp(sink)"}};
  for (size_t layer = 0; layer < watcher.views().size(); ++layer) {
    const LayerView& view = watcher.views()[layer];
    if (view.seen.empty()) continue;
    const model::LayerPlan& config = subject.model.config().layers[layer];
    const SeenKeys& seen = view.seen[static_cast<size_t>(position)];
    table.rows.push_back({std::to_string(layer), std::string(model::AttentionName(config)), Show(seen.window),
                          Show(seen.entries), std::to_string(config.VisibleEntries(position)),
                          std::to_string(seen.window.size() + seen.entries.size()),
                          fmt::format("{:.4g}", view.sink_weight)});
  }
  return table;
}

}  // namespace

Result<CheckReport> CheckVisible(const Subject& subject, std::span<const int32_t> tokens,
                                 const VisibleOptions& options) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  const int64_t max_tokens = subject.model.options().max_chunk_tokens;
  if (num_tokens < 1 || num_tokens > max_tokens) {
    return Error(OutOfRange(
        fmt::format("{}, wanted 1..{}: one pass of the model", Counted(num_tokens, "token"), max_tokens)));
  }
  const int64_t position = options.position.value_or(num_tokens - 1);
  if (position < 0 || position >= num_tokens) {
    return Error(OutOfRange(fmt::format("position {}, wanted 0..{}", position, num_tokens - 1)));
  }
  if (options.layer && (*options.layer < 0 || *options.layer >= subject.model.num_layers())) {
    return Error(
        OutOfRange(fmt::format("layer {}, wanted 0..{}", *options.layer, subject.model.num_layers() - 1)));
  }
  Watcher watcher(subject, options);
  {
    const HookedBackend::Scope scope(subject.backend, watcher.Hooks());
    const Result<std::vector<float>> run = RunTokens(subject, tokens, {}, model::LogitsRows::kNone);
    if (!run) return Error(run.error());
  }
  CheckReport report{.check = "visible"};
  report.tables.push_back(ShowPosition(subject, watcher, position));
  VisibleMaps drawn = MapVisibleKeys(watcher.Keys());
  report.key_maps = std::move(drawn.maps);
  report.evidence.push_back(
      fmt::format("{} of positions 0..{}: the set of keys that change the op's output, against the rule",
                  options.layer ? fmt::format("layer {}", *options.layer) : "every layer", num_tokens - 1));
  if (!drawn.note.empty()) report.evidence.push_back(std::move(drawn.note));
  for (const Complaint& complaint : watcher.complaints()) {
    report.evidence.push_back(fmt::format("{}: {}", complaint.location.ToString(), complaint.text));
  }
  if (!watcher.complaints().empty()) {
    const Complaint& first = watcher.complaints().front();
    report.verdict = Verdict::kFinding;
    report.location = first.location;
    report.headline = fmt::format("{} {}", first.location.ToString(), first.text);
    report.next_step =
        "the rule: window max(0, p - w + 1) .. p, entries below floor((p + 1) / ratio), counted per query";
  } else {
    report.headline = "every query sees exactly the keys of the rule, and the sink";
    report.rules_out = {
        "off-by-one windows and entry counts, counts shared by a chunk, a missing sink, a wrong choice of "
        "entries"};
    report.next_step = "what the keys hold is another question: dsv4 diagnose decode-prefill, then compare";
  }
  return report;
}

}  // namespace dsv4::diag
