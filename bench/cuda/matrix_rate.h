// What tensor cores gives without anything else to do: the ceiling that prefill is compared with.
#pragma once

#include "base/status.h"

namespace dsv4::bench {

// Operations a second (two a product) of bf16 wgmma with fp32 sums on random numbers: two warpgroups an SM, A in registers,
// 128 columns of B in shared memory, nothing loaded or stored between steps; the median of several runs of some 20 ms each,
// on the current device. Real products, which also move data, get less.
Result<double> Bf16MatrixRate();

// The same of e4m3, whose steps have twice the columns.
Result<double> E4m3MatrixRate();

}  // namespace dsv4::bench
