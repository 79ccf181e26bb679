// How parity tests run an op: on the reference with one thread, which is the judge, and on every other
// backend present.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/op_table.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {

// The judge.
const ops::Backend& Reference();

// Backends whose results must be the judge's bits: the reference on several threads.
const std::vector<ops::Backend>& Candidates();

// Backends that sum matrix products in fp32, each made twice: results must be the same bits. On the host it
// is the CPU backend on every instruction-set tier of this machine, with one thread and with three
// (fast_backends.cc). In the GPU's build of these tests it is the CUDA backend (tests/cuda/fast_backends.cc).
struct FastBackend {
  ops::Backend one_thread;
  ops::Backend three_threads;
  bool is_device = false;
};
const std::vector<FastBackend>& FastBackends();

// Outputs that a fast backend's are compared with: the judge's bits, or by the test, within a bound. A device
// sums hyper-connections in fp32, where the host has the judge's double.
enum class FastOutputs { kSameBits, kSameBitsOnHost, kBounded };

// Outputs of the judge and, if bounded, of the fast backends. A test that asks for them and never looks
// fails.
class Runs : public std::vector<TestTensor> {
 public:
  struct Fast {
    const ops::Backend* backend;
    std::vector<TestTensor> outputs;
  };

  Runs(std::vector<TestTensor> judged, std::vector<Fast> fast)
      : std::vector<TestTensor>(std::move(judged)), fast_(std::move(fast)) {}
  Runs(Runs&&) = default;
  Runs& operator=(Runs&&) = delete;
  ~Runs();

  const std::vector<Fast>& fast() const {
    compared_ = true;
    return fast_;
  }

 private:
  std::vector<Fast> fast_;
  mutable bool compared_ = false;
};

// Ops that a test calls: ops that every backend has, or those for ranks that divide a sequence's entries.
// Fast backends that have none of the latter are left out.
enum class OpsUsed { kOfEveryModel, kOfShards };

// Calls `run`, which makes fresh outputs, runs one op and returns the outputs, on every backend, on the judge
// twice. Expects intact guards everywhere, and equal bits as said above.
using RunOp = std::function<std::vector<TestTensor>(const ops::Backend&)>;
Runs RunOnAll(const RunOp& run, FastOutputs fast = FastOutputs::kSameBits,
              OpsUsed ops = OpsUsed::kOfEveryModel);

// Roundings that an fp32 sum of `num_terms` products may go through: every tier adds in at least sixteen
// chains, and 32 more for joining them.
double SumDepth(int64_t num_terms);

// Expects output `index` of every fast backend to lie within ExpectRounded's bound plus the error of fp32
// sums: SumDepth roundings of values up to `magnitudes`, plus `slack` (may be empty) for what else the op may
// do.
void ExpectFast(const Runs& runs, size_t index, DType dtype, std::span<const double> want,
                std::span<const double> magnitudes, int64_t num_terms, const std::string& what,
                std::span<const double> slack = {});

// A vector of move-only tensors, which an initializer list cannot make.
template <typename... Tensors>
std::vector<TestTensor> Outputs(Tensors&&... tensors) {
  std::vector<TestTensor> outputs;
  (outputs.push_back(std::move(tensors)), ...);
  return outputs;
}

}  // namespace dsv4::test
