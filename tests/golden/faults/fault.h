// Seeded mistakes: ops, weights and configurations that are wrong in exactly one way, by the ids of
// mistakes.json. The mutation test runs the engine with each and demands that the golden comparison fails.
//
// Ops are plain function pointers, so a faulty one finds what it needs to know about the model in TheScene().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/golden/model_runs.h"

namespace dsv4::testing {

struct SeededMistake {
  Mutation mutation;
  std::vector<int64_t> pieces = {1000};  // How the tokens are cut, as in RunPieces.
};
using SeededMistakes = std::map<std::string, SeededMistake>;

SeededMistakes AllSeededMistakes();
// Ids of mistakes.json that this engine offers no place to make, with the reason.
const std::map<std::string, std::string>& UnseedableMistakes();

// The model under test, for faulty ops. Set by SetScene before a run.
struct Scene {
  model::ModelConfig config;
  int64_t num_tokens = 0;            // Length of the prompt, which runs as one pass.
  const void* final_norm = nullptr;  // Addresses of weights, to tell calls of one op apart.
  std::vector<const void*> wq_a;     // By layer.
  std::vector<const void*> q_norm;
  std::vector<const void*> indexer_wq_b;  // Null in layers without an indexer.
  std::vector<float> plain_frequencies;
  std::vector<float> compress_frequencies;
  model::HyperConnectionWeights hc_head;  // These four where there is a draft block.
  TensorView tid2eid;
  const void* mtp_hnorm = nullptr;
  const void* mtp_gate_bias = nullptr;
  std::vector<double> saved;  // Notes that one faulty op leaves for the next.

  bool IsCompressTable(const TensorView& frequencies) const;
  // One row for each token of the prompt, in the model's head width: queries, outputs (several heads), window
  // rows (one).
  bool IsTokenRows(const TensorView& x) const;
};
Scene& TheScene();
void SetScene(const ModelParts& parts, int64_t num_tokens);

// The reference ops.
const ops::OpTable& Right();

// Float values of a contiguous tensor, and back with its rounding.
std::vector<double> Values(const TensorView& view);
void SetValues(const TensorView& view, const std::vector<double>& values);

void AddHyperConnectionMistakes(SeededMistakes& mistakes);
void AddRotationMistakes(SeededMistakes& mistakes);
void AddAttentionMistakes(SeededMistakes& mistakes);
void AddCompressorMistakes(SeededMistakes& mistakes);
void AddIndexerMistakes(SeededMistakes& mistakes);
void AddExpertMistakes(SeededMistakes& mistakes);
void AddWeightMistakes(SeededMistakes& mistakes);
void AddDraftMistakes(SeededMistakes& mistakes);

}  // namespace dsv4::testing
