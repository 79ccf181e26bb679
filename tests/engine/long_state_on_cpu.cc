// Model of the long-state test on the CPU backend.
#include "backend/cpu/cpu_backend.h"
#include "tests/engine/long_state.h"

namespace dsv4::testing {

LongStateModel MakeLongStateModel() {
  return {"tiny", {}, *backend::MakeCpuBackend({.num_threads = 2, .isa = {}})};
}

}  // namespace dsv4::testing
