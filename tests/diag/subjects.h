// Models under diagnosis: golden models and models/tiny, healthy or with a seeded mistake, on a hooked reference backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "diag/subject.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {

struct DiagnosedModel {
  std::unique_ptr<diag::HookedBackend> backend;
  std::unique_ptr<model::Model> model;
  std::vector<int32_t> tokens;

  diag::Subject subject() const { return {*model, *backend}; }
};

// `golden` as in model_runs.h, with its tokens.
DiagnosedModel DiagnoseGolden(const std::string& golden, model::Numerics numerics,
                              const Mutation& mutation = {});
// models/tiny with `num_tokens` ids that repeat none of the compressor's periods.
DiagnosedModel DiagnoseTiny(model::Numerics numerics, int64_t num_tokens);

}  // namespace dsv4::testing
