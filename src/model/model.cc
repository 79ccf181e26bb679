#include "model/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "io/checkpoint.h"
#include "model/cache_geometry.h"
#include "model/place_weights.h"
#include "model/rope_table.h"
#include "model/step.h"

namespace dsv4::model {
namespace {

Status CheckOps(const ops::Backend& backend) {
  const std::vector<std::string> missing = ops::MissingOps(backend.table);
  if (missing.empty()) return {};
  return {StatusCode::kUnimplemented, fmt::format("backend {} lacks ops that the model needs: {}",
                                                  backend.name, fmt::join(missing, ", "))};
}

Status CheckPositive(std::string_view name, int64_t value) {
  if (value > 0) return {};
  return InvalidArgument(fmt::format("model options, {}: got {}, want at least 1", name, value));
}

// What the graph can run of what a configuration may say.
Status CheckSupported(const ModelConfig& config, const ModelOptions& options) {
  DSV4_RETURN_IF_ERROR(CheckPositive("max_chunk_tokens", options.max_chunk_tokens));
  if (options.max_rewind_tokens < 0) {
    return InvalidArgument(
        fmt::format("model options, max_rewind_tokens: got {}, want 0 or more", options.max_rewind_tokens));
  }
  if (options.max_layers < 0 || options.max_layers > config.num_hidden_layers) {
    return InvalidArgument(fmt::format("model options, max_layers: got {}, want 1 to {}, or 0 for all",
                                       options.max_layers, config.num_hidden_layers));
  }
  if (config.hc_mult > ops::kMaxHcMult) {
    return {StatusCode::kUnimplemented,
            fmt::format("config, hc_mult: got {}, want at most {}", config.hc_mult, ops::kMaxHcMult)};
  }
  if (options.numerics == Numerics::kPlain) return {};
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

// Whoever computed rows that a sequence keeps: what changes them changes this.
uint64_t ModelFingerprint(const ModelConfig& config, const ModelWeights& weights,
                          const ModelOptions& options) {
  const auto rope = [](const RopeConfig& r) {
    return fmt::format("{} {} {} {} {} {}", r.theta, r.yarn, r.factor, r.original_max_position_embeddings,
                       r.beta_fast, r.beta_slow);
  };
  const std::string facts = fmt::format(
      "{:016x}|{}|{}|{}|{} {} {} {} {}|{} {} {} {}|{}|{}", WeightsFingerprint(weights), weights.layers.size(),
      options.numerics == Numerics::kRelease, options.clamp_shared_expert, config.num_attention_heads,
      config.qk_rope_head_dim, config.index_n_heads, config.index_topk, config.num_experts_per_tok,
      config.routed_scaling_factor, config.swiglu_limit, config.hc_eps, config.rms_norm_eps,
      rope(config.rope), rope(config.compress_rope));
  return XXH3_64bits(facts.data(), facts.size());
}

std::shared_ptr<const kv::CacheLayout> MakeCacheLayout(const ModelConfig& config, const ModelWeights& weights,
                                                       const ModelOptions& options) {
  auto layout = std::make_shared<kv::CacheLayout>(
      CacheGeometry(config, static_cast<int64_t>(weights.layers.size()), options.numerics,
                    options.max_chunk_tokens, options.max_rewind_tokens));
  layout->model_fingerprint = ModelFingerprint(config, weights, options);
  return layout;
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
    : config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(backend),
      options_(options),
      arena_(backend.context->memory()) {}

Result<std::unique_ptr<Model>> Model::Load(const std::string& directory, const ops::Backend& backend,
                                           const ModelOptions& options) {
  DSV4_TRY(CheckOps(backend));
  DSV4_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(directory));
  DSV4_TRY(CheckSupported(config, options));
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const io::Checkpoint> checkpoint, io::Checkpoint::Open(directory));
  return FromCheckpoint(std::move(config), std::move(checkpoint), backend, options);
}

Result<std::unique_ptr<Model>> Model::FromCheckpoint(ModelConfig config,
                                                     std::shared_ptr<const io::Checkpoint> checkpoint,
                                                     const ops::Backend& backend,
                                                     const ModelOptions& options) {
  DSV4_TRY(CheckOps(backend));
  DSV4_TRY(CheckSupported(config, options));
  LoadOptions load{.numerics = options.numerics, .max_layers = std::nullopt, .progress = options.progress};
  if (options.max_layers > 0) load.max_layers = options.max_layers;
  DSV4_ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(std::move(checkpoint), config, load));
  std::unique_ptr<Model> model(new Model(std::move(config), std::move(weights), backend, options));
  DSV4_TRY(model->Prepare());
  return model;
}

Result<std::unique_ptr<Model>> Model::FromWeights(ModelConfig config, ModelWeights weights,
                                                  const ops::Backend& backend, const ModelOptions& options) {
  DSV4_TRY(CheckOps(backend));
  DSV4_TRY(CheckSupported(config, options));
  const auto num_layers = static_cast<int64_t>(weights.layers.size());
  if (options.max_layers != 0 || num_layers != config.num_hidden_layers) {
    return Error(
        InvalidArgument(fmt::format("weights in memory: got {} layers and max_layers {}, want {} and 0",
                                    num_layers, options.max_layers, config.num_hidden_layers)));
  }
  std::unique_ptr<Model> model(new Model(std::move(config), std::move(weights), backend, options));
  DSV4_TRY(model->Prepare());
  return model;
}

Status Model::Prepare() {
  layout_ = MakeCacheLayout(config_, weights_, options_);
  DSV4_RETURN_IF_ERROR(kv::Validate(*layout_));
  DSV4_RETURN_IF_ERROR(UploadRopeTables());
  DSV4_RETURN_IF_ERROR(PlaceWeights(backend_, weights_));
  // On a device everything is a copy; the host's memory is better used otherwise.
  if (backend_.context->memory().device().type != DeviceType::kHost) weights_.checkpoint.reset();
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

Result<kv::SequenceState> Model::NewSequence() const {
  return kv::SequenceState::Create(layout_, backend_.context->memory(), backend_.context->stream());
}

Result<kv::Snapshot> Model::DeserializeSnapshot(std::span<const std::byte> bytes) const {
  return kv::Snapshot::Deserialize(bytes, layout_, backend_.context->memory(), backend_.context->stream());
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

Result<StepOutput> Model::Step(std::span<const SequenceChunk> chunks, Observer* observer) {
  DSV4_TRY(CheckChunks(chunks));
  StepOutput output;
  output.vocab_size = config_.vocab_size;
  std::vector<int64_t> lengths;
  int64_t num_rows = 0;
  for (const SequenceChunk& chunk : chunks) {
    lengths.push_back(chunk.state->length());
    output.row_begin.push_back(num_rows);
    num_rows += NumLogitsRows(chunk);
  }
  output.row_begin.push_back(num_rows);
  output.logits.resize(static_cast<size_t>(num_rows * config_.vocab_size));

  Status status = RunPasses(chunks, output, observer);
  if (status.ok()) return output;
  std::vector<size_t> poisoned;
  for (size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].state->RollBack(lengths[i]);
    if (chunks[i].state->poisoned()) poisoned.push_back(i);
  }
  if (poisoned.empty()) return Error(std::move(status));
  return Error(
      Status(status.code(), fmt::format("{} (the sequences of chunks {} lost history and must be reset)",
                                        status.message(), fmt::join(poisoned, ", "))));
}

Status Model::RunPasses(std::span<const SequenceChunk> chunks, StepOutput& output, Observer* observer) {
  const Graph graph = {.config = config_,
                       .weights = weights_,
                       .backend = backend_,
                       .rope = {.plain = rope_plain_, .compress = rope_compress_},
                       .numerics = options_.numerics,
                       .clamp_shared_expert = options_.clamp_shared_expert};
  std::vector<size_t> done(chunks.size(), 0);
  for (;;) {
    // Fills a pass with the tokens that are left, in order of the chunks.
    std::vector<PassChunk> pass;
    auto room = static_cast<size_t>(options_.max_chunk_tokens);
    for (size_t i = 0; i < chunks.size() && room > 0; ++i) {
      const SequenceChunk& chunk = chunks[i];
      const size_t begin = done[i];
      const size_t count = std::min(room, chunk.tokens.size() - begin);
      if (count == 0) continue;
      DSV4_RETURN_IF_ERROR(chunk.state->BeginAppend(static_cast<int64_t>(count))
                               .WithContext(fmt::format("step, chunk {}", i)));
      done[i] += count;
      room -= count;
      // Logits are wanted of the chunk's last rows, and of those the ones that fall into this pass.
      const int64_t num_wanted = NumLogitsRows(chunk);
      const auto first_wanted = static_cast<int64_t>(chunk.tokens.size()) - num_wanted;
      const int64_t first_here = std::max(first_wanted, static_cast<int64_t>(begin));
      const int64_t num_here = std::max<int64_t>(0, static_cast<int64_t>(done[i]) - first_here);
      const int64_t output_row = output.row_begin[i] + first_here - first_wanted;
      pass.push_back({.state = chunk.state,
                      .tokens = chunk.tokens.subspan(begin, count),
                      .chunk = static_cast<int32_t>(i),
                      .num_logits_rows = num_here,
                      .logits = output.logits.data() + output_row * config_.vocab_size});
    }
    if (pass.empty()) return {};
    DSV4_RETURN_IF_ERROR(RunPass(graph, arena_, pass, observer));
    for (const PassChunk& chunk : pass) chunk.state->CommitAppend();
  }
}

}  // namespace dsv4::model
