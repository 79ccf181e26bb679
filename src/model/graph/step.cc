// Whole pass of a step: uploads, embedding, layers, stages, head, and choice of tokens on the backend.
#include "model/graph/step.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "model/graph/draft_rows.h"
#include "model/graph/dspark.h"
#include "model/graph/engram.h"
#include "model/graph/hashed_experts.h"
#include "model/graph/mtp.h"
#include "model/graph/pass_tail.h"
#include "model/graph/trunk.h"

namespace dsv4::model {
namespace {

// Rows of logits computed at a time, which bounds the arena: a row of 129280 floats is half a megabyte.
constexpr int64_t kMaxHeadRows = 128;

// Each of a pass's lists of numbers begins where a tensor of its own could.
size_t BeginOfNext(size_t end) {
  constexpr size_t kAlignment = 64 / sizeof(int32_t);
  return (end + kAlignment - 1) / kAlignment * kAlignment;
}

// The lists of numbers that a pass begins with, which go to the backend's memory in one copy. They are ids of
// tokens, their positions, and for each ratio the positions at which entries completed in this pass are
// rotated.
void PassNumbers(const PassPlan& plan, const PassArrays::Of&, std::vector<int32_t>* out) {
  *out = plan.tokens;
  out->resize(BeginOfNext(out->size()));
  for (const PassSequence& sequence : plan.sequences) {
    for (int64_t i = 0; i < sequence.num_tokens; ++i)
      out->push_back(static_cast<int32_t>(sequence.first_position + i));
  }
  for (const PassEntries& entries : plan.entries) {
    out->resize(BeginOfNext(out->size()));
    for (const PassSequence& sequence : plan.sequences) {
      const int64_t end = (sequence.first_position + sequence.num_tokens) / entries.ratio;
      for (int64_t j = sequence.first_position / entries.ratio; j < end; ++j)
        out->push_back(static_cast<int32_t>(j * entries.ratio));
    }
  }
}

Status UploadNumbers(const Graph& graph, Arena& arena, PassArrays& arrays, PassPlan& plan) {
  const std::span<const int32_t> numbers = arrays.Make(PassNumbers, plan, {});
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView all,
                               arena.Allocate(DType::kI32, {static_cast<int64_t>(numbers.size())}));
  ops::OpContext& context = *graph.backend.context;
  DSV4_RETURN_IF_ERROR(
      context.memory().CopyFromHost(all.data, numbers.data(), numbers.size_bytes(), context.stream()));
  size_t end = 0;
  const auto next = [&](int64_t count) {
    const size_t begin = BeginOfNext(end);
    end = begin + static_cast<size_t>(count);
    return all.Rows(static_cast<int64_t>(begin), static_cast<int64_t>(end));
  };
  plan.token_ids = next(plan.num_tokens);
  plan.positions = next(plan.num_tokens);
  for (PassEntries& entries : plan.entries) entries.positions = next(entries.num_new);
  return {};
}

// The ids of tokens of which some were chosen by the pass before. `ids`: of the others, with room for all.
Result<TensorView> TakeChosen(const Graph& graph, PassArrays& arrays, std::span<const PassChunk> chunks,
                              const TensorView& previous, const TensorView& ids) {
  bool all_in_order = true;
  std::vector<RowRun> runs;
  int64_t end = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t row = std::exchange(end, end + static_cast<int64_t>(chunks[i].tokens.size()));
    all_in_order = all_in_order && chunks[i].follows == row;
    if (chunks[i].follows < 0) continue;
    const bool continues =
        !runs.empty() && chunks[i - 1].follows >= 0 && chunks[i].follows == chunks[i - 1].follows + 1;
    if (continues) {
      ++runs.back().num_rows;
    } else {
      runs.push_back({chunks[i].follows, 1, ids.Rows(row, row + 1).data});
    }
  }
  if (all_in_order) return previous.Rows(0, end);
  if (runs.empty()) return ids;
  const TensorView source = previous.Reshaped({previous.shape[0], 1});
  DSV4_TRY(graph.backend.table
               .store_rows(*graph.backend.context, {.source = source, .runs = arrays.Fixed(std::move(runs))})
               .WithContext("chosen tokens"));
  return ids;
}

void ObservePlan(const LayerStep& step, std::span<const PassChunk> chunks) {
  step.Observe("pass.token_ids", step.plan().token_ids);
  step.Observe("pass.positions", step.plan().positions);
  std::vector<int32_t> rows;
  for (const PassChunk& chunk : chunks) rows.insert(rows.end(), chunk.tokens.size(), chunk.chunk);
  step.Observe("pass.chunks",
               TensorView::Contiguous(rows.data(), DType::kI32, {static_cast<int64_t>(rows.size())}));
}

Result<TensorView> Embed(const LayerStep& step, const Weight& embed) {
  const ModelConfig& config = step.config();
  const Range rows = step.context().own_rows();
  DSV4_ASSIGN_OR_RETURN(const TensorView streams,
                        step.NewTensor(step.dtype(), {rows.size(), config.hc_mult, config.hidden_size}));
  if (rows.empty()) return streams;
  DSV4_TRY(step.Run("embed", step.ops().embed,
                    {.token_ids = step.plan().token_ids.Rows(rows.begin, rows.end),
                     .table = embed.data,
                     .streams = streams}));
  step.Observe("embed", streams);
  return streams;
}

// Rows of the pass whose logits go to `destination`.
struct HeadRow {
  int64_t row = 0;  // Row of the shard at `place`, where sequences or streams are divided.
  int place = 0;
  float* destination = nullptr;
};

// `chunk_rows`: how many rows each chunk has behind the last layer; empty: all of its tokens'.
std::vector<HeadRow> HeadRows(const StepContext& context, std::span<const PassChunk> chunks,
                              std::span<const int64_t> chunk_rows) {
  const int64_t vocab_size = context.config.vocab_size;
  std::vector<HeadRow> rows;
  int64_t end = 0;
  int place = 0;
  for (const PassChunk& chunk : chunks) {
    if (place != std::exchange(place, chunk.state->home().place)) end = 0;
    end += chunk_rows.empty() ? std::ssize(chunk.tokens)
                              : chunk_rows[static_cast<size_t>(&chunk - chunks.data())];
    for (int64_t i = 0; i < chunk.num_logits_rows; ++i) {
      float* const destination = chunk.logits == nullptr ? nullptr : chunk.logits + i * vocab_size;
      rows.push_back({end - chunk.num_logits_rows + i, place, destination});
    }
  }
  if (!context.divide_streams()) return rows;
  // They ascend, as the shards' rows do.
  const std::vector<int64_t>& num_rows = context.stream_rows;
  int64_t begin = 0;
  int shard = 0;
  for (HeadRow& row : rows) {
    while (row.row >= begin + num_rows[static_cast<size_t>(shard)])
      begin += num_rows[static_cast<size_t>(shard++)];
    row.row -= begin;
    row.place = shard;
  }
  return rows;
}

// Whether they are all of so many rows, in order.
bool AreAll(std::span<const HeadRow> rows, int64_t count) {
  int64_t next = 0;
  return std::ssize(rows) == count &&
         std::ranges::all_of(rows, [&](const HeadRow& row) { return row.row == next++; });
}

// Gathers a few rows of what the trunk has left, `all` [n, width]: [rows, width]. Of several stages the last has them, and the first gets
// them from it.
Result<TensorView> GatherHeadRows(const LayerStep& step, const Graph& graph, std::string_view name,
                                  const TensorView& all, std::span<const HeadRow> rows) {
  const RankPlace& place = graph.weights.place;
  const auto num_rows = static_cast<int64_t>(rows.size());
  // All rows, as in a step of single tokens, stay where they are.
  if (place.placement.num_stages == 1 && AreAll(rows, all.shape[0])) return all;
  DSV4_ASSIGN_OR_RETURN(const TensorView gathered, step.NewTensor(all.dtype, {num_rows, all.shape[1]}));
  if (num_rows == 0) return gathered;
  const int first = place.shard();
  const int last = first + (place.placement.num_stages - 1) * place.num_shards();
  if (place.last_stage()) {
    std::vector<RowRun> runs;
    for (int64_t i = 0; i < num_rows; ++i) {
      runs.push_back({rows[static_cast<size_t>(i)].row, 1, gathered.Rows(i, i + 1).data});
    }
    DSV4_TRY(step.StoreRows(name, all, step.context().arrays.Fixed(std::move(runs))));
    if (!place.first_stage()) DSV4_TRY(graph.group->Send(Bytes(gathered), first));
  } else if (place.first_stage()) {
    DSV4_TRY(graph.group->Recv(Bytes(gathered), last));
  }
  return gathered;
}

// To the host. Rows that lie one behind the other are one copy.
Status BringLogits(const LayerStep& step, const TensorView& logits, std::span<const HeadRow> rows) {
  ops::OpContext& context = *step.context().backend.context;
  const int64_t vocab_size = step.config().vocab_size;
  for (size_t begin = 0, end = 1; begin < rows.size(); begin = end++) {
    while (end < rows.size() && rows[end].destination == rows[end - 1].destination + vocab_size) ++end;
    const TensorView run = logits.Rows(static_cast<int64_t>(begin), static_cast<int64_t>(end));
    DSV4_RETURN_IF_ERROR(context.memory().CopyToHost(rows[begin].destination, run.data,
                                                     static_cast<size_t>(run.num_bytes()), context.stream()));
  }
  return {};
}

// `which`: the first of up to kMaxHeadRows tokens.
void ChoicesOfRows(const PassPlan& plan, const PassArrays::Of& of, std::vector<sampling::ChoiceParams>* out) {
  const auto begin = plan.choices.begin() + of.which;
  const int64_t count = std::min<int64_t>(kMaxHeadRows, plan.choices.end() - begin);
  out->assign(begin, begin + count);
}

// The same rows, which count from 0 there.
void BiasesOfRows(const PassPlan& plan, const PassArrays::Of& of, std::vector<ops::RowChange>* out) {
  const auto first = static_cast<int32_t>(of.which);
  for (const ops::RowChange& bias : plan.biases) {
    if (bias.row >= first && bias.row < first + kMaxHeadRows)
      out->push_back({bias.row - first, bias.token, bias.bias});
  }
}

// Choices for rows from `begin` of `chosen` on.
Status ChooseTokens(const LayerStep& step, const TensorView& logits, const ChosenTokens& chosen,
                    int64_t begin) {
  const std::span<const sampling::ChoiceParams> choices = step.Make(ChoicesOfRows, begin);
  const int64_t end = begin + static_cast<int64_t>(choices.size());
  const auto part = [&](int64_t row) {
    return chosen.numbers.Rows(row, row + 1).Reshaped({chosen.numbers.shape[1]}).Rows(begin, end);
  };
  return step.Run("sample", step.ops().sample,
                  {.logits = logits,
                   .allowed = chosen.allowed,
                   .choices = choices,
                   .changes = step.Make(BiasesOfRows, begin),
                   .tokens = part(0),
                   .faults = part(1)});
}

// Input that the projection to logits reads of some rows that this shard has, [rows, hidden_size]; null but
// in the first stage.
Result<TensorView> MixHead(const LayerStep& step, const Graph& graph, const TrunkState& state,
                           std::span<const HeadRow> rows) {
  const ModelConfig& config = step.config();
  const ModelWeights& weights = graph.weights;
  const auto num_rows = static_cast<int64_t>(rows.size());
  const TensorView streams = state.streams.Reshaped({state.streams.shape[0], config.hc_dim()});
  DSV4_ASSIGN_OR_RETURN(const TensorView gathered,
                        GatherHeadRows(step, graph, "head.streams", streams, rows));
  TrunkState head;
  if (!state.pre.is_null()) {
    DSV4_ASSIGN_OR_RETURN(head.pre, GatherHeadRows(step, graph, "head.pre", state.pre, rows));
  }
  if (!weights.place.first_stage()) return TensorView();
  if (num_rows == 0) return step.NewTensor(step.dtype(), {0, config.hidden_size});
  head.streams = gathered.Reshaped({num_rows, config.hc_mult, config.hidden_size});
  step.Observe("head.streams", head.streams);
  DSV4_ASSIGN_OR_RETURN(const TensorView y, config.trunk->collapse(step, weights.hc_head, head));
  DSV4_TRY(step.RmsNorm("head.norm", y, weights.norm));
  return y;
}

// Mixes, norms and projects a few rows. Their logits, which only rank 0 has: [rows, vocab_size], elsewhere null.
Result<TensorView> RunHead(const LayerStep& step, const Graph& graph, const TrunkState& state,
                           std::span<const HeadRow> rows) {
  const ModelWeights& weights = graph.weights;
  TensorView y;
  if (step.context().divide_sequences() || step.context().divide_streams()) {
    // Rows of a shard are together, and shards in order.
    std::vector<int64_t> num_rows(static_cast<size_t>(weights.place.num_shards()));
    for (const HeadRow& row : rows) ++num_rows[static_cast<size_t>(row.place)];
    const Range mine = PartOf(num_rows, weights.place.shard());
    DSV4_ASSIGN_OR_RETURN(
        y, MixHead(step, graph, state,
                   rows.subspan(static_cast<size_t>(mine.begin), static_cast<size_t>(mine.size()))));
    if (y.is_null()) return y;
    DSV4_ASSIGN_OR_RETURN(y, GatherRows(step, y, num_rows));
  } else {
    DSV4_ASSIGN_OR_RETURN(y, MixHead(step, graph, state, rows));
    if (y.is_null()) return y;
  }
  DSV4_ASSIGN_OR_RETURN(const TensorView part, step.Linear("logits", y, weights.head, DType::kF32));
  DSV4_ASSIGN_OR_RETURN(const TensorView logits, GatherColumns(step, "logits", part, weights.head_split));
  return weights.place.rank == 0 ? logits : TensorView();  // Rank 0 samples.
}

// Number of rows of a pass whose streams each shard keeps; empty where all keep all. Where sums are cut, rows
// that are added up need not come to all shards before they are normed. For fewer tokens an exchange takes as
// long as it saves.
std::vector<int64_t> StreamRows(const Graph& graph, int64_t num_tokens) {
  const Placement& placement = graph.weights.place.placement;
  if (placement.experts != ExpertPlacement::kByColumns || placement.num_shards == 1 ||
      num_tokens < graph.backend.policy.min_stream_tokens) {
    return {};
  }
  return EvenRows(num_tokens, placement.num_shards);
}

// The trunk's state in front of this stage's first layer.
Result<TrunkState> EnterStage(const LayerStep& step, const Graph& graph) {
  const RankPlace& place = graph.weights.place;
  TrunkState state;
  if (place.first_stage()) {
    DSV4_ASSIGN_OR_RETURN(state.streams, Embed(step, graph.weights.embed));
  } else {
    const ModelConfig& config = step.config();
    DSV4_ASSIGN_OR_RETURN(state.streams, step.NewTensor(step.dtype(), {step.context().own_rows().size(),
                                                                       config.hc_mult, config.hidden_size}));
    if (state.streams.shape[0] > 0) {
      DSV4_TRY(graph.group->Recv(Bytes(state.streams), place.rank - place.num_shards()));
    }
  }
  DSV4_TRY(MakeSelectionRoom(step, graph.layers, state));
  const Trunk& trunk = *graph.config.trunk;
  if (trunk.begin != nullptr) DSV4_TRY(trunk.begin(step, state));
  if (!place.first_stage() && !state.pre.is_null() && state.pre.shape[0] > 0)
    DSV4_TRY(graph.group->Recv(Bytes(state.pre), place.rank - place.num_shards()));
  return state;
}

// Runs some of the layers, with taps of a drafter's, which may be null.
Status RunLayers(const StepContext& context, const Graph& graph, const Range& layers, DsparkTaps* taps,
                 TrunkState& state) {
  const bool inputs = taps != nullptr && graph.weights.dspark->config.taps_inputs;
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    const auto index = static_cast<size_t>(i);
    // A layer whose output is tapped is so within the next one, one whose input is within itself.
    std::function<Status()> tap;
    if (taps != nullptr && (inputs || i > 0)) {
      const int tapped = graph.layers[inputs ? index : index - 1].number;
      if (taps->Taps(tapped)) tap = [&, tapped] { return taps->Tap(tapped, state); };
    }
    DSV4_RETURN_IF_ERROR(graph.config.trunk->run_layer(LayerStep(context, graph.layers[index]),
                                                       graph.weights.layers[index], state, tap));
  }
  if (taps != nullptr && !graph.layers.empty() && !inputs)
    DSV4_RETURN_IF_ERROR(taps->Tap(graph.layers.back().number, state));
  return {};
}

void CountRows(const Graph& graph, const PassPlan& plan, const std::optional<PassTail>& tail,
               LayerRows& rows) {
  const auto num_layers = std::ssize(graph.layers);
  const int64_t in_front = tail.has_value() ? static_cast<int64_t>(tail->first_layer) : num_layers;
  rows.all += plan.num_tokens * num_layers;
  rows.run += plan.num_tokens * in_front;
  if (tail.has_value()) rows.run += tail->plan.num_tokens * (num_layers - in_front);
}

// Gives the trunk's state to the next stage, if there is one.
Status LeaveStage(const Graph& graph, const TrunkState& state) {
  const RankPlace& place = graph.weights.place;
  if (place.last_stage() || state.streams.shape[0] == 0) return {};
  const int next = place.rank + place.num_shards();
  DSV4_RETURN_IF_ERROR(graph.group->Send(Bytes(state.streams), next));
  return state.pre.is_null() ? Status() : graph.group->Send(Bytes(state.pre), next);
}

}  // namespace

// A small gather takes as long as a broadcast, and is one that groups of devices have a kernel for.
Status ShareChosen(const Shards& shards, const ChosenTokens& chosen) {
  if (shards.alone()) return {};
  const std::vector<int64_t> piece_bytes(static_cast<size_t>(shards.group->size()),
                                         chosen.numbers.num_bytes());
  return shards.group->AllGather(Bytes(chosen.numbers), 1, piece_bytes, Bytes(chosen.gathered))
      .WithContext("chosen tokens");
}

void SortByPlace(std::vector<PassChunk>& chunks) {
  std::ranges::stable_sort(chunks, {}, [](const PassChunk& chunk) {
    return chunk.state == nullptr ? 0 : chunk.state->home().place;
  });
}

PassPlan PlanPass(const Graph& graph, std::span<const PassChunk> chunks) {
  PassPlan plan;
  for (const PassChunk& chunk : chunks) {
    if (chunk.num_logits_rows > 0) plan.choices.push_back(chunk.choice);
    plan.choices.insert(plan.choices.end(), chunk.draft_choices.begin(), chunk.draft_choices.end());
    for (int64_t row = std::ssize(plan.choices) - chunk.num_logits_rows; row < std::ssize(plan.choices);
         ++row) {
      for (const sampling::TokenBias& bias : chunk.biases)
        plan.biases.push_back({static_cast<int32_t>(row), bias.token, bias.bias});
    }
    if (!chunk.state->home().here) continue;
    const auto num_tokens = static_cast<int64_t>(chunk.tokens.size());
    plan.sequences.push_back({.state = chunk.state,
                              .token_begin = plan.num_tokens,
                              .num_tokens = num_tokens,
                              .first_position = chunk.state->length(),
                              .slots_later = chunk.slots_later});
    plan.num_tokens += num_tokens;
    plan.tokens.insert(plan.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    plan.windows_fit = plan.windows_fit && chunk.state->WindowFits();
    const bool drafts = graph.weights.mtp.has_value() || graph.weights.dspark.has_value();
    if (drafts && graph.weights.place.first_stage())
      plan.num_draft_slots += DraftSlotsToMake(plan.sequences.back(), graph.config.sliding_window).size();
  }
  for (const LayerPlan& layer_plan : graph.layers) {
    const int64_t ratio = layer_plan.ratio;
    const auto planned = [&](const PassEntries& entries) { return entries.ratio == ratio; };
    if (!layer_plan.makes_entries() || std::ranges::any_of(plan.entries, planned)) continue;
    PassEntries entries;
    entries.ratio = ratio;
    for (const PassSequence& sequence : plan.sequences) {
      const kv::CacheLayout& layout = sequence.state->layout();
      const int layer = layer_plan.window;
      const int64_t end = sequence.first_position + sequence.num_tokens;
      entries.num_new += sequence.state->NumNewEntries(layer);
      entries.num_new_rows +=
          layout.NumEntryRows(layer, end) - layout.NumEntryRows(layer, sequence.first_position);
      entries.beyond_top_k = entries.beyond_top_k || end / ratio > graph.config.index_topk;
    }
    plan.entries.push_back(entries);
  }
  return plan;
}

Status PlanEngram(const Graph& graph, PassPlan& plan) {
  if (graph.engram == nullptr) return {};
  DSV4_RETURN_IF_ERROR(AskForEngram(*graph.engram, plan));
  const DType dtype = graph.numerics == Numerics::kRelease ? DType::kBF16 : DType::kF32;
  return ReadEngram(*graph.engram, graph.backend.context->threads(), dtype, plan);
}

std::string StepKey(const Graph& graph, const Arena& arena, std::span<const PassChunk> chunks,
                    const PassPlan& plan, const ChosenTokens& chosen) {
  // Shards that bring keys together cut such a pass by what its positions cost.
  const bool by_positions =
      graph.shards.divide_entries() && plan.num_tokens >= graph.backend.policy.min_index_tokens;
  // Nor do rows of a draft block come in every step.
  if (arena.base() == nullptr || by_positions || plan.num_draft_slots > 0) return {};
  if (std::ranges::any_of(chunks, [](const PassChunk& chunk) { return chunk.prompt; })) return {};
  std::string key;
  key.reserve(512);
  const auto add = [&](auto number) { key.append(reinterpret_cast<const char*>(&number), sizeof(number)); };
  add(graph.number);
  add(arena.base());
  for (const TensorView* tensor : {&chosen.allowed, &chosen.previous, &chosen.numbers, &chosen.gathered}) {
    add(tensor->data);
    add(tensor->is_null() ? int64_t{0} : tensor->num_elements());
  }
  add(chosen.later);
  add(plan.num_tokens);
  add(plan.windows_fit);
  for (const PassEntries& entries : plan.entries) {
    add(entries.num_new);
    add(entries.num_new_rows);
    add(entries.beyond_top_k);
  }
  for (const PassChunk& chunk : chunks) {
    add(chunk.follows);
    add(chunk.state->home().place);
    add(chunk.num_logits_rows);
    add(chunk.tokens.size());
    add(chunk.biases.size());
  }
  return key;
}

StepContext ContextOf(const Graph& graph, Arena& arena, const PassPlan& plan, PassArrays& arrays) {
  return {.config = graph.config,
          .backend = graph.backend,
          .rope = graph.rope,
          .numerics = graph.numerics,
          .clamp_shared_expert = graph.clamp_shared_expert,
          .arena = arena,
          .plan = plan,
          .arrays = arrays,
          .engram = graph.engram,
          .shards = graph.shards,
          .expert_shards = graph.shards};
}

Status RunPass(const Graph& graph, Arena& arena, std::span<const PassChunk> chunks,
               const ChosenTokens* chosen, PassArrays& arrays, Observer* observer) {
  DSV4_RETURN_IF_ERROR(arena.Recycle());
  const Arena::Scope scope(arena);
  const RankPlace& place = graph.weights.place;
  const bool divided = place.placement.divide_sequences;
  std::vector<PassChunk> mine;
  std::vector<int64_t> shard_tokens(divided ? static_cast<size_t>(place.num_shards()) : 0);
  for (const PassChunk& chunk : chunks) {
    const kv::StateHome& home = chunk.state->home();
    if (divided) shard_tokens[static_cast<size_t>(home.place)] += static_cast<int64_t>(chunk.tokens.size());
    if (home.here) mine.push_back(chunk);
  }
  PassPlan plan = PlanPass(graph, chunks);
  if (!mine.empty()) {
    DSV4_RETURN_IF_ERROR(UploadNumbers(graph, arena, arrays, plan));
    if (chosen != nullptr) {
      DSV4_ASSIGN_OR_RETURN_STATUS(plan.token_ids,
                                   TakeChosen(graph, arrays, mine, chosen->previous, plan.token_ids));
    }
  }
  if (graph.reads != nullptr) AskForHashedExperts(graph, plan, *graph.reads);
  if (graph.engram != nullptr) {
    DSV4_RETURN_IF_ERROR(chosen != nullptr && std::ranges::none_of(chunks, &PassChunk::prompt)
                             ? PlanEngram(graph, plan)
                             : AskForEngram(*graph.engram, plan));
  }
  const auto divide = [&](StepContext& context, std::vector<int64_t> tokens) {
    context.observer = observer;
    if (divided) context.shards = Shards();
    context.shard_tokens = std::move(tokens);
    context.stream_rows = StreamRows(graph, context.plan.num_tokens);
  };
  StepContext context = ContextOf(graph, arena, plan, arrays);
  divide(context, shard_tokens);
  const LayerStep outside(context);
  if (observer != nullptr) ObservePlan(outside, mine);

  DSV4_ASSIGN_OR_RETURN_STATUS(TrunkState state, EnterStage(outside, graph));
  std::optional<PassTail> tail = CutTail(graph, chunks, plan);
  if (graph.layer_rows != nullptr) CountRows(graph, plan, tail, *graph.layer_rows);
  for (size_t i = 0; tail.has_value() && i < chunks.size(); ++i) {
    if (tail->whole_from[i] > 0) chunks[i].state->LeaveOut(tail->whole_from[i]);
  }
  StepContext of_tail = ContextOf(graph, arena, tail.has_value() ? tail->plan : plan, arrays);
  divide(of_tail, tail.has_value() ? tail->shard_tokens : shard_tokens);
  Range layers = {0, std::ssize(graph.weights.layers)};
  const bool cuts = tail.has_value() && place.last_stage();
  if (cuts) {
    layers.begin = static_cast<int64_t>(tail->first_layer);
    DSV4_RETURN_IF_ERROR(RunLayers(context, graph, {0, layers.begin}, nullptr, state));
    DSV4_RETURN_IF_ERROR(EnterTail(outside, of_tail, *tail, state));
    // No row of this pass counts behind these layers.
    if (tail->num_tokens == 0) return {};
  }
  const StepContext& behind = cuts ? of_tail : context;
  std::optional<DsparkTaps> taps;
  if (graph.weights.dspark.has_value()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(taps, DsparkTaps::Begin(behind, graph));
  }
  DSV4_RETURN_IF_ERROR(RunLayers(behind, graph, layers, taps.has_value() ? &*taps : nullptr, state));
  // The next stage has its state before this one waits for another.
  DSV4_RETURN_IF_ERROR(LeaveStage(graph, state));
  if (taps.has_value()) DSV4_RETURN_IF_ERROR(taps->Keep());
  if (graph.weights.mtp.has_value()) DSV4_RETURN_IF_ERROR(KeepForDrafts(context, graph, state));
  // The head is divided by vocabulary, whatever divides the layers. All stages name rows as the last one has
  // them.
  StepContext together = of_tail;
  together.shards = behind.expert_shards;
  const LayerStep head_step(together);
  const std::vector<HeadRow> rows =
      HeadRows(of_tail, chunks, tail.has_value() ? tail->chunk_rows : std::vector<int64_t>());
  const bool later = chosen != nullptr && chosen->later;
  for (size_t begin = 0; begin < rows.size(); begin += kMaxHeadRows) {
    const size_t count = std::min<size_t>(kMaxHeadRows, rows.size() - begin);
    const std::span<const HeadRow> some = std::span(rows).subspan(begin, count);
    std::optional<Arena::Scope> head;
    if (!later) head.emplace(arena);
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView logits, RunHead(head_step, graph, state, some));
    if (logits.is_null()) continue;
    if (later) {
      arrays.logits.push_back(logits);
      continue;
    }
    DSV4_RETURN_IF_ERROR(chosen == nullptr
                             ? BringLogits(head_step, logits, some)
                             : ChooseTokens(head_step, logits, *chosen, static_cast<int64_t>(begin)));
  }
  return chosen == nullptr || later ? Status() : ShareChosen(together.shards, *chosen);
}

}  // namespace dsv4::model
