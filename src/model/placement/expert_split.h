// ExpertSplit: which routed experts a device keeps, which it brings from the host when they are chosen, and
// which the host multiplies. Fixed when a model loads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ops/prepare_weight.h"

namespace dsv4::model {

// Experts of every layer, by tier.
struct ExpertSplit {
  int64_t resident = 0;
  int64_t host = 0;
  int64_t cached = 0;
  // How many of all layers' cached ones the device has room for at once; 0: not decided. No answer depends on
  // it.
  int64_t slots = 0;

  int64_t total() const { return resident + cached + host; }
  bool all_resident() const { return cached == 0 && host == 0; }
  friend bool operator==(const ExpertSplit& a, const ExpertSplit& b) = default;
};

// "host=192", "resident=64,cached=192", "cached=50%,host=25%": numbers of a layer's `num_experts` or a share
// of them, each tier at most once. What is not named has none, but for `resident`, which then has all the
// others. With `cached` there may be "slots=3000" or "slots=30%": of the cached ones of all `num_layers`, at
// least those of one layer and at most all. InvalidArgument for other words or another sum.
Result<ExpertSplit> ParseExpertSplit(std::string_view text, int64_t num_experts, int64_t num_layers);
// The same in words that ParseExpertSplit understands.
std::string ToString(const ExpertSplit& split);
// Splits of a model's stages: the same where all are alike, else "stage 0 host=192,resident=64; stage 1 ...".
std::string ToString(std::span<const ExpertSplit> of_stages);

// The tier of every expert of a layer, by id: the first of `order` are resident, the next ones cached. An
// empty order is that of the ids; others name every expert once.
std::vector<ops::WeightTier> TiersOf(const ExpertSplit& split, const std::vector<int32_t>& order);

}  // namespace dsv4::model
