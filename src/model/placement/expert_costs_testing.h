// A machine and a model for tests of splits.
#pragma once

#include "model/placement/expert_choice.h"

namespace dsv4::model {

// Flash with NVFP4 experts, a third of which fit, on a host that reads 60 GB/s behind a link of 50.
inline ExpertCosts FlashCosts() {
  return {.num_layers = 43,
          .num_experts = 256,
          .top_k = 6,
          .expert_bytes = 14.16e6,
          .room = 43 * 256 / 3,
          .pinnable = 43 * 256,
          .host = 60e9,
          .link = 50e9,
          .host_beside = 50e9,
          .link_beside = 40e9,
          .host_prompt = 1e12,
          .streamed_choices = 4};
}

}  // namespace dsv4::model
