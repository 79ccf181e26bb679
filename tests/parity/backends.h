// How parity tests run an op: on the reference with one thread, which is the judge, and on every other backend present.
#pragma once

#include <functional>
#include <vector>

#include "ops/op_table.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {

// The judge.
const ops::Backend& Reference();

// The backends compared with it; today the reference on several threads, whose results must be the same bits.
const std::vector<ops::Backend>& Candidates();

// Calls `run`, which makes fresh outputs, runs one op and returns the outputs, on the reference, on the reference again
// and on every candidate. Expects equal bits and intact guards everywhere; returns the reference's outputs.
using RunOp = std::function<std::vector<TestTensor>(const ops::Backend&)>;
std::vector<TestTensor> RunOnAll(const RunOp& run);

// A vector of move-only tensors, which an initializer list cannot make.
template <typename... Tensors>
std::vector<TestTensor> Outputs(Tensors&&... tensors) {
  std::vector<TestTensor> outputs;
  (outputs.push_back(std::move(tensors)), ...);
  return outputs;
}

}  // namespace dsv4::test
