// `dsv4 logits`: the logits of every position of a token file, for comparing with other engines.
#pragma once

#include <cstdint>
#include <string>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct LogitsOptions {
  ModelFlags model;
  std::string tokens_path;  // Whitespace-separated or JSON list of ids.
  std::string
      output_path;  // .npy, float32 [num_tokens, vocab_size]; of drafts [num_tokens - 1, num_drafts, vocab_size]
  std::string draft;  // "mtp": the logits of the model's draft block instead; empty: none.
  int64_t num_drafts = 3;
  std::string
      confidence_path;  // .npy, float32 [num_tokens - 1, num_drafts]: DSpark's confidence; empty: nowhere.
  int64_t chunk =
      0;  // Prefill chunk size; 0: all at once (the model splits at its own limit, with the same result).
  // Folder in which to write every tensor of the run (docs/dump-format.md); empty: nowhere.
  std::string dump_path;
  int64_t decode_from = -1;  // The first N tokens are prefill, the rest go by steps; -1: all are prefill.
  int64_t decode_rows = 1;   // Tokens of such a step.
};

// Returns the process exit code.
int RunLogitsCommand(const LogitsOptions& options);

}  // namespace dsv4::apps
