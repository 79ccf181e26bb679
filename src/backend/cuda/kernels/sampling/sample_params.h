// Parameters that the kernels that choose tokens are told.
#pragma once

#include <cstdint>

#include "backend/cuda/runtime/launch_context.h"
#include "ops/sample.h"

namespace dsv4::backend::cuda {

// A row's choice as the kernel wants it.
struct RowChoice {
  double uniform;
  float temperature;  // 0: greedy.
  float top_p;
  float lowest_exponent;
  int32_t top_k;  // 0: off.
};

struct SampleParams {
  const float* logits;
  const uint8_t* allowed;  // May be null, as all below but choices.
  const RowChoice* choices;
  const ops::RowRule* rules;
  const uint64_t* masks;
  const ops::RowChange* changes;
  const int32_t* change_begin;  // [num_rows + 1], by row.
  int32_t* tokens;
  int32_t* faults;
  int vocab_size;
};

// A block a row (sample.cu). `rows`: scratch [num_rows, vocab_size].
void LaunchSampleRow(LaunchContext& context, const SampleParams& params, int64_t num_rows, float* rows);

// A cluster of blocks a row (sample_cluster.cu).
void LaunchSampleCluster(LaunchContext& context, const SampleParams& params, int64_t num_rows);

// Scores of the rows whose tokens have been chosen (sample_scores.cu).
Status LaunchSampleScores(LaunchContext& context, const ops::SampleArgs& args);

}  // namespace dsv4::backend::cuda
