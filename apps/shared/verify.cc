// Verifier for --verify: a reference model over the same mapped weights.
#include "apps/shared/verify.h"

#include <fmt/format.h>

#include <utility>

#include "apps/shared/choose_backend.h"

namespace dsv4::apps {

Result<std::unique_ptr<diag::Verifier>> MakeVerifier(const ModelFlags& flags, const ModelSource& source,
                                                     const model::Model& model, int64_t every) {
  ModelFlags reference_flags = WithBackend(flags, "reference");
  // Copies of states that it gets have the same format.
  reference_flags.cache_rows = CacheRowsOf(flags) == model::CacheRows::kPacked ? "packed" : "wide";
  reference_flags.num_threads = 1;  // The others are the answer's.
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<model::Model> reference, LoadModel(reference_flags, source, {}));
  if (reference->weights_place() != model.weights_place()) {
    return Error(FailedPrecondition(fmt::format(
        "--verify: {}: changed between the load of the model and that of the reference", source.name())));
  }
  return std::make_unique<diag::Verifier>(std::move(reference), diag::VerifierOptions{.every = every});
}

}  // namespace dsv4::apps
