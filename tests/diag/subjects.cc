#include "tests/diag/subjects.h"

#include <stdexcept>

#include "backend/reference/reference_backend.h"

namespace dsv4::testing {
namespace {

template <typename T>
T Take(Result<T> result) {
  if (!result.has_value()) throw std::runtime_error(result.error().ToString());
  return std::move(*result);
}

}  // namespace

DiagnosedModel DiagnoseGolden(const std::string& golden, model::Numerics numerics, const Mutation& mutation) {
  DiagnosedModel made;
  made.tokens = GoldenTokens(golden);
  ModelParts parts = LoadParts(golden, numerics);
  ops::Backend backend = backend::MakeReferenceBackend(2);
  model::ModelOptions options;
  options.numerics = numerics;
  SetScene(parts, static_cast<int64_t>(made.tokens.size()));
  if (mutation.parts) mutation.parts(parts);
  if (mutation.ops) mutation.ops(backend.table);
  if (mutation.options) mutation.options(options);
  made.backend = std::make_unique<diag::HookedBackend>(backend);
  made.model = Take(model::Model::FromWeights(std::move(parts.config), std::move(parts.weights),
                                              made.backend->backend(), options));
  return made;
}

DiagnosedModel DiagnoseTiny(model::Numerics numerics, int64_t num_tokens) {
  DiagnosedModel made;
  made.backend = std::make_unique<diag::HookedBackend>(backend::MakeReferenceBackend(2));
  model::ModelOptions options;
  options.numerics = numerics;
  made.model = Take(model::Model::Load("models/tiny", made.backend->backend(), options));
  for (int64_t i = 0; i < num_tokens; ++i) {
    made.tokens.push_back(static_cast<int32_t>((i * i * 37 + i * 11) % made.model->config().vocab_size));
  }
  return made;
}

}  // namespace dsv4::testing
