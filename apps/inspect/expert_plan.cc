// Expert split of a planned GPU, as text and JSON.
#include "apps/inspect/expert_plan.h"

#include <fmt/format.h>

#include <optional>

#include "apps/shared/expert_flags.h"
#include "apps/tiers/slot_trade.h"
#include "backend/cuda/cuda_backend.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

Result<model::DeviceRoom> RoomOrAssumed(const ModelFlags& flags) {
  Result<model::DeviceRoom> room = DeviceRoomOf(flags, "the GPU");
  if (room.has_value()) return room;
  if (flags.gpu_memory > 0) {
    return model::DeviceRoom{.name = fmt::format("a GPU of {} GB", flags.gpu_memory),
                             .free = static_cast<int64_t>(flags.gpu_memory * 1e9),
                             .reserved = ScratchOf(flags, kAssumedScratch)};
  }
  return Error(FailedPrecondition("--experts: there is no GPU here, and no --gpu-memory stands for one"));
}

}  // namespace

Result<ExpertPlan> PlanExperts(const ModelFlags& flags, const ModelSource& source,
                               const model::MemoryRequest& request) {
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, source.Config());
  DSV4_ASSIGN_OR_RETURN(const auto checkpoint, source.Checkpoint());
  ExpertPlan experts;
  DSV4_ASSIGN_OR_RETURN(experts.room, RoomOrAssumed(flags));
  model::ModelOptions options = MakeModelOptions(flags);
  if (source.synthetic()) options.max_layers = 0;  // They are made for the first layers only.
  // Rates can be measured where there is a GPU.
  std::optional<ops::Backend> backend;
  if (flags.experts == "auto" && backend::RoomOf(flags.device).has_value()) {
    DSV4_ASSIGN_OR_RETURN(backend, MakeBackend(flags));
  }
  const ops::Backend* const device = backend.has_value() ? &*backend : nullptr;
  DSV4_ASSIGN_OR_RETURN(experts.split, SplitOf(flags, config, checkpoint, options, request, experts.room,
                                               source.synthetic(), device));
  options.experts = experts.split;
  DSV4_ASSIGN_OR_RETURN(experts.plan, model::PlanMemory(config, checkpoint, options, request));
  const SlotTrade trade = TradesSlots(flags)
                              ? TradeOf(experts.plan, experts.split, experts.room, options.max_chunk_tokens)
                              : SlotTrade();
  experts.longest_context = model::LongestContext(config, options, WithLeastSlots(experts.plan, trade),
                                                  experts.room.free - experts.room.reserved);
  experts.fits = experts.plan.total() + experts.room.reserved <= experts.room.free;
  return experts;
}

Json ToJson(const ExpertPlan& experts) {
  return {{"split", model::ToString(experts.split)},
          {"resident", experts.split.resident},
          {"cached", experts.split.cached},
          {"host", experts.split.host},
          {"slots", experts.split.slots},
          {"cached_bytes", experts.plan.pinned},
          {"host_bytes", experts.plan.on_host},
          {"gpu",
           {{"weights", experts.plan.weights},
            {"expert_cache", experts.plan.expert_cache},
            {"step", experts.plan.step},
            {"sequences", experts.plan.num_sequences * experts.plan.sequence},
            {"scratch", experts.room.reserved},
            {"free", experts.room.free}}},
          {"fits", experts.fits},
          {"longest_context", experts.longest_context}};
}

std::string ToText(const ExpertPlan& experts) {
  return fmt::format(
      "experts of a layer: {}, {:.2f} GB cached in pinned memory, {:.2f} GB multiplied by the host; {}, with "
      "sequences of up to {}\n{}",
      model::ToString(experts.split), static_cast<double>(experts.plan.pinned) / 1e9,
      static_cast<double>(experts.plan.on_host) / 1e9,
      experts.fits ? "the rest fits" : "the rest does not fit", Counted(experts.longest_context, "token"),
      model::MemoryTable(experts.plan, experts.room));
}

}  // namespace dsv4::apps
