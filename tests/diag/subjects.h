// Models under diagnosis: golden models and models/tiny, healthy or with a seeded mistake, on a hooked
// reference backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "diag/subject.h"
#include "diag/tensor_source.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {

struct DiagnosedModel {
  std::unique_ptr<diag::HookedBackend> backend;
  std::unique_ptr<model::Model> model;
  std::vector<int32_t> tokens;

  diag::Subject subject() const { return {*model, *backend}; }
};

// The other run of a comparison in memory, to be altered.
struct MemoryDump final : diag::TensorSource {
  std::vector<diag::RecordedTensor> tensors;

  diag::RecordedTensor* Find(int layer, std::string_view name);
  bool Has(int layer, std::string_view name) const override;
  Result<std::vector<float>> Rows(int layer, std::string_view name, int64_t first_row, int64_t num_rows,
                                  int64_t width) override;
  bool rounds_to_bf16() const override;
};

// One prefill of the model's tokens.
MemoryDump RunDump(const DiagnosedModel& model);

// `golden` as in model_runs.h, with its tokens.
DiagnosedModel DiagnoseGolden(const std::string& golden, model::Numerics numerics,
                              const Mutation& mutation = {});
// models/tiny with `num_tokens` ids that repeat none of the compressor's periods.
DiagnosedModel DiagnoseTiny(model::Numerics numerics, int64_t num_tokens);

}  // namespace dsv4::testing
