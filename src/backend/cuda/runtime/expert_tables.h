// ExpertTables: the tables of a model's routed experts (weights/expert_table.h), made once a
// layer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/runtime/device_memory.h"
#include "backend/cuda/weights/expert_table.h"
#include "ops/routed_experts.h"

namespace dsv4::backend::cuda {

class ExpertTables {
 public:
  explicit ExpertTables(DeviceMemory& memory) : memory_(memory) {}

  // The table of `experts`, which the span's address names. Few experts are compared with those that the
  // table was made of. Many are compared only at both ends, as long as no weight has been prepared since.
  // Reading the descriptors of hundreds of experts would take the host as long as the device needs for the
  // layer. Many experts at one address therefore must not change in place without prepare_weight, which is
  // how a model makes them.
  Result<const ExpertTable*> Find(std::span<const ops::ExpertWeights> experts, DType x_dtype);

  // Whether Find would give the table of so many experts without reading them all; they were valid when it
  // was made.
  bool Knows(std::span<const ops::ExpertWeights> experts, DType x_dtype) const;

  // Weights come or change. Steps that were recorded know the tables they had.
  void WeightsChange();

 private:
  struct Entry {
    size_t num_experts = 0;
    DType x_dtype = DType::kBF16;
    const void* first = nullptr;
    const void* last = nullptr;
    uint64_t generation = 0;
    std::vector<DeviceWeight> host;  // Few experts only.
    Buffer device;
    ExpertTable table;

    bool Fits(std::span<const ops::ExpertWeights> experts, DType dtype, uint64_t now) const;
  };

  DeviceMemory& memory_;
  uint64_t generation_ = 0;
  std::map<const void*, Entry> entries_;
};

}  // namespace dsv4::backend::cuda
