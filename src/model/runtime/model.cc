// Members of Model that load, check and step: options, groups, memory and states.
#include "model/runtime/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/program.h"
#include "comm/collectives.h"
#include "comm/null_group.h"
#include "io/checkpoint.h"
#include "io/mapped_file.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/place_weights.h"
#include "model/config/cache_geometry.h"
#include "model/config/rope_table.h"
#include "model/graph/engram.h"
#include "model/graph/pass_tail.h"
#include "model/graph/step.h"
#include "model/runtime/origin.h"
#include "model/runtime/step_message.h"

namespace dsv4::model {
namespace {

Status CheckOps(const ops::Backend& backend) {
  const std::vector<std::string> missing = ops::MissingOps(backend.table);
  if (missing.empty()) return {};
  return {StatusCode::kUnimplemented, fmt::format("backend {} lacks ops that the model needs: {}",
                                                  backend.name, fmt::join(missing, ", "))};
}

Status CheckShardOps(const ops::Backend& backend, const Placement& placement) {
  const std::vector<std::string> missing = ops::MissingShardOps(backend.table);
  if (placement.num_shards == 1 || missing.empty()) return {};
  return Unimplemented(fmt::format("backend {} lacks ops that placement {} needs: {}", backend.name,
                                   ToString(placement), fmt::join(missing, ", ")));
}

Status CheckPositive(std::string_view name, int64_t value) {
  if (value > 0) return {};
  return InvalidArgument(fmt::format("model options, {}: got {}, want at least 1", name, value));
}

// Candidate blocks are chosen among all entries: every shard has all rows, which are few bytes a token there.
bool KeepsEntriesWhole(const ModelConfig& config) { return config.candidate_topk_blocks > 0; }

// Configurations that the graph can run of what a configuration may say.
Status CheckSupported(const ModelConfig& config, const ModelOptions& options) {
  DSV4_RETURN_IF_ERROR(CheckPlans(config.layers, "model"));
  DSV4_RETURN_IF_ERROR(CheckPositive("max_chunk_tokens", options.max_chunk_tokens));
  if (options.max_rewind_tokens < 0) {
    return InvalidArgument(
        fmt::format("model options, max_rewind_tokens: got {}, want 0 or more", options.max_rewind_tokens));
  }
  if (options.max_gathered_terms < 0) {
    return InvalidArgument(
        fmt::format("model options, max_gathered_terms: got {}, want 0 or more", options.max_gathered_terms));
  }
  if (options.max_layers < 0 || options.max_layers > config.num_hidden_layers) {
    return InvalidArgument(fmt::format("model options, max_layers: got {}, want 1 to {}, or 0 for all",
                                       options.max_layers, config.num_hidden_layers));
  }
  if (config.hc_mult > ops::kMaxHcMult) {
    return {StatusCode::kUnimplemented,
            fmt::format("config, hc_mult: got {}, want at most {}", config.hc_mult, ops::kMaxHcMult)};
  }
  if (KeepsEntriesWhole(config) && options.placement.divide_entries &&
      options.placement.experts == ExpertPlacement::kById) {
    return Unimplemented(
        fmt::format("placement {}: candidate blocks are chosen among all entries, want them on every shard: "
                    "expert or tensor",
                    ToString(options.placement)));
  }
  if (options.numerics == Numerics::kPlain) return {};
  if (!config.hadamard_keys) {
    for (const auto& [name, rows, width] :
         {std::tuple{"head_dim", config.window_rows, config.head_dim},
          std::tuple{"head_dim", config.entry_rows, config.head_dim},
          std::tuple{"index_head_dim", config.key_rows, config.index_head_dim}}) {
      if (width % rows.group == 0) continue;
      return InvalidArgument(
          fmt::format("config, {}: got {}, release numerics want a multiple of {}; run it with "
                      "plain numerics",
                      name, width, rows.group));
    }
    return {};
  }
  // Release numerics round cache rows in groups; the groups must fit.
  const int64_t group = ops::SimulateFp8Args{}.group;
  if (config.nope_head_dim() % group != 0) {
    return InvalidArgument(
        fmt::format("config, head_dim - qk_rope_head_dim: got {}, release numerics want a multiple of {}; "
                    "run it with plain numerics",
                    config.nope_head_dim(), group));
  }
  const auto dim = static_cast<uint64_t>(config.index_head_dim);
  if (dim != 0 && (!std::has_single_bit(dim) || dim % ops::kIndexerFp4Group != 0)) {
    return InvalidArgument(
        fmt::format("config, index_head_dim: got {}, release numerics want a power of two and a multiple "
                    "of {}; run it with plain numerics",
                    dim, ops::kIndexerFp4Group));
  }
  return {};
}

Status CheckExperts(const ModelConfig& config, const ModelOptions& options) {
  if (options.experts.all_resident()) return {};
  if (options.placement.num_shards > 1) {
    return Unimplemented(fmt::format("experts {}: on ranks that divide layers, want ranks with whole layers",
                                     ToString(options.experts)));
  }
  if (options.experts.total() != config.n_routed_experts) {
    return InvalidArgument(fmt::format("experts {}: got {}, want {} of every layer",
                                       ToString(options.experts), options.experts.total(),
                                       config.n_routed_experts));
  }
  if (!options.sizes_only && options.experts.slots < options.experts.cached) {
    return InvalidArgument(fmt::format("experts {}: got {} slots, want those of a layer at least",
                                       ToString(options.experts), options.experts.slots));
  }
  return {};
}

Status CheckGroup(const ops::Backend& backend, const ModelOptions& options) {
  const int size = options.group == nullptr ? 1 : options.group->size();
  if (options.placement.num_ranks() != size) {
    return InvalidArgument(fmt::format("placement {}: for {} ranks, want {}", ToString(options.placement),
                                       options.placement.num_ranks(), size));
  }
  const bool reaches_memory = size == 1 || comm::IsNull(*options.group) ||
                              options.make_device_group != nullptr ||
                              backend.context->memory().device().type == DeviceType::kHost;
  if (reaches_memory) return {};
  return Unimplemented(fmt::format("backend {}: runs on one rank, got {}", backend.name, size));
}

std::shared_ptr<const kv::CacheLayout> MakeCacheLayout(const ModelConfig& config,
                                                       std::span<const LayerPlan> layers,
                                                       const ModelWeights& weights,
                                                       const ModelOptions& options) {
  auto layout =
      std::make_shared<kv::CacheLayout>(CacheGeometry(config, layers, options.numerics, options.cache_rows,
                                                      options.max_chunk_tokens, options.max_rewind_tokens));
  if (weights.mtp.has_value() && weights.place.first_stage())
    layout->layers.push_back(DraftBlockGeometry(config));
  for (size_t i = 0; weights.dspark.has_value() && i < weights.dspark->stages.size(); ++i)
    layout->layers.push_back(DsparkStageGeometry(config, weights.dspark->config, i == 0));
  if (config.engram.has_value()) layout->look_back = config.engram->max_ngram_size - 1;
  layout->shard = weights.place.entries();
  if (options.placement.divide_sequences) layout->num_places = options.placement.num_shards;
  return layout;
}

uint64_t NextModelNumber() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

int64_t NumLogitsRows(const SequenceChunk& chunk) {
  switch (chunk.logits) {
    case LogitsRows::kNone:
      return 0;
    case LogitsRows::kLast:
      return 1;
    case LogitsRows::kAll:
      return static_cast<int64_t>(chunk.tokens.size());
  }
  return 0;
}

}  // namespace

Model::Model(ModelConfig config, ModelWeights weights, const ops::Backend& backend,
             const ModelOptions& options)
    : number_(NextModelNumber()),
      config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(backend),
      options_(options),
      arena_(backend.context->memory()),
      files_(std::make_unique<WeightFiles>()) {}

Result<std::unique_ptr<Model>> Model::Load(const std::string& directory, const ops::Backend& backend,
                                           const ModelOptions& options) {
  DSV4_TRY(CheckOps(backend));
  DSV4_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(directory));
  DSV4_TRY(CheckSupported(config, options));
  DSV4_TRY(CheckExperts(config, options));
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const io::Checkpoint> checkpoint, io::Checkpoint::Open(directory));
  return FromCheckpoint(std::move(config), std::move(checkpoint), backend, options);
}

Result<std::unique_ptr<Model>> Model::MakePart(ModelConfig config,
                                               std::shared_ptr<const io::Checkpoint> checkpoint,
                                               const ops::Backend& backend, const ModelOptions& given) {
  ModelOptions options = given;
  if (KeepsEntriesWhole(config) && options.placement.experts == ExpertPlacement::kByColumns)
    options.placement.divide_entries = false;
  DSV4_TRY(CheckOps(backend));
  DSV4_TRY(CheckSupported(config, options));
  DSV4_TRY(CheckExperts(config, options));
  DSV4_TRY(CheckGroup(backend, options));
  DSV4_TRY(CheckShardOps(backend, options.placement));
  if (options.experts_from_disk != nullptr) {
    for (const io::MappedFile& file : checkpoint->files()) io::AdviseScattered(file.bytes());
    options.experts_from_disk->Start();
  }
  LoadOptions load{
      .numerics = options.numerics,
      .max_layers = std::nullopt,
      .mtp = options.mtp,
      .dspark = options.dspark,
      .draft_head = options.draft_head,
      .placement = options.placement,
      .rank = options.group == nullptr ? 0 : options.group->rank(),
      .loaded = [&, place = PlaceOptions{.experts = options.experts,
                                         .expert_order = options.expert_order,
                                         .checkpoint = options.sizes_only ? nullptr : checkpoint.get(),
                                         .copy_all_but_experts = options.experts_from_disk != nullptr}](
                    ModelWeights& weights) { return PlaceLoaded(backend, place, weights); },
      .numbers_pass = backend.context->memory().device().type != DeviceType::kHost,
      .experts_from_disk = options.experts_from_disk != nullptr,
      .sizes_only = options.sizes_only,
      .progress = options.progress};
  if (options.max_layers > 0) load.max_layers = options.max_layers;
  auto files = std::make_unique<WeightFiles>();
  files->Add(checkpoint, options.experts_from_disk != nullptr);
  if (options.hash_weights) load.digest = &files->first();
  DSV4_ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(checkpoint, config, load));
  if (weights.dspark.has_value() && weights.dspark->checkpoint != checkpoint)
    files->Add(weights.dspark->checkpoint, /*past_cache=*/false);
  if (options.hash_weights) files->Start();
  std::unique_ptr<Model> model(new Model(std::move(config), std::move(weights), backend, options));
  model->files_ = std::move(files);
  DSV4_TRY(model->Prepare());
  return model;
}

Result<std::unique_ptr<Model>> Model::FromCheckpoint(ModelConfig config,
                                                     std::shared_ptr<const io::Checkpoint> checkpoint,
                                                     const ops::Backend& backend,
                                                     const ModelOptions& options) {
  auto model = MakePart(std::move(config), std::move(checkpoint), backend, options);
  if (options.group == nullptr) return model;
  // Reading weights takes as long as it takes; then one that failed fails all.
  DSV4_TRY(options.group->Barrier(comm::Wait::kForever));
  DSV4_TRY(comm::Agree(*options.group, model ? Status() : model.error()));
  if (model) DSV4_TRY((*model)->EnterGroup());
  return model;
}

Result<std::unique_ptr<Model>> Model::FromWeights(ModelConfig config, ModelWeights weights,
                                                  const ops::Backend& backend, const ModelOptions& options) {
  DSV4_TRY(CheckOps(backend));
  DSV4_TRY(CheckSupported(config, options));
  DSV4_TRY(CheckExperts(config, options));
  if (options.group != nullptr)
    return Error(Unimplemented("weights in memory: in a group, want a checkpoint"));
  const auto num_layers = static_cast<int64_t>(weights.layers.size());
  weights.place.layers = {0, num_layers};
  if (options.max_layers != 0 || num_layers != config.num_hidden_layers) {
    return Error(
        InvalidArgument(fmt::format("weights in memory: got {} layers and max_layers {}, want {} and 0",
                                    num_layers, options.max_layers, config.num_hidden_layers)));
  }
  DSV4_TRY(PlaceLoaded(
      backend, {.experts = options.experts, .expert_order = options.expert_order, .checkpoint = nullptr},
      weights));
  std::unique_ptr<Model> model(new Model(std::move(config), std::move(weights), backend, options));
  DSV4_TRY(model->Prepare());
  return model;
}

Model::~Model() {
  // An error here means that the others know by themselves.
  if (in_group_ && journal_ != nullptr) (void)Dismiss();
}

Status Model::Prepare() {
  num_layers_ = options_.max_layers > 0 ? options_.max_layers : config_.num_hidden_layers;
  if (!backend_.packs_rows) options_.cache_rows = CacheRows::kWide;
  layers_ = PlansOfStage(config_.layers, weights_.place.layers);
  if (config_.engram.has_value() && !options_.sizes_only) {
    if (options_.token_classes.empty()) {
      return InvalidArgument(
          "config, engram_layer_ids: rows of n-gram tables are found by classes of tokens, got no tokenizer");
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(engram_, MakeEngramLookup(config_, weights_, options_.token_classes));
  }
  layout_ = MakeCacheLayout(config_, layers_, weights_, options_);
  if (options_.group != nullptr) {
    group_recipe_ = GroupRecipeOf(config_, weights_, num_layers_, options_, backend_.policy);
  }
  DSV4_RETURN_IF_ERROR(kv::Validate(*layout_));
  stage_layouts_ = {*layout_};
  DSV4_RETURN_IF_ERROR(UploadRopeTables());
  // On a device all weights are copies, but for those of experts on the host, which borrow from the mapping.
  const bool on_device = backend_.context->memory().device().type != DeviceType::kHost;
  if (on_device && options_.experts.host == 0) weights_.checkpoint.reset();
  return {};
}

Status Model::UploadRopeTables() {
  Memory& memory = backend_.context->memory();
  std::vector<float> tables = RopeFrequencies(config_.rope, config_.qk_rope_head_dim);
  const auto count = static_cast<int64_t>(tables.size());
  const std::vector<float> compress = RopeFrequencies(config_.compress_rope, config_.qk_rope_head_dim);
  tables.insert(tables.end(), compress.begin(), compress.end());
  const size_t num_bytes = tables.size() * sizeof(float);
  DSV4_ASSIGN_OR_RETURN_STATUS(rope_buffer_, memory.Allocate(num_bytes));
  DSV4_RETURN_IF_ERROR(
      memory.CopyFromHost(rope_buffer_.data(), tables.data(), num_bytes, backend_.context->stream()));
  const TensorView both =
      TensorView::Contiguous(rope_buffer_.data(), DType::kF32, {2 * count}, memory.device());
  rope_plain_ = both.Rows(0, count);
  rope_compress_ = both.Rows(count, 2 * count);
  return {};
}

int64_t Model::MostStateBytes(int64_t length) const {
  int64_t most = 0;
  for (const kv::CacheLayout& layout : stage_layouts_) most = std::max(most, kv::StateBytes(layout, length));
  return most;
}

Result<kv::SequenceState> Model::NewSequence() const {
  // A plan has all sequences.
  return NewSequenceAt(journal_ == nullptr ? place().shard() : journal_->FreestPlace());
}

Result<kv::SequenceState> Model::NewSequenceAt(int64_t place) const {
  const kv::StateHome home = layout_->num_places == 1
                                 ? kv::StateHome()
                                 : kv::StateHome{static_cast<int>(place), place == this->place().shard()};
  return kv::SequenceState::Create(layout_, backend_.context->memory(), backend_.context->stream(), journal_,
                                   home);
}

uint64_t Model::recipe() const { return RecipeOf(config_, options_, num_layers_); }

std::optional<uint64_t> Model::weights_place() const { return files_->place(); }

Result<uint64_t> Model::Origin(std::chrono::milliseconds at_most) const {
  DSV4_ASSIGN_OR_RETURN(const uint64_t weights, files_->Wait(at_most));
  const std::string facts =
      fmt::format("{:016x}|{:016x}|{:016x}|{:016x}|{}|{}", weights, recipe(), layout_->GeometryFingerprint(),
                  ProgramHash(), backend_.name, backend_.modes);
  return XXH3_64bits(facts.data(), facts.size());
}

Result<kv::Snapshot> Model::DeserializeSnapshot(std::span<const std::byte> bytes, uint64_t origin) const {
  if (in_group_) return Error(Unimplemented("snapshot: this rank of several has a part of the state only"));
  return kv::Snapshot::Deserialize(bytes, origin, layout_, backend_.context->memory(),
                                   backend_.context->stream());
}

Status Model::CheckChunks(std::span<const SequenceChunk> chunks) const {
  if (chunks.empty()) return InvalidArgument("step: got no chunks, want at least one");
  for (size_t i = 0; i < chunks.size(); ++i) {
    const SequenceChunk& chunk = chunks[i];
    const std::string where = fmt::format("step, chunk {}", i);
    if (chunk.state == nullptr) return InvalidArgument(where + ": the sequence state is null");
    if (&chunk.state->layout() != layout_.get()) {
      return InvalidArgument(where + ": the sequence state was made by another model");
    }
    for (size_t k = 0; k < i; ++k) {
      if (chunks[k].state == chunk.state) {
        return InvalidArgument(fmt::format("{}: the sequence state is already in chunk {}", where, k));
      }
    }
    DSV4_RETURN_IF_ERROR(
        chunk.state->CheckAppend(static_cast<int64_t>(chunk.tokens.size())).WithContext(where));
    if (chunk.num_following < 0) {
      return InvalidArgument(
          fmt::format("{}: num_following: got {}, want 0 or more", where, chunk.num_following));
    }
    const int64_t num_logits = NumLogitsRows(chunk);
    const int64_t first_logits = chunk.state->length() + std::ssize(chunk.tokens) - num_logits;
    if (num_logits > 0 && !chunk.state->whole() && first_logits < chunk.state->whole_from()) {
      return FailedPrecondition(fmt::format(
          "{}: got logits wanted of position {}, but rows in front were left out: want none in front of {}",
          where, first_logits, chunk.state->whole_from()));
    }
    for (size_t t = 0; t < chunk.tokens.size(); ++t) {
      const int32_t token = chunk.tokens[t];
      if (token < 0 || token >= config_.vocab_size) {
        return InvalidArgument(
            fmt::format("{}, token {}: got id {}, want 0 to {}", where, t, token, config_.vocab_size - 1));
      }
    }
  }
  return {};
}

bool Model::can_queue() const {
  return options_.placement.num_stages == 1 && config_.vocab_size <= sampling::kMaxChoices;
}

Result<StepOutput> Model::Step(std::span<const SequenceChunk> chunks, Observer* observer) {
  DSV4_TRY(CheckChosen());
  DSV4_TRY(CheckChunks(chunks));
  if (in_group_) DSV4_TRY(Announce(chunks));
  return RunStep(chunks, {}, observer);
}

Result<StepOutput> Model::RunStep(std::span<const SequenceChunk> chunks, const Status& ready,
                                  Observer* observer) {
  StepOutput output;
  output.vocab_size = config_.vocab_size;
  std::vector<int64_t> lengths;
  int64_t num_rows = 0;
  for (const SequenceChunk& chunk : chunks) {
    lengths.push_back(chunk.state == nullptr ? 0 : chunk.state->length());
    output.row_begin.push_back(num_rows);
    num_rows += NumLogitsRows(chunk);
  }
  output.row_begin.push_back(num_rows);
  Status status = ready;
  if (place().rank == 0 && num_rows > 0 && status.ok()) {  // Rank 0 samples.
    const auto count = static_cast<size_t>(num_rows * config_.vocab_size);
    Result<Buffer> owner = backend_.context->memory().AllocateOnHost(count * sizeof(float));
    if (owner) {
      output.owner = std::move(*owner);
      output.logits = {static_cast<const float*>(output.owner.data()), count};
    } else {
      status = owner.error();  // Error that the other ranks hear of before they begin.
    }
  }

  // The host's own memory runs out as the device's does: what was begun is taken back, and others may give some back.
  try {
    status = RunPasses(chunks, status, output, observer);
  } catch (const std::bad_alloc&) {
    status = ResourceExhausted("step: memory ran out");
    if (in_group_) status = EndGroup(status);
  }
  if (status.ok() && !io::LostFile().ok()) {
    // Zeros stood in for weights. The file's name is for the log, not for the client.
    status = Status(StatusCode::kUnavailable, "step: the model's weights cannot be read any more");
    if (in_group_) status = EndGroup(status);
  }
  if (status.ok()) return output;
  std::vector<size_t> poisoned;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].state == nullptr) continue;
    chunks[i].state->RollBack(lengths[i]);
    if (chunks[i].state->poisoned()) poisoned.push_back(i);
  }
  if (poisoned.empty()) return Error(std::move(status));
  return Error(
      Status(status.code(), fmt::format("{} (the sequences of chunks {} lost history and must be reset)",
                                        status.message(), fmt::join(poisoned, ", "))));
}

Graph Model::MakeGraph() const {
  return {.number = number_,
          .config = config_,
          .weights = weights_,
          .layers = layers_,
          .backend = backend_,
          .rope = {.plain = rope_plain_, .compress = rope_compress_},
          .numerics = options_.numerics,
          .clamp_shared_expert = options_.clamp_shared_expert,
          .group = device_group_ != nullptr ? device_group_.get() : options_.group.get(),
          .shards = {.group = device_shards_ != nullptr ? device_shards_.get() : shards_.get(),
                     .hosts = shards_.get(),
                     .entries = place().entries(),
                     .max_gathered_terms = options_.max_gathered_terms},
          .engram = engram_.get(),
          .reads = options_.placement.num_shards == 1 ? options_.experts_from_disk.get() : nullptr,
          .layer_rows = &layer_rows_};
}

int64_t Model::tail_rows() const { return TailRows(MakeGraph(), *layout_); }

Status Model::RunPasses(std::span<const SequenceChunk> chunks, const Status& ready, StepOutput& output,
                        Observer* observer) {
  const Graph graph = MakeGraph();
  std::vector<size_t> done(chunks.size(), 0);
  for (;;) {
    // Fills a pass with the tokens that are left, in order of the chunks.
    std::vector<PassChunk> pass;
    auto room = static_cast<size_t>(options_.max_chunk_tokens);
    Status status = ready;
    for (size_t i = 0; i < chunks.size() && room > 0 && status.ok(); ++i) {
      const SequenceChunk& chunk = chunks[i];
      const size_t begin = done[i];
      const size_t count = std::min(room, chunk.tokens.size() - begin);
      if (count == 0) continue;
      status =
          chunk.state->BeginAppend(static_cast<int64_t>(count)).WithContext(fmt::format("step, chunk {}", i));
      done[i] += count;
      room -= count;
      // Logits are wanted of the chunk's last rows, and of those the ones that fall into this pass.
      const int64_t num_wanted = NumLogitsRows(chunk);
      const auto first_wanted = static_cast<int64_t>(chunk.tokens.size()) - num_wanted;
      const int64_t first_here = std::max(first_wanted, static_cast<int64_t>(begin));
      const int64_t num_here = std::max<int64_t>(0, static_cast<int64_t>(done[i]) - first_here);
      const int64_t output_row = output.row_begin[i] + first_here - first_wanted;
      const int64_t behind = std::ssize(chunk.tokens) - static_cast<int64_t>(begin);
      pass.push_back({.state = chunk.state,
                      .tokens = chunk.tokens.subspan(begin, count),
                      .chunk = static_cast<int32_t>(i),
                      .num_logits_rows = num_here,
                      .logits = output.logits.empty() ? nullptr
                                                      : static_cast<float*>(output.owner.data()) +
                                                            output_row * config_.vocab_size,
                      .exact_from = ExactFrom(*chunk.state, behind, num_wanted, chunk.num_following)});
    }
    if (status.ok() && pass.empty()) return {};
    SortByPlace(pass);
    // Memory is asked for before anything is computed, so a rank without it loses no work.
    if (in_group_) status = comm::Agree(*options_.group, status);
    DSV4_RETURN_IF_ERROR(status);
    PassArrays arrays;
    status = RunPass(graph, arena_, pass, nullptr, arrays, observer);
    const bool has_waited = std::ranges::any_of(
        pass, [](const PassChunk& chunk) { return chunk.num_logits_rows > 0 && chunk.logits != nullptr; });
    // A host that has read logits has waited for the device.
    if (status.ok()) status = has_waited ? CheckDeviceGroups() : EndOnDevice();
    if (!status.ok() && in_group_) return EndGroup(status);
    DSV4_RETURN_IF_ERROR(status);
    for (const PassChunk& chunk : pass) chunk.state->CommitAppend();
  }
}

}  // namespace dsv4::model
