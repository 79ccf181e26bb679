// `dsv4 inspect` and `dsv4 doctor` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/command_line/usage.h"
#include "apps/inspect/doctor_command.h"
#include "apps/inspect/inspect_command.h"
#include "comm/shared_memory.h"

namespace dsv4::apps {

void RegisterInspect(Commands& commands) {
  ModelFlags& model = commands.model();
  const auto kept = std::make_shared<InspectOptions>();
  InspectOptions& options = *kept;
  CLI::App& inspect =
      commands.AddPlan("inspect", "Shapes, formats, layer kinds, tokenizer and memory plan of a model",
                       [kept](const Invocation& invocation) {
                         kept->model = invocation.model;
                         return RunInspectCommand(*kept);
                       });
  inspect.add_option("-c,--context", options.context, "The memory plan is for sequences of N tokens")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--batch", options.batch, "and for N of them at a time")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--ranks", model.num_ranks, "and for each of N ranks")
      ->check(CLI::Range(0, comm::kMaxSharedMemoryRanks))
      ->capture_default_str();
  AddPlacementFlag(inspect, model);
  inspect
      .add_option("--rank-memory", options.rank_memory,
                  "GB of a rank; 0: this machine's, divided by the ranks")
      ->check(NonNegative())
      ->capture_default_str();
  inspect.add_option("--rank-bandwidth", options.rank_bandwidth, "GB/s at which a rank reads")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--rank-wait", options.rank_wait, "Microseconds that an exchange among ranks takes")
      ->check(NonNegative())
      ->capture_default_str();
  AddNumbers(inspect, "--gpu-sizes", options.gpu_sizes, Positive(),
             "GB of GPUs: how routed experts would be split there, and what bounds a token, computed");
  inspect.add_option("--gpu-rate", options.assumed_rates.gpu, "GB/s that those GPUs read")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--link-rate", options.assumed_rates.link, "GB/s that their links bring")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_option("--host-rate", options.assumed_rates.host, "GB/s that the host's kernels read")
      ->check(Positive())
      ->capture_default_str();
  inspect.add_flag("--json", options.json, "One JSON document on standard output");

  const auto asked = std::make_shared<DoctorOptions>();
  CLI::App& doctor = commands.AddWithoutModel("doctor", "What this machine has for dsv4, and what is missing",
                                              [asked](const Invocation& invocation) {
                                                asked->model = invocation.model;
                                                asked->version = VersionText();
                                                return RunDoctorCommand(*asked);
                                              },
                                              {"model", "weights", "backend", "max-layers"});
  CLI::Option* states = doctor.add_option("--prefix-cache-dir", asked->prefix_cache_dir,
                                          "Look at this folder of serve's shared states too");
  doctor.add_option("--prefix-cache-disk-mib", asked->prefix_cache_disk_mib, "Room that they may take there")
      ->check(Positive(1 << 30))
      ->capture_default_str()
      ->needs(states);
  doctor.add_flag("--json", asked->json, "One JSON document on standard output");
}

}  // namespace dsv4::apps
