// A golden model loaded from tests/golden/models, and its token ids run through a Model in any pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/runtime/model.h"
#include "tests/compare.h"
#include "tests/golden/golden_data.h"

namespace dsv4::testing {

// "tf_wide", "fp8_mxfp4", ...: every folder below models/, sorted.
std::vector<std::string> GoldenModels();
// Goldens of transformers, and those with a long prompt in the release's formats.
std::vector<std::string> TransformersGoldens();
std::vector<std::string> ReleaseGoldens();

std::filesystem::path ModelDirectory(const std::string& golden);
std::vector<int32_t> GoldenTokens(const std::string& golden);
// The prompts of short.json.
std::vector<std::vector<int32_t>> ShortPrompts(const std::string& golden);
// The values of a .npy file of the golden.
std::vector<float> GoldenLogits(const std::string& golden, const std::string& file);

// The model of shared/, whose plans are layers.json's in place of config.json's.
std::filesystem::path SharedDirectory();
model::ModelConfig SharedConfig();

struct ModelParts {
  model::ModelConfig config;
  model::ModelWeights weights;
};
ModelParts LoadParts(const std::string& golden, model::Numerics numerics, bool drafter = false);

// The backends that the goldens judge: "reference" and the CPU backend on every tier of this machine,
// "cpu_scalar", "cpu_avx2", ... (golden_backends.cc); in the GPU's build of these tests "cuda"
// (tests/cuda/golden_backends.cc). Names serve as names of tests. "reference" can always be made.
std::vector<std::string> GoldenBackends();
ops::Backend MakeGoldenBackend(const std::string& name, int num_threads = 2);
// The same for ops on operands in host memory.
ops::Backend MakeOpGoldenBackend(const std::string& name);
// A contiguous F32 tensor that an observer is shown, wherever it lies.
std::vector<float> HostFloats(const TensorView& tensor);

// Changes to a golden model before it is built: the seeds of mutation tests. Empty functions change nothing.
struct Mutation {
  std::function<void(ModelParts&)> parts;
  std::function<void(ops::OpTable&)> ops;
  std::function<void(model::ModelOptions&)> options;
};
std::unique_ptr<model::Model> LoadGolden(const std::string& golden, model::Numerics numerics,
                                         const Mutation& mutation = {},
                                         const std::string& backend = "reference", bool drafter = false);

// Logits of every token, fed to one new sequence in pieces of `pieces` tokens in turn (the last repeats).
std::vector<float> RunPieces(model::Model& model, std::span<const int32_t> tokens,
                             std::vector<int64_t> pieces, model::Observer* observer = nullptr);

// Logits of drafts, [tokens - 1, num_drafted, vocab]. The tokens are read one by one. Row t is drafted
// greedily behind token t with token t + 1, which is known.
std::vector<float> RunDrafts(model::Model& model, std::span<const int32_t> tokens, int64_t num_drafted);

// The bounds of README.md.
CosineBound PlainBound();
CosineBound ReleaseBound();

}  // namespace dsv4::testing
