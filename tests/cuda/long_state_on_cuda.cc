// In the widths of the release, for which the kernels read packed rows in ways of their own.
#include "backend/cuda/cuda_backend.h"
#include "tests/engine/long_state.h"

namespace dsv4::testing {

LongStateModel MakeLongStateModel() { return {"mini", {}, *backend::MakeCudaBackend({})}; }

}  // namespace dsv4::testing
