// Room of this machine for weights of a known size.
#include "apps/inspect/where_it_runs.h"

#include <fmt/format.h>

#include <optional>

#include "apps/shared/readable.h"
#include "base/machine_memory.h"

namespace dsv4::apps {

std::string WhereItRuns(int64_t weights, const backend::GpuSurvey& survey) {
  const Result<MachineMemory> memory = ReadMachineMemory();
  const int64_t available = memory ? memory->available : 0;
  // States, activations and the KV cache stand beside the weights.
  const auto wanted = static_cast<int64_t>(1.05 * static_cast<double>(weights));
  if (const auto usable = backend::FirstUsable(survey); usable.has_value()) {
    const auto& gpu = survey.gpus[static_cast<size_t>(*usable)].info;
    const auto total = static_cast<int64_t>(gpu.total_bytes);
    if (wanted <= total) return fmt::format("it fits {} with {}", gpu.name, ReadableBytes(total));
    const auto count = static_cast<int64_t>(survey.gpus.size());
    if (count > 1 && wanted <= count * total)
      return fmt::format("it wants several GPUs: --gpus {}", (wanted + total - 1) / total);
    if (wanted <= total + available)
      return fmt::format("larger than {}'s {}: with --experts auto a part of it is in the host's memory",
                         gpu.name, ReadableBytes(total));
  }
  if (!memory) return memory.error().message();
  if (wanted <= available)
    return fmt::format("it fits the {} of memory that are available, and runs on the CPU",
                       ReadableBytes(available));
  return fmt::format(
      "more than the {} of memory that are available: it would run, and read about {} from the disk again "
      "and again, "
      "many seconds a token",
      ReadableBytes(available), ReadableBytes(wanted - available));
}

}  // namespace dsv4::apps
