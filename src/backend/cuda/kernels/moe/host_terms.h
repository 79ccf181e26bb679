// The device's side of experts that the host multiplies (tiers/host_experts.h). Tokens go out and terms come
// back through memory of the host that kernels read and write.
#pragma once

#include "backend/cuda/runtime/launch_context.h"
#include "tiers/host_exchange.h"

namespace dsv4::backend::cuda {

// State of one queue; device memory, zero in the beginning.
struct HostTermsState {
  uint32_t number;  // The last request's.
  uint32_t blocks;  // Blocks that have written their part of the next one,
  uint32_t any;     // and whether one of them wants anything of the host.
};

// Tokens of a layer some of whose experts the host has.
struct HostTermsWork {
  const void* x;           // [num_rows, dim], device memory as all but the payload's and the words.
  const int32_t* indices;  // [num_rows, top_k]
  const float* weights;
  const int32_t*
      places;  // [num_experts]: an expert's index among those of the device, or ~its index among the host's.
  int32_t*
      // [num_rows, top_k], written: indices among those of the device, num_device for others.
      device_indices;
  void* terms;  // [num_rows, top_k, dim], x's dtype.
  tiers::Payload payload;
  tiers::ExchangeWords* words;
  HostTermsState* state;
  int32_t layer;
  int num_rows;  // At most HostExperts::kMaxRows.
  int num_experts;
  int num_device;
  int num_host;
  float limit;
  int64_t deadline_ns;
};

// Writes device_indices, of any number of rows, and nothing else; LaunchAskHost does so too.
void LaunchPlaces(LaunchContext& context, const HostTermsWork& work);
// Asks the host, if it has any of the chosen experts.
void LaunchAskHost(LaunchContext& context, const HostTermsWork& work);
// Waits for the host and takes its terms; the rows of others are left as they are. After the deadline, or
// where the host failed, a fault.
void LaunchTakeHostTerms(LaunchContext& context, const HostTermsWork& work);

}  // namespace dsv4::backend::cuda
