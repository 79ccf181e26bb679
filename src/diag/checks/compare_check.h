// compare: our run, op by op, against another run of the same tokens: an external dump, another backend,
// other numerics. Names the first op past its bound instead of printing two thousand cosines. Field lessons
// F3 and N9.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"
#include "diag/tensor_source.h"

namespace dsv4::diag {

// Meaning of an error.
enum class CompareMode : uint8_t {
  kAccumulated,  // Both runs start from the token ids: the error at an op is that of everything before it too.
  kSharedInputs,  // After each op our result is replaced by the other run's: the error is the op's own.
};

struct CompareOptions {
  CompareMode mode = CompareMode::kAccumulated;
  // Both runs are ours and keep the same contracts: with shared inputs only rounding may differ, so the
  // bounds are nearer.
  bool same_contract = false;
  // ||a - b|| / ||b|| of a row that still passes, for every tensor. Absent: 1e-3 accumulated and 1e-4 shared
  // for fp32 runs, 0.2 and 0.02 with bf16 on either side. With bf16 and the same contract, shared bounds are
  // by tensor (compare_check.cc).
  std::optional<double> bound;
};

// The bound of an accumulated comparison without options.bound.
double AccumulatedBound(bool bf16);

// Runs `tokens` in one prefill, as the other run did. Tensors that only one side has are left out (a dump may
// hold few). Chosen experts and entries are compared as sets; more than 1 % of rows with another choice (10 %
// accumulated with bf16) are past the bound. What store_rows wrote is read back, whatever the other run has.
// Errors: InvalidArgument when nothing can be compared, or a tensor's rows have another size; the model's.
Result<CheckReport> CheckCompare(const Subject& subject, std::span<const int32_t> tokens, TensorSource& other,
                                 const CompareOptions& options);

// The same in the way that tells most. It compares accumulated errors, and shared inputs too if the dump
// holds every tensor that the model computes. options.mode does not count.
Result<CheckReport> CheckAgainstDump(const Subject& subject, std::span<const int32_t> tokens,
                                     TensorSource& dump, const CompareOptions& options);

}  // namespace dsv4::diag
