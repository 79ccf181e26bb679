// `dsv4 convert` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/tools/convert_command.h"

namespace dsv4::apps {

void RegisterConvert(Commands& commands) {
  const auto kept = std::make_shared<ConvertCommandOptions>();
  ConvertCommandOptions& options = *kept;
  CLI::App& convert = commands.AddWithoutModel("convert", "Rewrite a checkpoint in other weight formats",
                                               [kept](const Invocation& invocation) {
                                                 kept->num_threads = invocation.model.num_threads;
                                                 return RunConvertCommand(*kept);
                                               },
                                               {"threads"});
  convert.add_option("SRC", options.source, "Checkpoint directory, in any dialect, or a pulled model")
      ->required();
  convert.add_option("DST", options.destination, "Where to; absent or empty")->required();
  convert.add_option("--experts", options.experts, "Format of the routed experts")
      ->check(CLI::IsMember({"keep", "nvfp4", "mxfp4", "fp8", "bf16"}))
      ->capture_default_str();
  convert.add_option("--dense", options.dense, "Format of attention, shared experts and indexer")
      ->check(CLI::IsMember({"keep", "fp8", "nvfp4", "bf16"}))
      ->capture_default_str();
  convert
      .add_option("--scales", options.scales,
                  "Scales of 4-bit blocks that cannot be exact: mse searches, amax does not")
      ->check(CLI::IsMember({"mse", "amax"}))
      ->capture_default_str();
  convert.add_option("--max-shard-bytes", options.max_shard_bytes, "Files are cut at this size")
      ->check(Positive())
      ->capture_default_str();
  convert.add_flag("--json", options.json, "One JSON document on standard output");
}

}  // namespace dsv4::apps
