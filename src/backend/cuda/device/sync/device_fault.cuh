// Reporting wrong data from a kernel: the first report is kept.
#pragma once

#include "backend/cuda/device/sync/fault.h"

namespace dsv4::backend::cuda {

__device__ inline void ReportFault(Fault* fault, FaultKind kind, int64_t place0, int64_t place1,
                                   int64_t value, int64_t limit) {
  static_assert(sizeof(FaultKind) == sizeof(int));
  if (atomicCAS(reinterpret_cast<int*>(&fault->kind), static_cast<int>(FaultKind::kNone),
                static_cast<int>(kind)) != static_cast<int>(FaultKind::kNone)) {
    return;
  }
  fault->place[0] = place0;
  fault->place[1] = place1;
  fault->value = value;
  fault->limit = limit;
}

}  // namespace dsv4::backend::cuda
