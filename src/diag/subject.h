// Subject that the checks of a model look at, and the one way they run it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "diag/hooked_backend.h"
#include "diag/recording.h"
#include "model/runtime/model.h"

namespace dsv4::diag {

// Borrowed. `model` was made on backend.backend().
struct Subject {
  model::Model& model;
  HookedBackend& backend;

  ops::OpContext& context() const { return *backend.inner().context; }
};

// Feeds `tokens` to a new sequence, pieces[i] of them at a time (the last size repeats; empty: all at once).
// Returns the logits of the rows that each piece was asked for, one behind the other.
Result<std::vector<float>> RunTokens(const Subject& subject, std::span<const int32_t> tokens,
                                     std::span<const int64_t> pieces, model::LogitsRows logits,
                                     model::Observer* observer = nullptr);

// The tensors of such a run that `filter` lets through (empty: all).
Result<Recording> Record(const Subject& subject, std::span<const int32_t> tokens,
                         std::span<const int64_t> pieces, model::LogitsRows logits,
                         Recording::Filter filter = {});

// Which op of ops/op_table.h wrote the tensor `name` of model/graph/observer.h last; empty for inputs.
std::string_view OpBehind(std::string_view tensor_name);

}  // namespace dsv4::diag
