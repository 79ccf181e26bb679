// --ab: what changes when one op takes another implementation inside a whole model? Field lesson S4. The
// variant of an op is the op of the same name in another backend's table; everything else stays as it is.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

// The ops that can be exchanged while a model runs: all but prepare_weight, which runs when it loads.
const std::vector<std::string>& ExchangeableOps();

// Op table whose op is called, by the op's name. The backends outlive whatever this is given to.
using OpVariants = std::map<std::string, const ops::Backend*>;

// Hooks that call each op's variant, as often as the op comes. FailedPrecondition when a variant's tensors
// lie on another device than those of `backend`. Backends on the host borrow weights as they are stored, so
// any reads another's.
Result<OpHooks> ExchangeOps(const ops::Backend& backend, const OpVariants& variants);

// Runs `tokens` once as they are and once for every op exchanged alone, and ranks the ops by what the
// exchange does to the logits. A finding for an op that moves them past the bound of an accumulated
// comparison (compare_check.h) or `bound`. `variant_name` is how people call it. Errors: those of
// ExchangeOps, the model's.
Result<CheckReport> CheckEachOp(const Subject& subject, std::span<const int32_t> tokens,
                                const ops::Backend& variant, const std::string& variant_name,
                                std::optional<double> bound);

}  // namespace dsv4::diag
