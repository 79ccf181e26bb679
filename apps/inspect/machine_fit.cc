// Fit of a model to this machine, and GPUs that would do.
#include "apps/inspect/machine_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/terminal/readable.h"
#include "backend/cuda/cuda_backend.h"
#include "base/text.h"
#include "comm/null_group.h"
#include "model/placement/placement.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {
namespace {

constexpr int64_t kPassOnGpu = 8192;
constexpr double kUsableOfGpu = 0.94;                // The rest is the driver's and scratch of the kernels.
constexpr int64_t kSystem = int64_t{2'000'000'000};  // Memory that the rest of a machine wants.
// GB that machines have.
constexpr std::array kMachines = {8,   12,  16,  24,  32,   48,   64,   96,   128, 192,
                                  256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096};

// The fullest rank's bytes on `count` GPUs.
Result<int64_t> WantedOnGpus(const MachineFitRequest& request, int count) {
  int64_t most = 0;
  for (const int rank : {0, count - 1}) {
    model::ModelOptions options = request.options;
    options.max_chunk_tokens = kPassOnGpu;
    if (!backend::kCudaPacksRows) options.cache_rows = model::CacheRows::kWide;
    if (count > 1) {
      DSV4_ASSIGN_OR_RETURN(options.placement, model::ParsePlacement("auto", count));
      options.group = comm::ImagineGroup(rank, count, options.placement.num_shards);
    }
    DSV4_ASSIGN_OR_RETURN(
        const model::MemoryPlan plan,
        model::PlanMemory(request.config, request.checkpoint, options, {request.batch, request.context}));
    most = std::max(most, plan.total());
    if (count == 1) break;
  }
  return most;
}

Status CountGpus(const MachineFitRequest& request, MachineFit& fit) {
  for (const int count : {1, 2, 4, 8}) {
    const Result<int64_t> wanted = WantedOnGpus(request, count);
    // A model that cannot be divided so (fewer experts than ranks) is no error of this report.
    if (!wanted && count > 1) continue;
    if (!wanted) return wanted.error();
    if (count == 1) {
      if (const Result<backend::CudaRoom> room = backend::RoomOf(0)) {
        fit.gpu = MachineFit::Gpu{.free = room->free, .wanted = *wanted + room->scratch};
      }
    }
    const auto fits = [&](double gigabytes) {
      return static_cast<double>(*wanted) <= kUsableOfGpu * gigabytes * 1e9;
    };
    if (fit.gpus_141 == 0 && fits(141)) fit.gpus_141 = count;
    if (fit.gpus_80 == 0 && fits(80)) fit.gpus_80 = count;
    if (fit.gpus_80 != 0) break;
  }
  return {};
}

// "1 of 80 GB would do"; "2 of 141 GB or 4 of 80 GB would do".
std::string Gpus(const MachineFit& fit) {
  if (fit.gpus_80 == 1) return "1 of 80 GB would do";
  if (fit.gpus_80 == 0 && fit.gpus_141 == 0) return "more than 8 of 141 GB are wanted";
  std::string text = fit.gpus_141 == 0 ? std::string() : fmt::format("{} of 141 GB", fit.gpus_141);
  if (fit.gpus_80 != 0) text += fmt::format("{}{} of 80 GB", text.empty() ? "" : " or ", fit.gpus_80);
  return text + " would do";
}

}  // namespace

int64_t MachineFit::from_disk() const {
  return std::clamp<int64_t>(weights + beside - memory.available, 0, weights);
}

Result<MachineFit> FitMachine(const MachineFitRequest& request) {
  MachineFit fit;
  DSV4_ASSIGN_OR_RETURN(fit.memory, ReadMachineMemory());
  const auto batch = static_cast<double>(request.batch);
  fit.weights = request.weights;
  fit.beside =
      request.step + static_cast<int64_t>(batch * (static_cast<double>(request.fixed) +
                                                   request.per_token * static_cast<double>(request.context)));
  const double room = static_cast<double>(fit.memory.available - request.weights - request.step) -
                      batch * static_cast<double>(request.fixed);
  const auto limit = static_cast<double>(request.config.max_position_embeddings);
  if (room > 0) {
    fit.longest_context = static_cast<int64_t>(
        request.per_token > 0 ? std::min(limit, room / (batch * request.per_token)) : limit);
  }
  if (!fit.fits() && request.layer_weights > 0) {
    const double for_layers =
        static_cast<double>(fit.memory.available - fit.beside - (request.weights - request.layer_weights));
    const double layers =
        static_cast<double>(request.num_layers) * for_layers / static_cast<double>(request.layer_weights);
    fit.layers = std::clamp<int64_t>(static_cast<int64_t>(std::floor(layers)), 0, request.num_layers - 1);
  }
  for (const int gigabytes : kMachines) {
    fit.machine_bytes = int64_t{gigabytes} * 1'000'000'000;
    if (fit.weights + fit.beside + kSystem <= fit.machine_bytes) break;
  }
  DSV4_TRY(CountGpus(request, fit));
  return fit;
}

std::string ToText(const MachineFit& fit, const MachineFitRequest& request) {
  std::string out = "\nthis machine\n";
  const auto line = [&](std::string_view label, const std::string& text) {
    out += fmt::format("  {:<26}{}\n", label, text);
  };
  line("memory",
       fmt::format("{}, {} free", ReadableBytes(fit.memory.total), ReadableBytes(fit.memory.available)));
  const std::string wanted =
      fmt::format("{} of weights and {} beside them", ReadableBytes(fit.weights), ReadableBytes(fit.beside));
  if (fit.fits()) {
    line("fits its memory",
         fmt::format("yes: {}; {} of {} would too", wanted, Counted(request.batch, "sequence"),
                     Counted(fit.longest_context, "token")));
  } else if (fit.beside <= fit.memory.available) {
    line("fits its memory",
         fmt::format("no: {}; it would run, and read {} of weights from the disk again and again", wanted,
                     ReadableBytes(fit.from_disk())));
  } else {
    line("fits its memory", fmt::format("no: {}", wanted));
  }
  if (!fit.gpu) {
    line("fits its GPU", fmt::format("no GPU is seen by this build; {}", Gpus(fit)));
  } else if (fit.gpu->wanted <= fit.gpu->free) {
    line("fits its GPU", fmt::format("yes: {} wanted, {} free", ReadableBytes(fit.gpu->wanted),
                                     ReadableBytes(fit.gpu->free)));
  } else {
    line("fits its GPU", fmt::format("no: {} wanted, {} free; {}", ReadableBytes(fit.gpu->wanted),
                                     ReadableBytes(fit.gpu->free), Gpus(fit)));
  }
  if (!fit.fits()) {
    std::string others = fmt::format("a machine with {} GB", fit.machine_bytes / 1'000'000'000);
    if (fit.longest_context > 0)
      others += fmt::format("; here sequences of {}", Counted(fit.longest_context, "token"));
    if (fit.layers > 0) others += fmt::format("; here, for measurements, --max-layers {}", fit.layers);
    line("what would fit", others);
  }
  return out;
}

Json ToJson(const MachineFit& fit) {
  Json json = {{"memory_bytes", fit.memory.total},
               {"available_bytes", fit.memory.available},
               {"wanted_bytes", fit.weights + fit.beside},
               {"fits", fit.fits()},
               {"from_disk_bytes", fit.from_disk()},
               {"longest_context", fit.longest_context},
               {"max_layers", fit.layers},
               {"machine_bytes", fit.machine_bytes},
               {"gpus_of_80_gb", fit.gpus_80},
               {"gpus_of_141_gb", fit.gpus_141},
               {"gpu", nullptr}};
  if (fit.gpu) {
    json["gpu"] = {{"free_bytes", fit.gpu->free},
                   {"wanted_bytes", fit.gpu->wanted},
                   {"fits", fit.gpu->wanted <= fit.gpu->free}};
  }
  return json;
}

}  // namespace dsv4::apps
