// A random DeepSeek-V4 in memory, small enough for thousands of steps on the reference backend, with every
// kind of layer: SWA, CSA and HCA (at two ratios), hash and scored routing, two residual streams, a shared
// expert. The window is smaller than the largest ratio and index_topk narrower than the visible set.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/runtime/model.h"

namespace dsv4::test {

enum class ToyFormat : uint8_t {
  kF32,
  kBf16,
  kRelease,       // FP8 blocks, experts MXFP4.
  kNvFp4Experts,  // FP8 blocks, experts NVFP4.
  kNvFp4,         // Every linear NVFP4.
};

struct ToyOptions {
  ToyFormat format = ToyFormat::kBf16;
  // Compress ratios: 4 makes a CSA layer, other positive numbers an HCA layer.
  std::vector<int64_t> ratios = {0, 4, 8, 4, 128};
  int64_t num_hash_layers = 2;
  int64_t max_position_embeddings = int64_t{1} << 21;
  uint32_t seed = 1;
  // Changes weights after they were made. May be empty.
  std::function<void(model::ModelConfig&, model::ModelWeights&)> edit;
};

inline constexpr int64_t kToyVocab = 61;
inline constexpr int64_t kToyWindow = 20;

model::ModelConfig ToyConfig(const ToyOptions& options);
// Weight::activation is set as the loader would.
model::ModelWeights ToyWeights(const model::ModelConfig& config, const ToyOptions& options,
                               model::Numerics numerics);

// One backend for all tests: the reference, on one thread.
const ops::Backend& ToyBackend();

// Small chunks and a short rewind, so that rings wrap often.
model::ModelOptions ToyModelOptions(model::Numerics numerics);

// Fails the test when the model cannot be made.
std::unique_ptr<model::Model> MakeToyModel(const ToyOptions& options,
                                           const model::ModelOptions& model_options,
                                           const ops::Backend& backend = ToyBackend());

// The same random ids for the same seed, whatever the count.
std::vector<int32_t> RandomTokens(int64_t count, uint32_t seed);

// A weight of a format, with its memory.
Weight ToyWeight(std::span<const float> values, int64_t rows, int64_t cols, WeightFormat format,
                 DType plain_dtype, ActivationQuant activation);
// An F32 tensor with its memory in `copies`.
TensorView ToyTensor(std::span<const float> values, Shape shape, std::vector<Buffer>& copies);

}  // namespace dsv4::test
