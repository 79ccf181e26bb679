// What the machine can do, measured in the same process as the ops: the bounds that their figures are percentages of.
#pragma once

#include "backend/cpu/isa.h"
#include "base/parallel.h"

namespace dsv4::backend::cpu {

// Bytes per second that all threads read together from memory far larger than any cache; the best of several passes.
double ReadBandwidth(ThreadPool& threads);

// Multiply-adds per second of all threads together, from registers: bf16 dot products on the bf16 tier, fp32 otherwise.
double MultiplyAddPeak(ThreadPool& threads, Isa isa);

}  // namespace dsv4::backend::cpu
