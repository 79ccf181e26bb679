// Models and tokens that tests of diagnose look at.
#include "tests/diag/subjects.h"

#include <algorithm>
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
  const Json info = ReadJson(ModelDirectory(golden) / "golden.json");
  if (info.contains("classes")) options.token_classes = info.at("classes").get<std::vector<int32_t>>();
  SetScene(parts, static_cast<int64_t>(made.tokens.size()));
  if (mutation.parts) mutation.parts(parts);
  if (mutation.ops) mutation.ops(backend.table);
  if (mutation.options) mutation.options(options);
  made.backend = std::make_unique<diag::HookedBackend>(backend);
  made.model = Take(model::Model::FromWeights(std::move(parts.config), std::move(parts.weights),
                                              made.backend->backend(), options));
  return made;
}

diag::RecordedTensor* MemoryDump::Find(int layer, std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const diag::RecordedTensor& tensor) {
    return tensor.layer == layer && tensor.name == name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

bool MemoryDump::Has(int layer, std::string_view name) const {
  return std::any_of(tensors.begin(), tensors.end(), [&](const diag::RecordedTensor& tensor) {
    return tensor.layer == layer && tensor.name == name;
  });
}

Result<std::vector<float>> MemoryDump::Rows(int layer, std::string_view name, int64_t first_row,
                                            int64_t num_rows, int64_t width) {
  const diag::RecordedTensor& tensor = *Find(layer, name);
  if (first_row + num_rows > tensor.num_rows || (num_rows > 0 && width != tensor.width)) {
    return Error(InvalidArgument("rows of another size"));
  }
  const auto begin = tensor.values.begin() + first_row * width;
  return std::vector<float>(begin, begin + num_rows * width);
}

bool MemoryDump::rounds_to_bf16() const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const diag::RecordedTensor& tensor) { return tensor.dtype == DType::kBF16; });
}

MemoryDump RunDump(const DiagnosedModel& model) {
  MemoryDump dump;
  dump.tensors = Take(diag::Record(model.subject(), model.tokens, {}, model::LogitsRows::kAll)).tensors();
  return dump;
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
