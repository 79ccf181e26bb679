// The reference backend: every op as its contract and the specification say it, slow and obvious, sums in
// double. It is the judge of the other backends and always built. Rows of independent outputs may run on
// several threads; no result depends on how many.
#pragma once

#include "ops/op_table.h"

namespace dsv4::backend {

// num_threads >= 1 counts the calling thread.
ops::Backend MakeReferenceBackend(int num_threads);

}  // namespace dsv4::backend
