// The tensors of a random checkpoint: names, stored forms, and what each is filled with.
#pragma once

#include <cstdint>
#include <vector>

#include "io/safetensors_writer.h"
#include "model/config/config.h"
#include "model/synthetic/synthetic_shape.h"

namespace dsv4::model {

// How the elements of one tensor come about.
enum class SyntheticFill : uint8_t {
  kNormal,       // Normal numbers, mean 0.
  kOnes,         //
  kConstant,     // One F32 number, `sigma`.
  kE8m0Scales,   // 2^k with k or k - 1, about sigma.
  kF32Scales,    // sigma or half of it.
  kNvFp4Scales,  // e4m3 numbers from 16 to 30.
  kExpertIds,    // Rows of different ids below `limit`.
};

struct SyntheticTensor {
  io::TensorSpec spec;
  SyntheticFill fill = SyntheticFill::kNormal;
  double sigma = 1;  // Standard deviation of what the elements, before their scale, stand for.
  bool four_bit = false;
  int64_t limit = 0;  // kExpertIds.
  int64_t row = 1;    // kExpertIds: ids in a row.
};

// Every tensor that a checkpoint of `config` has in `format`, in the order of the model.
std::vector<SyntheticTensor> PlanSyntheticTensors(const ModelConfig& config, SyntheticFormat format);

}  // namespace dsv4::model
