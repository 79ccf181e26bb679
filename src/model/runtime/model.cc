// Loading of a model, with the checks of its options; what its functions are put together from.
#include "model/runtime/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "base/program.h"
#include "base/text.h"
#include "comm/collectives.h"
#include "comm/null_group.h"
#include "io/checkpoint.h"
#include "io/mapped_file.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/place_weights.h"
#include "model/checkpoint/stages.h"
#include "model/graph/pass_tail.h"
#include "model/graph/step.h"
#include "model/runtime/draft.h"
#include "model/runtime/follower.h"
#include "model/runtime/origin.h"
#include "model/runtime/run_step.h"
#include "model/runtime/step_queue.h"

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
  DSV4_RETURN_IF_ERROR(CheckPlacement(config, options.placement, options.max_layers));
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
    return InvalidArgument(fmt::format("experts {}: got {}, want those of a layer at least",
                                       ToString(options.experts), Counted(options.experts.slots, "slot")));
  }
  return {};
}

Status CheckGroup(const ops::Backend& backend, const ModelOptions& options) {
  const int size = options.group == nullptr ? 1 : options.group->size();
  if (options.placement.num_ranks() != size) {
    return InvalidArgument(fmt::format("placement {}: for {}, want {}", ToString(options.placement),
                                       Counted(options.placement.num_ranks(), "rank"), size));
  }
  const bool reaches_memory = size == 1 || comm::IsNull(*options.group) ||
                              options.make_device_group != nullptr ||
                              backend.context->memory().device().type == DeviceType::kHost;
  if (reaches_memory) return {};
  return Unimplemented(fmt::format("backend {}: runs on one rank, got {}", backend.name, size));
}

}  // namespace

Model::Model(std::unique_ptr<ModelParts> parts)
    : parts_(std::move(parts)),
      queue_(std::make_unique<StepQueue>(*parts_)),
      follower_(std::make_unique<Follower>(*parts_, *queue_)) {}

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
                                               const ops::Backend& backend, const ModelOptions& options) {
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
  WeightFiles files;
  files.Add(checkpoint, options.experts_from_disk != nullptr);
  if (options.hash_weights) load.digest = &files.first();
  DSV4_ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(checkpoint, config, load));
  if (weights.dspark.has_value() && weights.dspark->checkpoint != checkpoint)
    files.Add(weights.dspark->checkpoint, /*past_cache=*/false);
  if (options.hash_weights) files.Start();
  auto parts = std::make_unique<ModelParts>(std::move(config), std::move(weights), backend, options);
  parts->files = std::move(files);
  DSV4_TRY(parts->Prepare());
  return std::unique_ptr<Model>(new Model(std::move(parts)));
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
  if (!model) return model;
  ModelParts& part = *(*model)->parts_;
  DSV4_TRY(part.group.Enter(
      part.options, part.place(), *part.layout,
      GroupRecipeOf(part.config, part.weights, part.num_layers, part.options, backend.policy), part.files));
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
    return Error(InvalidArgument(fmt::format("weights in memory: got {} and max_layers {}, want {} and 0",
                                             Counted(num_layers, "layer"), options.max_layers,
                                             config.num_hidden_layers)));
  }
  DSV4_TRY(PlaceLoaded(
      backend, {.experts = options.experts, .expert_order = options.expert_order, .checkpoint = nullptr},
      weights));
  auto parts = std::make_unique<ModelParts>(std::move(config), std::move(weights), backend, options);
  DSV4_TRY(parts->Prepare());
  return std::unique_ptr<Model>(new Model(std::move(parts)));
}

Model::~Model() {
  // An error here means that the others know by themselves.
  if (parts_->group.leads()) (void)Dismiss();
}

std::span<const kv::CacheLayout> Model::stage_layouts() const {
  return parts_->group.entered() ? parts_->group.stage_layouts() : std::span(parts_->layout.get(), 1);
}

int64_t Model::MostStateBytes(int64_t length) const {
  int64_t most = 0;
  for (const kv::CacheLayout& layout : stage_layouts()) most = std::max(most, kv::StateBytes(layout, length));
  return most;
}

Result<kv::SequenceState> Model::NewSequence() const {
  // A plan has all sequences.
  const ModelGroup& group = parts_->group;
  return parts_->NewSequenceAt(group.leads() ? group.journal()->FreestPlace() : place().shard());
}

uint64_t Model::recipe() const { return RecipeOf(parts_->config, parts_->options, parts_->num_layers); }

std::optional<uint64_t> Model::weights_place() const { return parts_->files.place(); }

Status Model::FilesUnchanged() const {
  const bool borrows = parts_->weights.checkpoint != nullptr || parts_->config.engram.has_value();
  return borrows ? parts_->files.Unchanged() : Status();
}

Result<uint64_t> Model::Origin(std::chrono::milliseconds at_most) const {
  DSV4_ASSIGN_OR_RETURN(const uint64_t weights, parts_->files.Wait(at_most));
  const std::string facts = fmt::format("{:016x}|{:016x}|{:016x}|{:016x}|{}|{}", weights, recipe(),
                                        parts_->layout->GeometryFingerprint(), ProgramHash(),
                                        parts_->backend.name, parts_->backend.modes);
  return XXH3_64bits(facts.data(), facts.size());
}

Result<kv::Snapshot> Model::DeserializeSnapshot(std::span<const std::byte> bytes, uint64_t origin) const {
  if (parts_->group.entered())
    return Error(Unimplemented("snapshot: this rank of several has a part of the state only"));
  return kv::Snapshot::Deserialize(bytes, origin, parts_->layout, parts_->backend.context->memory(),
                                   parts_->backend.context->stream());
}

Result<StepOutput> Model::Step(std::span<const SequenceChunk> chunks, Observer* observer) {
  DSV4_TRY(queue_->CheckChosen());
  DSV4_TRY(CheckChunks(*parts_, chunks));
  if (parts_->group.entered()) DSV4_TRY(AnnounceStep(*parts_, chunks));
  return RunStep(*parts_, chunks, {}, observer);
}

int64_t Model::tail_rows() const { return TailRows(parts_->MakeGraph(), *parts_->layout); }

bool Model::can_queue() const { return queue_->works(); }

Result<Buffer> Model::UploadAllowedTokens(std::span<const uint8_t> allowed) const {
  if (static_cast<int64_t>(allowed.size()) != parts_->config.vocab_size) {
    return Error(InvalidArgument(
        fmt::format("allowed tokens: got {}, want {}", allowed.size(), parts_->config.vocab_size)));
  }
  ops::OpContext& context = *parts_->backend.context;
  DSV4_ASSIGN_OR_RETURN(Buffer buffer, context.memory().Allocate(allowed.size()));
  DSV4_TRY(context.memory().CopyFromHost(buffer.data(), allowed.data(), allowed.size(), context.stream()));
  return buffer;
}

Result<std::unique_ptr<QueuedStep>> Model::QueueDecode(std::span<const DecodeChunk> chunks,
                                                       const Buffer& allowed, bool chooses_later) {
  return queue_->Queue(chunks, allowed, chooses_later);
}

Status Model::Choose(QueuedStep& step, std::span<const sampling::TokenRule> rules) {
  return queue_->Choose(step, rules);
}

ops::ReplayCounters Model::replay_counters() const {
  const ops::StepReplayer* const replayer = parts_->backend.context->replayer();
  return replayer == nullptr ? ops::ReplayCounters() : replayer->replay_counters();
}

Result<std::vector<std::vector<int32_t>>> Model::Draft(std::span<const DraftChunk> chunks,
                                                       const Buffer& allowed) {
  DSV4_TRY(queue_->CheckChosen());
  return DraftOnward(*parts_, chunks, allowed);
}

Status Model::Follow() { return follower_->Run(); }

Status Model::Dismiss() { return parts_->group.Dismiss(); }

}  // namespace dsv4::model
