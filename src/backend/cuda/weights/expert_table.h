// ExpertTable: the weights of a layer's routed experts as its kernels see them, on the device (runtime/expert_tables.h).
#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// One form of x and one kernel: a launch of its own. Experts of one format share a single one.
struct ExpertVariant {
  MatmulKind kind = MatmulKind::kGeneral;
  int x_group = 0;
  friend bool operator==(const ExpertVariant&, const ExpertVariant&) = default;
};

struct E4m3Experts;  // kernels/packing/e4m3_experts.h

struct ExpertTable {
  std::vector<ExpertVariant> gate_up;
  std::vector<ExpertVariant> down;
  const DeviceWeight* weights = nullptr;  // Device memory: w1, w3, w2 of every expert.
  // All w1 and w3, and all w2, are like these but for their data, their scales and the factor on them.
  bool alike = false;
  bool copied_in_bulk = false;  // All lie where TMA takes them from (IsBulkAligned).
  DeviceWeight w1;
  DeviceWeight w2;
  // Facts for products in FP8 about these experts; null until they ask.
  mutable std::shared_ptr<const E4m3Experts> e4m3;
};

}  // namespace dsv4::backend::cuda
