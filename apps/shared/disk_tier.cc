// Plan of a model whose experts are read from disk, and the line that says its bound.
#include "apps/shared/disk_tier.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shared/expert_flags.h"
#include "apps/terminal/readable.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "model/checkpoint/resolved_checkpoint.h"

namespace dsv4::apps {

double DiskTier::ShareInMemory() const {
  if (experts == 0) return 1;
  return std::clamp(static_cast<double>(available - rest - beside) / static_cast<double>(experts), 0.0, 1.0);
}

double DiskTier::TokensPerSecond() const {
  const double read = chosen * (1 - ShareInMemory());
  return read > 0 ? disk.bytes_per_second / read : 0;
}

Result<DiskTier> PlanDiskTier(const model::ModelConfig& config,
                              const std::shared_ptr<const io::Checkpoint>& checkpoint,
                              const model::ModelOptions& options, const model::MemoryRequest& request,
                              int64_t available) {
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(*checkpoint, config));
  DSV4_ASSIGN_OR_RETURN(const model::MemoryPlan plan,
                        model::PlanMemory(config, checkpoint, options, request));
  DiskTier tier{.beside = plan.step + plan.num_sequences * plan.sequence, .available = available};
  int64_t num_weights = 0;
  for (int64_t i = 0; i < plan.num_layers; ++i) {
    for (const model::ResolvedExpert& expert : resolved.layers[static_cast<size_t>(i)].experts) {
      for (const model::StoredLinear* linear : {&expert.w1, &expert.w2, &expert.w3}) {
        tier.experts += linear->num_bytes();
        ++num_weights;
      }
    }
  }
  tier.rest = plan.weights - tier.experts;
  tier.longest_context =
      model::LongestContext(config, options, plan, tier.fits() ? available : available + tier.experts);
  tier.piece = static_cast<double>(tier.experts) / static_cast<double>(std::max<int64_t>(num_weights, 1));
  tier.chosen = static_cast<double>(tier.experts) * static_cast<double>(config.num_experts_per_tok) /
                static_cast<double>(config.n_routed_experts);
  return tier;
}

Result<std::shared_ptr<io::ChosenReads>> ReadsFromDisk(
    const ModelFlags& flags, const ModelSource& source, const model::ModelConfig& config,
    const std::shared_ptr<const io::Checkpoint>& checkpoint, const model::ModelOptions& options,
    const model::MemoryRequest& request, RoomLeft* left) {
  const bool asked = flags.experts == kExpertsOnDisk;
  // Ranks share a machine's memory, each with a part of the model.
  if (flags.group != nullptr || source.synthetic()) return nullptr;
  int64_t available = INT64_MAX;
  if (const Result<MachineMemory> machine = ReadMachineMemory(); machine.has_value())
    available = machine->available;
  // Far from any limit: no plan is wanted.
  constexpr int64_t kNear = 2;
  if (!asked && checkpoint->num_bytes() < available / kNear) return nullptr;
  DSV4_ASSIGN_OR_RETURN(DiskTier tier, PlanDiskTier(config, checkpoint, options, request, available));
  if (left != nullptr && tier.rest_fits()) {
    left->context = tier.longest_context;
    // The other half is for experts and longer sequences.
    left->kept = (available - tier.rest - tier.beside - (tier.fits() ? tier.experts : 0)) / 2;
  }
  if (!asked && tier.fits()) return nullptr;
  if (!tier.rest_fits()) {
    LogWarning(fmt::format(
        "memory: {} of weights beside the routed experts and {} of states and a step are more than "
        "the {} that are free; weights are read from disk again and again",
        ReadableBytes(tier.rest), ReadableBytes(tier.beside), ReadableBytes(tier.available)));
    return nullptr;
  }
  if (const auto rate = io::MeasureDiskRate(checkpoint->files(), static_cast<size_t>(tier.piece));
      rate.has_value()) {
    tier.disk = *rate;
  } else {
    LogWarning("the rate of the disk is not known: " + rate.error().message());
  }
  LogWarning(ToText(tier));
  return flags.chosen_reads;
}

std::string ToText(const DiskTier& tier) {
  std::string text = fmt::format(
      "{} of routed experts are read from disk when they are chosen, {} of other weights are in memory; a "
      "token "
      "chooses {}, and there is memory for {:.0f} % of all",
      ReadableBytes(tier.experts), ReadableBytes(tier.rest), ReadableBytes(tier.chosen),
      100 * tier.ShareInMemory());
  if (tier.disk.bytes_per_second == 0 || tier.TokensPerSecond() == 0) return text;
  return text + fmt::format("; bounded by the disk, which reads {}/s{}: {:.2f} tok/s",
                            ReadableBytes(tier.disk.bytes_per_second),
                            tier.disk.direct ? "" : " (with help of the system's file cache)",
                            tier.TokensPerSecond());
}

}  // namespace dsv4::apps
