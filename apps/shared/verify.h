// --verify of `run` and `serve`: a reference model beside the one that answers.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "diag/verifier.h"

namespace dsv4::apps {

// Loads the reference of `model` and samples every `every`-th decode step. Errors: those of LoadModel;
// FailedPrecondition where the files have changed since `model` was loaded.
Result<std::unique_ptr<diag::Verifier>> MakeVerifier(const ModelFlags& flags, const ModelSource& source,
                                                     const model::Model& model, int64_t every);

}  // namespace dsv4::apps
