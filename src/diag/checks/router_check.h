// router: does each router choose the experts that answer? In a trained model an expert that a token is routed to has a larger output for it
// than for tokens that go elsewhere. Experts in another order, or the router or the experts of another layer, keep every size and lose that.
//
// Some tokens of a text are read, and in every layer each expert's output for each of them is computed by the model's own op. Its logarithm and
// the router's logit are compared, both about the means of their token and their expert. Their correlation is near 0 where the two do not belong
// together.
#pragma once

#include <cstdint>
#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

// Multiplications that the check takes beside reading the text.
double RouterCheckWork(const model::Model& model);

// A finding for layers whose routers do not go along with their experts, where those of all others do. Such layers are two at most, or an
// eighth. Not applicable with fewer than 4 layers that route by score, or where routers do not go along. It reads the first 80 tokens of
// `tokens`, a text that a trained model understands. Errors: those of Model::Step and of the op.
Result<CheckReport> CheckRouter(const Subject& subject, std::span<const int32_t> tokens);

}  // namespace dsv4::diag
