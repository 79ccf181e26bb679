// Rate of tensor cores without anything else to do: the ceiling that prefill is compared with.
#pragma once

#include "base/status.h"

namespace dsv4::bench {

// Operations a second (two a product) of bf16 wgmma with fp32 sums on random numbers. There are two
// warpgroups an SM, A is in registers, and 128 columns of B in shared memory. Nothing is loaded or stored
// between steps. It is the median of several runs of some 20 ms each, on the current device. Real products,
// which also move data, get less.
Result<double> Bf16MatrixRate();

// The same of e4m3, whose steps have twice the columns.
Result<double> E4m3MatrixRate();

}  // namespace dsv4::bench
