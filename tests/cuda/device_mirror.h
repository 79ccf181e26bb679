// DeviceMirror: runs the ops of a device backend on operands in host memory, so that tests written for host
// backends judge it too.
//
// For each op the memory of every operand goes to the device as it is, surrounded by guards. Rows keep their
// gaps, rings and pages their poison. Operands that share memory on the host share it there. Weights go
// through prepare_weight. After the op everything but the weights comes back. A broken guard is an Internal
// error.
#pragma once

#include "ops/op_table.h"

namespace dsv4::testing {

ops::Backend MakeDeviceMirror(ops::Backend device);

}  // namespace dsv4::testing
