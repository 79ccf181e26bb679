// `dsv4 synth`: writes a random checkpoint of a real or small shape.
#pragma once

#include <cstdint>
#include <string>

namespace dsv4::apps {

struct SynthOptions {
  std::string directory;           // Must be absent or empty.
  std::string shape = "tiny";      // tiny, mini, flash or pro.
  std::string format = "release";  // model::SyntheticFormatNames()
  int64_t num_layers = 0;          // The first layers of the shape; 0: all.
  uint64_t seed = 0;
  bool mtp = false;     // With a draft block,
  bool dspark = false;  // or a DSpark drafter.
  // tokenizer.json, or a directory with one, to copy beside the weights; the vocabulary grows to fit it.
  // Empty: the small model's where the source tree has it, else none (the checkpoint then serves `logits` and
  // benchmarks only).
  std::string tokenizer;
};

// Returns the process exit code.
int RunSynthCommand(const SynthOptions& options);

}  // namespace dsv4::apps
