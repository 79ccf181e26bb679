// Report of a checkpoint: layers, formats, tokenizer, memory, ranks and drafters.
#include "apps/inspect/inspect_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/terminal/readable.h"
#include "base/text.h"
#include "comm/null_group.h"
#include "formats/cache_rows.h"
#include "io/checkpoint.h"
#include "kv/cache_layout.h"
#include "model/checkpoint/dspark_source.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/checkpoint/weights.h"
#include "model/config/cache_geometry.h"
#include "model/planning/memory_plan.h"
#include "model/runtime/model.h"
#include "session/text_model.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {
namespace {

using model::StoredLinear;
using model::TensorId;

// Adds up formats and parameters over the table's rows.
class Counter {
 public:
  explicit Counter(InspectReport& report) : report_(report) {}

  // Everything behind this is counted as part of a layer.
  void EnterLayers() { in_layer_ = true; }

  void Linear(TensorId id, const StoredLinear& linear, double active_share = 1) {
    if (!linear.found()) return;
    Count(id, linear.FormatName(), linear.num_bytes(), linear.rows * linear.cols, active_share);
    if (linear.format != WeightFormat::kNvFp4) return;
    ++report_.num_nvfp4;
    if (model::IsMxFp4Transcode(linear)) ++report_.num_nvfp4_lossless;
  }

  void Tensor(TensorId id, const model::ResolvedTensor& resolved, double active_share = 1) {
    if (resolved.is_table) {
      // Its rows stay in their file, and a token reads a few.
      const int64_t memory = report_.memory.weights_bytes;
      const int64_t of_layers = report_.memory.layer_weights_bytes;
      const StoredLinear& table = resolved.linear;
      Count(id, table.FormatName(), table.num_bytes(), table.rows * table.cols, 0);
      report_.memory.weights_bytes = memory;
      report_.memory.layer_weights_bytes = of_layers;
      return;
    }
    Linear(id, resolved.linear, active_share);
    if (resolved.tensor == nullptr) return;
    int64_t elements = 1;
    for (const int64_t dim : resolved.tensor->dims) elements *= dim;
    // Expert ids are a table, not parameters.
    const bool is_table = id == TensorId::kGateTid2Eid;
    Count(id, resolved.tensor->dtype_name, static_cast<int64_t>(resolved.tensor->bytes.size()),
          is_table ? 0 : elements, active_share);
  }

 private:
  void Count(TensorId id, const std::string& format, int64_t bytes, int64_t parameters, double active_share) {
    std::string name = model::ExpandNames(model::RowOf(report_.config, id).names).front();
    if (const size_t number = name.find("#."); number != std::string::npos) name.erase(number, 2);
    auto found = std::find_if(report_.formats.begin(), report_.formats.end(),
                              [&](const auto& f) { return f.first == name; });
    if (found == report_.formats.end()) found = report_.formats.insert(found, {name, {}});
    InspectReport::Format& entry = found->second[format];
    ++entry.num_tensors;
    entry.num_bytes += bytes;
    report_.memory.weights_bytes += bytes;
    if (in_layer_) report_.memory.layer_weights_bytes += bytes;
    report_.num_parameters += parameters;
    report_.num_active_parameters += static_cast<int64_t>(static_cast<double>(parameters) * active_share);
  }

  InspectReport& report_;
  bool in_layer_ = false;
};

void CountWeights(const model::ResolvedCheckpoint& resolved, InspectReport& report) {
  Counter counter(report);
  const model::ModelConfig& config = report.config;
  for (const model::TensorRow& row : config.tensors) {
    // One row of the embedding is read a token; all of a tied head is.
    const double active = row.id == TensorId::kEmbed && !resolved.head_is_tied ? 0 : 1;
    if (row.scope == model::TensorScope::kModel) counter.Tensor(row.id, resolved[row.id], active);
  }
  const double expert_share =
      static_cast<double>(config.num_experts_per_tok) / static_cast<double>(config.n_routed_experts);
  counter.EnterLayers();
  for (int64_t i = 0; i < report.num_layers; ++i) {
    const model::ResolvedLayer& layer = resolved.layers[static_cast<size_t>(i)];
    for (const model::TensorRow& row : config.tensors) counter.Tensor(row.id, layer[row.id]);
    for (const model::ResolvedExpert& expert : layer.experts) {
      counter.Linear(TensorId::kExpertW1, expert.w1, expert_share);
      counter.Linear(TensorId::kExpertW2, expert.w2, expert_share);
      counter.Linear(TensorId::kExpertW3, expert.w3, expert_share);
    }
  }
}

Status PlanMemory(const InspectRequest& request, const std::shared_ptr<const io::Checkpoint>& checkpoint,
                  InspectReport& report) {
  const int64_t limit = report.config.max_position_embeddings;
  if (request.context < 1 || request.context > limit) {
    return InvalidArgument(
        fmt::format("context: {}, the model takes 1 to {}", Counted(request.context, "token"), limit));
  }
  if (request.batch < 1) return InvalidArgument(fmt::format("batch: {}, wanted at least 1", request.batch));
  model::ModelOptions options;
  options.numerics = request.numerics;
  options.cache_rows = request.cache_rows;
  options.max_layers = report.num_layers;
  options.max_chunk_tokens = request.pass_tokens;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const model::MemoryPlan plan,
      model::PlanMemory(report.config, checkpoint, options, {request.batch, request.context}));
  report.memory.step_bytes = plan.step;
  const kv::CacheLayout layout = model::CacheGeometry(
      report.config, model::PlansOfStage(report.config.layers, {0, report.num_layers}), request.numerics,
      request.cache_rows, options.max_chunk_tokens, options.max_rewind_tokens);
  report.memory.context = request.context;
  report.memory.batch = request.batch;
  report.memory.sequence_bytes = kv::StateBytes(layout, request.context);
  report.memory.fixed_bytes = kv::StateBytes(layout, 0);
  report.memory.growth_per_token = kv::BytesPerToken(layout);
  report.memory.parts = kv::CacheParts(layout);
  report.fit_request = {.config = report.config,
                        .checkpoint = checkpoint,
                        .options = options,
                        .batch = request.batch,
                        .context = request.context,
                        .weights = report.memory.weights_bytes,
                        .fixed = report.memory.fixed_bytes,
                        .per_token = report.memory.growth_per_token,
                        .step = report.memory.step_bytes,
                        .num_layers = report.num_layers,
                        .layer_weights = report.memory.layer_weights_bytes};
  DSV4_ASSIGN_OR_RETURN_STATUS(report.fit, FitMachine(report.fit_request));
  return {};
}

// Loads the weights, which proves what headers cannot: that scales are numbers a run can use. Random weights
// are.
Status ProveNumbers(const InspectRequest& request, const std::shared_ptr<const io::Checkpoint>& checkpoint,
                    const InspectReport& report) {
  model::LoadOptions options = {.numerics = request.numerics, .max_layers = report.num_layers};
  if (request.progress) {
    options.progress = [&](const model::LoadProgress& so_far) {
      request.progress(so_far);
      return Status();
    };
  }
  const Result<model::ModelWeights> weights = model::LoadWeights(checkpoint, report.config, options);
  return weights.has_value() ? Status() : weights.error();
}

// Plans of what each rank of a placement would have.
Status PlanRanks(const InspectRequest& request, const std::shared_ptr<const io::Checkpoint>& checkpoint,
                 InspectReport& report) {
  report.placement = request.placement;
  const int num_ranks = request.placement.num_ranks();
  if (num_ranks == 1) return {};
  for (int rank = 0; rank < num_ranks; ++rank) {
    model::ModelOptions options;
    options.numerics = request.numerics;
    options.cache_rows = request.cache_rows;
    options.max_layers = report.num_layers;
    options.max_chunk_tokens = request.pass_tokens;
    options.placement = request.placement;
    options.group = comm::ImagineGroup(rank, num_ranks, request.placement.num_shards);
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const model::MemoryPlan plan,
        model::PlanMemory(report.config, checkpoint, options, {request.batch, request.context}));
    report.ranks.push_back({.place = plan.place, .memory = plan});
  }
  // The fullest rank decides what all can keep.
  InspectReport::Capacity& capacity = report.capacity;
  int64_t sequence = 0;
  double token = 0;
  for (const InspectReport::RankPlan& rank : report.ranks) {
    sequence = std::max(sequence, rank.memory.sequence);
    token = std::max(token, rank.memory.per_token);
  }
  const double places = request.placement.divide_sequences ? request.placement.num_shards : 1;
  capacity.sequences =
      places * static_cast<double>(report.memory.sequence_bytes) / static_cast<double>(sequence);
  capacity.tokens = places * (token > 0 ? report.memory.growth_per_token / token : 1);
  return {};
}

// All placements of as many ranks, and the planner's choice; for the numerics' rows and the context asked
// for.
void ForecastPlacements(const InspectRequest& request, const model::ResolvedCheckpoint& resolved,
                        InspectReport& report) {
  const int num_ranks = request.placement.num_ranks();
  const model::ForecastRequest one = {.num_layers = report.num_layers,
                                      .context = request.context,
                                      .numerics = request.numerics,
                                      .cache_rows = request.cache_rows};
  for (const model::Placement& placement : model::AllPlacements(
           num_ranks, std::span(report.config.layers).first(static_cast<size_t>(report.num_layers)),
           !model::KeepsEntriesWhole(report.config)))
    report.forecasts.push_back(model::MakeForecast(resolved, report.config, placement, one));
  model::RankKind kind = request.rank_kind;
  if (kind.memory == 0) {
    for (const NumaNode& node : report.numa_nodes)
      kind.memory += static_cast<double>(node.memory_bytes) / num_ranks;
    // Without /sys, as in some containers, the machine's as a whole.
    if (report.numa_nodes.empty()) {
      kind.memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                    static_cast<double>(::sysconf(_SC_PAGESIZE)) / num_ranks;
    }
  }
  report.choice = model::ChoosePlacement(report.forecasts, kind, request.batch * request.context);
}

Result<InspectReport::TokenizerFacts> ReadTokenizer(const std::string& directory, const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(tokenizer::Tokenizer loaded, tokenizer::Tokenizer::Load(path));
  InspectReport::TokenizerFacts facts;
  facts.num_ids = loaded.num_ids();
  DSV4_ASSIGN_OR_RETURN(const chat::ChatProfile* profile, session::FindProfile(directory, ""));
  const Result<session::TextModel> text = session::TextModel::ForChat(std::move(loaded), profile);
  if (!text) {
    facts.not_chat = text.error().message();
    return facts;
  }
  facts.chat_revision = profile->revision;
  for (const std::string_view marker : profile->RequiredTokens())
    facts.special_tokens.emplace_back(marker, *text->tokenizer.FindToken(marker));
  for (const tokenizer::StopSet::Entry& entry : text->stop_set.entries())
    facts.stop_tokens.emplace_back(entry.text, entry.id);
  return facts;
}

std::string Bytes(auto bytes) { return ReadableBytes(bytes); }

size_t UsableCpus(const NumaPlan& plan, int node_id) {
  for (const NumaNode& node : plan.nodes) {
    if (node.id == node_id) return node.cpus.size();
  }
  return 0;
}

// "0-1 swa, 2 csa/4 hash, ...": runs of equal layers.
std::string LayerRuns(const model::ModelConfig& config, int64_t num_layers) {
  const auto describe = [&](int64_t i) {
    const model::LayerPlan& layer = config.layers[static_cast<size_t>(i)];
    std::string text(model::AttentionName(layer));
    if (layer.sees_entries()) text += fmt::format("/{}", layer.ratio);
    return text + (layer.router == model::RouterKind::kTokenIds ? " hash" : "");
  };
  std::string text;
  for (int64_t begin = 0; begin < num_layers;) {
    int64_t end = begin + 1;
    while (end < num_layers && describe(end) == describe(begin)) ++end;
    text += text.empty() ? "" : ", ";
    text += end - begin == 1 ? fmt::format("{} {}", begin, describe(begin))
                             : fmt::format("{}-{} {}", begin, end - 1, describe(begin));
    begin = end;
  }
  return text;
}

std::vector<std::pair<std::string_view, int64_t>> Sizes(const model::ModelConfig& c) {
  return {{"vocab_size", c.vocab_size},
          {"hidden_size", c.hidden_size},
          {"num_hidden_layers", c.num_hidden_layers},
          {"max_position_embeddings", c.max_position_embeddings},
          {"num_attention_heads", c.num_attention_heads},
          {"head_dim", c.head_dim},
          {"qk_rope_head_dim", c.qk_rope_head_dim},
          {"q_lora_rank", c.q_lora_rank},
          {"o_groups", c.o_groups},
          {"o_lora_rank", c.o_lora_rank},
          {"sliding_window", c.sliding_window},
          {"index_n_heads", c.index_n_heads},
          {"index_head_dim", c.index_head_dim},
          {"index_topk", c.index_topk},
          {"n_routed_experts", c.n_routed_experts},
          {"num_experts_per_tok", c.num_experts_per_tok},
          {"moe_intermediate_size", c.moe_intermediate_size},
          {"hc_mult", c.hc_mult}};
}

// Every placement of these ranks by arithmetic, with the planner's choice.
std::string ForecastTable(const InspectReport& report) {
  std::string out =
      fmt::format("\nplacements of {}, fullest rank, by arithmetic\n  {:<28}{:>12}{:>12}{:>16}{:>8}\n",
                  Counted(report.ranks.size(), "rank"), "", "weights", "a token", "read for one", "waits");
  for (const model::Forecast& forecast : report.forecasts) {
    out += fmt::format("  {:<28}{:>12}{:>12}{:>16}{:>8}\n", model::ToString(forecast.placement),
                       Bytes(forecast.weights), Bytes(forecast.per_token), Bytes(forecast.read),
                       forecast.exchanges);
  }
  return out + fmt::format(
                   "  least time for one by this arithmetic: {}: {}\n"
                   "  without --placement: expert, but serve on GPUs tensor\n",
                   model::ToString(report.forecasts[report.choice.index].placement), report.choice.why);
}

// Whether the checkpoint has a drafter, and which. A bad one is a line, for the model runs without it.
std::string DescribeDrafter(const std::shared_ptr<const io::Checkpoint>& checkpoint,
                            const model::ModelConfig& config, const model::ResolvedCheckpoint& resolved) {
  const auto dspark = model::FindDspark(checkpoint, config);
  if (!dspark && dspark.error().code() != StatusCode::kNotFound)
    return "DSpark, not whole: " + dspark.error().message();
  const std::string mtp = resolved.mtp ? "MTP: one block" : "";
  if (dspark) {
    const model::DsparkConfig& keys = dspark->config;
    const std::string own = dspark->checkpoint == checkpoint
                                ? ""
                                : fmt::format(", in the folder {} ({})", model::kDsparkFolder,
                                              Bytes(dspark->checkpoint->num_bytes()));
    return fmt::format("DSpark: {}, blocks of {}, taps of layers {}, Markov rank {}{}{}{}",
                       Counted(dspark->resolved.stages.size(), "stage"), keys.block_size,
                       fmt::join(keys.target_layer_ids, ", "), keys.markov_rank, own, mtp.empty() ? "" : "; ",
                       mtp);
  }
  if (resolved.mtp) return mtp;
  return resolved.skipped.contains("mtp.") ? "none: " + resolved.no_mtp : "";
}

}  // namespace

Result<InspectReport> Inspect(const InspectRequest& request) {
  InspectReport report;
  report.directory = request.source.name();
  DSV4_ASSIGN_OR_RETURN(report.config, request.source.Config());
  DSV4_ASSIGN_OR_RETURN(const auto checkpoint, request.source.Checkpoint());
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(*checkpoint, report.config));
  report.num_files = static_cast<int64_t>(checkpoint->files().size());
  report.file_bytes = checkpoint->num_bytes();
  report.num_tensors = static_cast<int64_t>(checkpoint->tensors().size());
  report.num_layers = request.max_layers > 0 ? request.max_layers : report.config.num_hidden_layers;
  if (report.num_layers > report.config.num_hidden_layers) {
    return Error(InvalidArgument(fmt::format("--max-layers: {}, the model has {}", report.num_layers,
                                             report.config.num_hidden_layers)));
  }
  CountWeights(resolved, report);
  for (const auto& [what, counts] : resolved.skipped)
    report.skipped[what] = {counts.num_tensors, counts.num_bytes};
  report.drafter = DescribeDrafter(checkpoint, report.config, resolved);
  report.disagreements = resolved.disagreements;
  if (!report.config.unknown_keys.empty()) report.disagreements.push_back(model::UnknownKeys(report.config));
  if (!request.source.synthetic()) DSV4_TRY(ProveNumbers(request, checkpoint, report));
  DSV4_TRY(PlanMemory(request, checkpoint, report));
  DSV4_TRY(PlanRanks(request, checkpoint, report));
  DSV4_ASSIGN_OR_RETURN(report.numa_nodes, ReadNumaNodes());
  report.numa_plan = PlanNuma(report.numa_nodes, ProcessNumaLimits());
  if (request.placement.num_ranks() > 1) ForecastPlacements(request, resolved, report);
  const std::string tokenizer_path = request.source.text_directory() + "/tokenizer.json";
  std::error_code error;
  if (std::filesystem::exists(tokenizer_path, error)) {
    DSV4_ASSIGN_OR_RETURN(report.tokenizer, ReadTokenizer(request.source.text_directory(), tokenizer_path));
  }
  return report;
}

Json ToJson(const InspectReport& report) {
  Json json;
  json["directory"] = report.directory;
  json["files"] = report.num_files;
  json["file_bytes"] = report.file_bytes;
  json["tensors"] = report.num_tensors;
  for (const auto& [key, value] : Sizes(report.config)) json["config"][std::string(key)] = value;
  json["config"]["routed_scaling_factor"] = report.config.routed_scaling_factor;
  json["config"]["swiglu_limit"] = report.config.swiglu_limit;
  json["config"]["bos_token_ids"] = report.config.bos_token_ids;
  json["config"]["eos_token_ids"] = report.config.eos_token_ids;
  json["layers"] = Json::array();
  for (int64_t i = 0; i < report.num_layers; ++i) {
    const model::LayerPlan& layer = report.config.layers[static_cast<size_t>(i)];
    json["layers"].push_back({{"kind", model::AttentionName(layer)},
                              {"compress_ratio", layer.ratio},
                              {"router", layer.router == model::RouterKind::kTokenIds ? "hash" : "scored"}});
  }
  json["parameters"] = report.num_parameters;
  json["active_parameters"] = report.num_active_parameters;
  json["formats"] = Json::object();
  for (const auto& [module, formats] : report.formats) {
    for (const auto& [format, counts] : formats) {
      json["formats"][module][format] = {{"tensors", counts.num_tensors}, {"bytes", counts.num_bytes}};
    }
  }
  json["drafter"] = report.drafter.empty() ? Json() : Json(report.drafter);
  json["skipped"] = Json::object();
  for (const auto& [what, counts] : report.skipped) {
    json["skipped"][what] = {{"tensors", counts.num_tensors}, {"bytes", counts.num_bytes}};
  }
  json["disagreements"] = report.disagreements;
  json["nvfp4"] = {{"tensors", report.num_nvfp4}, {"lossless_mxfp4", report.num_nvfp4_lossless}};
  if (report.tokenizer) {
    Json& out = json["tokenizer"];
    out["num_ids"] = report.tokenizer->num_ids;
    out["chat_revision"] = report.tokenizer->chat_revision;
    out["special_tokens"] = Json::object();
    for (const auto& [text, id] : report.tokenizer->special_tokens) out["special_tokens"][text] = id;
    out["stop_tokens"] = Json::object();
    for (const auto& [text, id] : report.tokenizer->stop_tokens) out["stop_tokens"][text] = id;
  } else {
    json["tokenizer"] = nullptr;
  }
  json["memory"] = {{"context", report.memory.context},
                    {"batch", report.memory.batch},
                    {"weights_bytes", report.memory.weights_bytes},
                    {"sequence_bytes", report.memory.sequence_bytes},
                    {"sequence_fixed_bytes", report.memory.fixed_bytes},
                    {"bytes_per_token", report.memory.growth_per_token},
                    {"step_bytes", report.memory.step_bytes},
                    {"total_bytes", report.memory.total_bytes()}};
  for (const kv::CachePart& part : report.memory.parts) {
    json["memory"]["cache"].push_back({{"part", part.name},
                                       {"format", ToString(part.format)},
                                       {"fixed_bytes", part.fixed_bytes},
                                       {"bytes_per_token", part.bytes_per_token}});
  }
  if (!report.ranks.empty()) json["placement"] = model::ToString(report.placement);
  for (const InspectReport::RankPlan& rank : report.ranks) {
    json["ranks"].push_back({{"rank", rank.place.rank},
                             {"stage", rank.place.stage()},
                             {"shard", rank.place.shard()},
                             {"first_layer", rank.place.layers.begin},
                             {"num_layers", rank.place.layers.size()},
                             {"weights_bytes", rank.memory.weights},
                             {"sequence_bytes", rank.memory.sequence},
                             {"bytes_per_token", rank.memory.per_token},
                             {"step_bytes", rank.memory.step},
                             {"total_bytes", rank.memory.total()}});
  }
  for (const model::Forecast& forecast : report.forecasts) {
    json["placements"].push_back({{"placement", model::ToString(forecast.placement)},
                                  {"weights_bytes", forecast.weights},
                                  {"bytes_per_token", forecast.per_token},
                                  {"read_bytes", forecast.read},
                                  {"exchanges", forecast.exchanges}});
  }
  if (!report.forecasts.empty()) {
    json["choice"] = {{"placement", model::ToString(report.forecasts[report.choice.index].placement)},
                      {"why", report.choice.why}};
  }
  if (!report.ranks.empty()) {
    json["capacity"] = {{"sequences", report.capacity.sequences}, {"tokens", report.capacity.tokens}};
  }
  json["machine"] = ToJson(report.fit);
  json["numa"] = {{"interleave", report.numa_plan.interleave}, {"reason", report.numa_plan.reason}};
  json["numa"]["nodes"] = Json::array();
  for (const NumaNode& node : report.numa_nodes) {
    json["numa"]["nodes"].push_back({{"id", node.id},
                                     {"cpus", node.cpus.size()},
                                     {"usable_cpus", UsableCpus(report.numa_plan, node.id)},
                                     {"memory_bytes", node.memory_bytes},
                                     {"free_bytes", node.free_bytes}});
  }
  return json;
}

std::string ToText(const InspectReport& report) {
  std::string out;
  const auto line = [&](std::string_view label, const std::string& text) {
    out += fmt::format("{:<12}{}\n", label, text);
  };
  line("checkpoint", report.directory);
  line("files", fmt::format("{}, {}, {}", report.num_files, Bytes(report.file_bytes),
                            Counted(report.num_tensors, "tensor")));
  line("parameters",
       fmt::format("{:.3f} M, {:.3f} M a token", static_cast<double>(report.num_parameters) / 1e6,
                   static_cast<double>(report.num_active_parameters) / 1e6));
  out += "\nconfig\n";
  for (const auto& [key, value] : Sizes(report.config)) out += fmt::format("  {:<26}{}\n", key, value);
  line("\nlayers", LayerRuns(report.config, report.num_layers));
  out += "\nformats\n";
  for (const auto& [module, formats] : report.formats) {
    for (const auto& [format, counts] : formats) {
      out += fmt::format("  {:<36}{:<28}{:>7}  {:>10}\n", module, format, counts.num_tensors,
                         Bytes(counts.num_bytes));
    }
  }
  for (const auto& [what, counts] : report.skipped) {
    out += fmt::format("  {:<36}{:<28}{:>7}  {:>10}\n", what, "skipped", counts.num_tensors,
                       Bytes(counts.num_bytes));
  }
  if (!report.drafter.empty()) line("\ndrafter", report.drafter);
  if (report.num_nvfp4 > 0) {
    line("\nnvfp4", fmt::format("{}, {:.1f} % exact transcodes of MXFP4", Counted(report.num_nvfp4, "linear"),
                                100.0 * static_cast<double>(report.num_nvfp4_lossless) /
                                    static_cast<double>(report.num_nvfp4)));
  }
  for (const std::string& disagreement : report.disagreements) line("warning", disagreement);
  out += "\ntokenizer\n";
  if (!report.tokenizer) {
    out += "  none: no tokenizer.json\n";
  } else {
    out += fmt::format("  {}\n", Counted(report.tokenizer->num_ids, "id"));
    if (!report.tokenizer->not_chat.empty())
      out += fmt::format("  no chat: {}\n", report.tokenizer->not_chat);
    else
      out += fmt::format("  chat format {}\n", report.tokenizer->chat_revision);
    for (const auto& [text, id] : report.tokenizer->special_tokens)
      out += fmt::format("  {:>8}  {}\n", id, text);
    std::string stop;
    for (const auto& [text, id] : report.tokenizer->stop_tokens)
      stop += fmt::format("{}{} ({})", stop.empty() ? "" : ", ", text, id);
    out += fmt::format("  stop set: {}\n", stop);
  }
  out += fmt::format("\nmemory for {} of {}\n", Counted(report.memory.batch, "sequence"),
                     Counted(report.memory.context, "token"));
  out += fmt::format("  {:<26}{} (mapped from the file)\n", "weights", Bytes(report.memory.weights_bytes));
  out += fmt::format("  {:<26}{}, of which {} do not grow, and {} a token\n", "one sequence",
                     Bytes(report.memory.sequence_bytes), Bytes(report.memory.fixed_bytes),
                     Bytes(report.memory.growth_per_token));
  for (const kv::CachePart& part : report.memory.parts) {
    const std::string size = part.fixed_bytes > 0 ? Bytes(part.fixed_bytes)
                                                  : fmt::format("{:.1f} bytes a token", part.bytes_per_token);
    out += fmt::format("    {:<24}{}, {}\n", part.name, size, ToString(part.format));
  }
  out += fmt::format("  {:<26}{}\n", "one step", Bytes(report.memory.step_bytes));
  out += fmt::format("  {:<26}{}\n", "total", Bytes(report.memory.total_bytes()));
  if (!report.ranks.empty()) {
    out += fmt::format("\n{}, placement {}\n  {:>4} {:>5} {:>5}  {:<10}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
                       Counted(report.ranks.size(), "rank"), model::ToString(report.placement), "rank",
                       "stage", "shard", "layers", "weights", "a sequence", "a token", "one step", "total");
  }
  for (const InspectReport::RankPlan& rank : report.ranks) {
    out += fmt::format("  {:>4} {:>5} {:>5}  {:<10}{:>12}{:>12}{:>12}{:>12}{:>12}\n", rank.place.rank,
                       rank.place.stage(), rank.place.shard(),
                       fmt::format("{} to {}", rank.place.layers.begin, rank.place.layers.end - 1),
                       Bytes(rank.memory.weights), Bytes(rank.memory.sequence), Bytes(rank.memory.per_token),
                       Bytes(rank.memory.step), Bytes(rank.memory.total()));
  }
  if (!report.ranks.empty()) {
    out += fmt::format(
        "  with as much memory for states on each as on one rank: {:.2f} times its sequences of {}, "
        "{:.2f} times "
        "its tokens as sequences grow\n",
        report.capacity.sequences, Counted(report.memory.context, "token"), report.capacity.tokens);
    out += ForecastTable(report);
  }
  out += "\nnuma\n";
  for (const NumaNode& node : report.numa_nodes) {
    out +=
        fmt::format("  {:<26}{} CPUs ({} for this process), {}, {} free\n", fmt::format("node {}", node.id),
                    node.cpus.size(), UsableCpus(report.numa_plan, node.id), Bytes(node.memory_bytes),
                    Bytes(node.free_bytes));
  }
  out += fmt::format("  {:<26}{}: {}\n", "interleaving pays", report.numa_plan.interleave ? "yes" : "no",
                     report.numa_plan.reason);
  return out + ToText(report.fit, report.fit_request);
}

}  // namespace dsv4::apps
