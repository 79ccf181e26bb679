// `dsv4 synth` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/tools/synth_command.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::apps {

void RegisterSynth(Commands& commands) {
  const auto kept = std::make_shared<SynthOptions>();
  SynthOptions& options = *kept;
  CLI::App& synth = commands.AddWithoutModel("synth", "Write a random checkpoint of a real or small shape",
                                             [kept](const Invocation&) { return RunSynthCommand(*kept); });
  synth.add_option("DIR", options.directory, "Where to; absent or empty")->required();
  synth.add_option("--shape", options.shape, "Dimensions")
      ->check(CLI::IsMember(model::SyntheticShapes()))
      ->capture_default_str();
  synth.add_option("--format", options.format, "How the weights are stored")
      ->check(CLI::IsMember(model::SyntheticFormatNames()))
      ->capture_default_str();
  synth.add_option("--layers", options.num_layers, "Only the first N layers (0: all)")
      ->check(NonNegative())
      ->capture_default_str();
  synth.add_option("--seed", options.seed, "The same seed gives the same checkpoint")
      ->check(Seed())
      ->capture_default_str();
  CLI::Option* mtp = synth.add_flag("--mtp", options.mtp, "With a draft block (MTP) behind the layers");
  synth.add_flag("--dspark", options.dspark, "With a DSpark drafter behind the layers")->excludes(mtp);
  synth.add_option("--tokenizer", options.tokenizer,
                   "tokenizer.json to copy beside the weights (default: the small model's)");
}

}  // namespace dsv4::apps
