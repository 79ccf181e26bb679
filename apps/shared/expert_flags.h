// --experts and --gpu-memory: the split of a layer's routed experts (docs/expert-tiers.md). A GPU keeps some,
// brings some from the host when they are chosen, and the host multiplies some.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/shared/model_flags.h"
#include "backend/cuda/cuda_backend.h"
#include "model/placement/verify_split.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {

// --experts of a backend of the host: routed experts are read from disk when they are chosen, whatever memory
// there is.
inline constexpr std::string_view kExpertsOnDisk = "disk";

// --experts of a GPU: the split is made of rates that are measured.
inline constexpr std::string_view kExpertsByRates = "auto";

// InvalidArgument where the backend, or what --weights makes, is none for them.
Status CheckExpertFlags(const ModelFlags& flags);
// The same for what several ranks cannot, placed as ModelFlags::placed says.
Status CheckExpertsOfRanks(const ModelFlags& flags);

// Scratch of ops beside a plan, of which `scratch` is for passes of up to 8192 tokens: longer ones take more
// in proportion.
int64_t ScratchOf(const ModelFlags& flags, int64_t scratch);

// The GPU of the flags as a memory plan sees it: what is free there, at most --gpu-memory.
Result<model::DeviceRoom> DeviceRoomOf(const ModelFlags& flags, const std::string& name);

// Time of bringing cached experts to pinned memory, of some bytes: one line.
std::string PinnedText(const backend::PinnedLoad& pinned);

// Whether a server may have more and fewer slots than were planned: where --experts names no number of them.
bool TradesSlots(const ModelFlags& flags);

// Bound of a model's host memory, where it has cached experts; besides, pages of files.
struct HostPlan {
  int64_t pinned = 0;   // Cached experts,
  int64_t driver = 0;   // and what the driver notes about their pages.
  int64_t ahead = 0;    // Pinned for nothing while it loads.
  int64_t numbers = 0;  // Bytes of a layer, while it loads, where they are made.
  int64_t process = 0;  // The rest of the process and its CUDA context.

  int64_t total() const { return pinned + driver + ahead + numbers + process; }
};
// `numbers`: HostPlan::numbers. Of nothing cached it is zero.
HostPlan HostPlanOf(const model::MemoryPlan& plan, int64_t numbers);
std::string HostMemoryTable(const HostPlan& plan);
// HostPlan::numbers of a checkpoint of so many layers.
int64_t NumbersOfLayer(const io::Checkpoint& checkpoint, bool synthetic, int64_t num_layers);

// ResourceExhausted where the plan is more than the host has memory for: what is available, at most
// --host-memory. Logs the plan. Experts of the host that do not fit are read from disk each time, which is
// logged too. Where they are `synthetic` there is no file, and that is an error.
Status CheckHostMemory(const ModelFlags& flags, const model::MemoryPlan& plan, int64_t numbers,
                       bool synthetic);

// Split of --experts for a model. "auto" measures rates on `device`, the CUDA backend, which takes some
// seconds, logs them, and asks model::ChooseExperts. Without a device it is the most residents that leave
// room for the rest of the plan. Cached experts without slots have as many as it leaves room for. All are
// resident without the flag. `synthetic`: numbers are made while they load. Unless null, `plan` becomes the
// plan that "auto" made of measured rates, for model::VerifySplit; else it stays empty. With several ranks it
// is of this one's layers, and options.group stands for them without exchanging anything. The errors of
// model::ParseExpertSplit, model::FitExperts and model::FitSlots.
Result<model::ExpertSplit> SplitOf(const ModelFlags& flags, const model::ModelConfig& config,
                                   const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                   const model::ModelOptions& options, const model::MemoryRequest& request,
                                   const model::DeviceRoom& room, bool synthetic, const ops::Backend* device,
                                   std::optional<model::StagePlan>* plan = nullptr);

// ModelFlags::host_share: the layers of this rank among those of the ranks on its machine. `options` have the
// placement.
Result<double> ShareOfHost(const ModelFlags& flags, const model::ModelConfig& config,
                           const std::shared_ptr<const io::Checkpoint>& checkpoint,
                           const model::ModelOptions& options);

// Before weights are made for which no file has room: ResourceExhausted names `source`, where what stays on
// the host of synthetic weights is more than its memory. With several ranks, each of which has a part,
// nothing is known.
Status CheckSyntheticFits(const ModelFlags& flags, const ModelSource& source,
                          const model::MemoryRequest& request);

}  // namespace dsv4::apps
