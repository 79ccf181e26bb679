// ChoiceCounter: counts which routed experts a model's tokens choose, for a profile
// (apps/shared/expert_profile.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "diag/hooked_backend.h"

namespace dsv4::apps {

// All on the thread that runs the model.
class ChoiceCounter {
 public:
  // The model runs on `backend`, which outlives this.
  ChoiceCounter(diag::HookedBackend& backend, size_t num_layers, size_t num_experts)
      : backend_(backend), counts_(num_layers, std::vector<int64_t>(num_experts)) {}

  // While they are set choices come to the host as the router makes them, which waits for the device in every
  // layer.
  diag::OpHooks Hooks();

  // By layer and expert, and the tokens that chose; since Reset.
  const std::vector<std::vector<int64_t>>& counts() const { return counts_; }
  int64_t num_tokens() const { return num_tokens_; }
  void Reset();

 private:
  Status Count(const ops::RouterArgs& args);

  diag::HookedBackend& backend_;
  // Key of layers, in order: those of drafters come behind the model's, and are not counted.
  std::vector<const void*> layers_;
  std::vector<std::vector<int64_t>> counts_;
  int64_t num_tokens_ = 0;
};

}  // namespace dsv4::apps
