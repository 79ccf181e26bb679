// Bytes of weights, arena and sequences on a device, counted by a dry run, and what would fit.
#include "model/planning/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "base/text.h"
#include "model/config/cache_geometry.h"
#include "model/graph/routed.h"

namespace dsv4::model {
namespace {

// Gives out addresses that must not be read, and counts their bytes.
class CountingMemory final : public Memory {
 public:
  Device device() const override { return {DeviceType::kCuda, 0}; }
  Result<Buffer> Allocate(size_t num_bytes) override {
    *used_ += static_cast<int64_t>(num_bytes);
    auto* address =
        reinterpret_cast<void*>(next_.fetch_add((num_bytes + kAlignment) / kAlignment * kAlignment));
    const auto release = [used = used_, num_bytes](void*) { *used -= static_cast<int64_t>(num_bytes); };
    return Buffer(std::shared_ptr<void>(address, release), num_bytes, device());
  }
  Status Copy(void*, const void*, size_t, Stream) override { return {}; }
  Status CopyFromHost(void*, const void*, size_t, Stream) override { return {}; }
  Status CopyToHost(void*, const void*, size_t, Stream) override { return {}; }

  int64_t used() const { return *used_; }

 private:
  static constexpr uintptr_t kAlignment = 4096;
  // Shared with the buffers, which may outlive this.
  std::shared_ptr<std::atomic<int64_t>> used_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<uintptr_t> next_ = kAlignment;
};

class CountingContext final : public ops::OpContext {
 public:
  // Between data, scales and weights of a cached expert, at most.
  static constexpr int64_t kGaps = 512;

  CountingMemory& memory() override { return memory_; }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }

  // Bytes of an expert's weights, one after the other.
  void CountCached(int64_t num_bytes) {
    constexpr int kWeightsOfExpert = 3;
    cached_ += num_bytes;
    expert_ += num_bytes;
    if (++weights_of_expert_ < kWeightsOfExpert) return;
    slot_ = std::max(slot_, expert_);
    expert_ = 0;
    weights_of_expert_ = 0;
  }
  void CountOnHost(int64_t num_bytes) { on_host_ += num_bytes; }
  int64_t cached() const { return cached_; }
  int64_t slot() const { return slot_; }
  int64_t on_host() const { return on_host_; }

 private:
  int64_t cached_ = 0;
  int64_t expert_ = 0;
  int weights_of_expert_ = 0;
  int64_t slot_ = 0;  // The largest expert.
  int64_t on_host_ = 0;
  CountingMemory memory_;
  ThreadPool threads_{1};
};

// Every op does nothing.
template <typename Args>
Status Skip(ops::OpContext&, const Args&) {
  return {};
}

Status CountWeight(ops::OpContext& context, const ops::PrepareWeightArgs& args) {
  const Weight& source = *args.source;
  const int64_t num_bytes = source.data.num_bytes() + (source.scale.is_null() ? 0 : source.scale.num_bytes());
  if (args.tier != ops::WeightTier::kResident) {
    auto& counting = static_cast<CountingContext&>(context);
    if (args.tier == ops::WeightTier::kHost) {
      counting.CountOnHost(num_bytes);
    } else {
      counting.CountCached(num_bytes + CountingContext::kGaps);
    }
    *args.prepared = source;
    return {};
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const Buffer counted,
                               context.memory().Allocate(static_cast<size_t>(num_bytes)));
  *args.prepared = source;
  args.prepared->owner = counted;
  return {};
}

ops::Backend CountingBackend(const std::shared_ptr<CountingContext>& context) {
  // The options decide how rows are kept, as for any backend that can.
  ops::Backend backend{.name = "memory plan",
                       .table = {},
                       .context = context,
                       .packs_rows = true,
                       .policy = {.sizes_only = true}};
#define DSV4_SKIP_OP(name, Op) backend.table.name = Skip<ops::Op##Args>;
  DSV4_FOR_EVERY_OP(DSV4_SKIP_OP)
#undef DSV4_SKIP_OP
  backend.table.prepare_weight = CountWeight;
  return backend;
}

std::string Gigabytes(int64_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9); }

// The largest value of [1, most] for which `fits` holds, `fits` being true of all smaller ones; 0 if of none.
template <typename Fits>
int64_t Largest(int64_t most, Fits fits) {
  int64_t low = 0;
  for (int64_t high = most; low < high;) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace

Result<MemoryPlan> PlanMemory(const ModelConfig& config,
                              const std::shared_ptr<const io::Checkpoint>& checkpoint,
                              const ModelOptions& options, const MemoryRequest& request) {
  if (request.num_sequences < 1 || request.context < 1) {
    return Error(InvalidArgument(fmt::format("memory plan: got {} of {}, want at least 1 of 1",
                                             Counted(request.num_sequences, "sequence"),
                                             Counted(request.context, "token"))));
  }
  const auto context = std::make_shared<CountingContext>();
  ModelOptions quiet = options;
  quiet.progress = {};
  quiet.sizes_only = true;
  quiet.make_device_group = {};  // Counted memory lies on no device.
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                        Model::FromCheckpoint(config, checkpoint, CountingBackend(context), quiet));
  MemoryPlan plan{.num_layers = model->num_layers(),
                  .place = model->place(),
                  .num_sequences = request.num_sequences,
                  .context = std::min(request.context, config.max_position_embeddings)};
  plan.weights = context->memory().used();
  plan.pinned = context->cached();
  plan.on_host = context->on_host();
  plan.slot = context->slot();
  plan.expert_cache = options.experts.slots * plan.slot;
  plan.sequence = kv::StateBytes(model->cache_layout(), plan.context);
  plan.per_token = kv::BytesPerToken(model->cache_layout());

  // Passes of the most tokens whose terms shards gather, which may take more memory, and of most tokens. Of each two: the arena of the
  // first is in pieces, which the second joins.
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, model->NewSequence());
  const std::vector<int32_t> tokens(
      static_cast<size_t>(std::min(options.max_chunk_tokens, config.max_position_embeddings)));
  const Placement& placement = options.placement;
  size_t few = 0;
  if (placement.num_shards > 1 && placement.experts == ExpertPlacement::kById) {
    few = static_cast<size_t>(
        MostGatheredTokens(config, options.numerics == Numerics::kRelease ? DType::kBF16 : DType::kF32,
                           placement.num_shards, options.max_gathered_terms));
  }
  for (const size_t count : {few, few, tokens.size(), tokens.size()}) {
    if (count == 0 || count > tokens.size()) continue;
    state.Reset();
    // At the end of a sequence, whose entries shards may bring together.
    while (state.length() + static_cast<int64_t>(2 * count) <= plan.context) {
      DSV4_TRY(state.BeginAppend(static_cast<int64_t>(count)));
      state.CommitAppend();
    }
    const SequenceChunk chunk{
        .state = &state, .tokens = std::span(tokens).first(count), .logits = LogitsRows::kLast};
    DSV4_ASSIGN_OR_RETURN(const StepOutput ignored, model->Step({&chunk, 1}));
    static_cast<void>(ignored);
  }
  plan.step = context->memory().used() - plan.weights - kv::StateBytes(model->cache_layout(), state.length());
  return plan;
}

std::string MemoryTable(const MemoryPlan& plan, const DeviceRoom& room) {
  std::string table;
  const auto line = [&](std::string_view name, int64_t bytes) {
    table += fmt::format("  {:<44}{:>12}\n", name, Gigabytes(bytes));
  };
  line(fmt::format("weights, {}", Counted(plan.num_layers, "layer")), plan.weights);
  if (plan.slot > 0)
    line(fmt::format("room for {}", Counted(plan.expert_cache / plan.slot, "cached expert")),
         plan.expert_cache);
  line("one step", plan.step);
  line(fmt::format("{} of {}", Counted(plan.num_sequences, "sequence"), Counted(plan.context, "token")),
       plan.num_sequences * plan.sequence);
  line("scratch of the ops", room.reserved);
  line("together", plan.total() + room.reserved);
  line(fmt::format("free on {}", room.name), room.free);
  return table;
}

int64_t LongestContext(const ModelConfig& config, const ModelOptions& options, const MemoryPlan& plan,
                       int64_t usable) {
  const kv::CacheLayout layout =
      CacheGeometry(config, PlansOfStage(config.layers, plan.place.layers), options.numerics,
                    options.cache_rows, options.max_chunk_tokens, options.max_rewind_tokens);
  const int64_t planned =
      kv::StateBytes(layout, plan.context);  // A draft's rows, which do not grow, are in the plan alone.
  return Largest(config.max_position_embeddings, [&](int64_t context) {
    return plan.total() + plan.num_sequences * (kv::StateBytes(layout, context) - planned) <= usable;
  });
}

Status CheckRoom(const ModelConfig& config, const std::shared_ptr<const io::Checkpoint>& checkpoint,
                 const ModelOptions& options, const MemoryPlan& plan, const DeviceRoom& room) {
  const int64_t usable = room.free - room.reserved;
  if (plan.total() <= usable) return {};
  const int64_t tokens = std::min(plan.context, LongestContext(config, options, plan, usable));
  std::string advice;
  if (tokens > 0) {
    advice = fmt::format("sequences of {} fit", Counted(tokens, "token"));
  } else {
    ModelOptions fewer = options;
    const int64_t layers = Largest(plan.num_layers - 1, [&](int64_t num_layers) {
      fewer.max_layers = num_layers;
      const Result<MemoryPlan> truncated =
          PlanMemory(config, checkpoint, fewer, {plan.num_sequences, plan.context});
      return truncated.has_value() && truncated->total() <= usable;
    });
    advice =
        fmt::format("the whole needs {} at least; for measurements --max-layers {} fits",
                    Counted((plan.total() + std::max<int64_t>(usable, 1) - 1) / std::max<int64_t>(usable, 1),
                            "such device"),
                    layers);
    if (layers == 0) advice = "not even one layer fits";
  }
  return {StatusCode::kResourceExhausted,
          fmt::format("the model does not fit {}: {} are wanted, {} are free\n{}{}", room.name,
                      Gigabytes(plan.total() + room.reserved), Gigabytes(room.free), MemoryTable(plan, room),
                      advice)};
}

Result<ExpertSplit> FitExperts(const ModelConfig& config,
                               const std::shared_ptr<const io::Checkpoint>& checkpoint,
                               const ModelOptions& options, const MemoryRequest& request,
                               const DeviceRoom& room) {
  const int64_t num_experts = config.n_routed_experts;
  const int64_t usable = room.free - room.reserved;
  const auto plan_with = [&](int64_t resident) {
    ModelOptions planned = options;
    planned.experts = {.resident = resident, .host = num_experts - resident};
    return PlanMemory(config, checkpoint, planned, request);
  };
  DSV4_ASSIGN_OR_RETURN(const MemoryPlan most, plan_with(num_experts));
  if (most.total() <= usable) return ExpertSplit{.resident = num_experts, .host = 0};
  DSV4_ASSIGN_OR_RETURN(const MemoryPlan least, plan_with(0));
  if (least.total() > usable) {
    return Error(ResourceExhausted(fmt::format(
        "the model does not fit {} even with all routed experts on the host: {} are wanted, {} are "
        "free\n{}",
        room.name, Gigabytes(least.total() + room.reserved), Gigabytes(room.free),
        MemoryTable(least, room))));
  }
  // Experts are of one size as a rule, so the first guess is right as a rule.
  const double fraction =
      static_cast<double>(usable - least.total()) / static_cast<double>(most.weights - least.weights);
  int64_t resident = static_cast<int64_t>(fraction * static_cast<double>(num_experts));
  for (resident = std::clamp(resident, int64_t{0}, num_experts - 1); resident > 0; --resident) {
    DSV4_ASSIGN_OR_RETURN(const MemoryPlan plan, plan_with(resident));
    if (plan.total() <= usable) break;
  }
  return ExpertSplit{.resident = resident, .host = num_experts - resident};
}

Result<ExpertSplit> FitSlots(const ModelConfig& config,
                             const std::shared_ptr<const io::Checkpoint>& checkpoint,
                             const ModelOptions& options, const ExpertSplit& split,
                             const MemoryRequest& request, const DeviceRoom& room) {
  ModelOptions planned = options;
  planned.experts = split;
  planned.experts.slots = 0;
  DSV4_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(config, checkpoint, planned, request));
  const int64_t left = std::max<int64_t>(0, room.free - room.reserved - plan.total());
  ExpertSplit fit = split;
  fit.slots = std::min(left / std::max<int64_t>(plan.slot, 1), split.cached * plan.place.layers.size());
  if (fit.slots < split.cached) {
    return Error(ResourceExhausted(
        fmt::format("experts {}: {} has room for {}, want the {} of one layer at least; fewer resident or "
                    "cached ones, or shorter sequences, leave more\n{}",
                    ToString(split), room.name, Counted(fit.slots, "cached expert"), split.cached,
                    MemoryTable(plan, room))));
  }
  return fit;
}

}  // namespace dsv4::model
