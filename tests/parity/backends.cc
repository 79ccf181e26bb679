// Reference backend and the backends compared with it, each instruction set by itself.
#include "tests/parity/backends.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/reference/reference_backend.h"

namespace dsv4::test {

const ops::Backend& Reference() {
  static const ops::Backend backend = backend::MakeReferenceBackend(1);
  return backend;
}

const std::vector<ops::Backend>& Candidates() {
  static const std::vector<ops::Backend> candidates = [] {
    std::vector<ops::Backend> list = {backend::MakeReferenceBackend(3)};
    list.back().name = "reference, 3 threads";
    return list;
  }();
  return candidates;
}

Runs::~Runs() {
  if (!fast_.empty() && !compared_) ADD_FAILURE() << "outputs of the fast backends were not compared";
}

namespace {

bool HasAnyShardOp(const ops::OpTable& table) {
  return ops::MissingShardOps(table).size() < ops::MissingShardOps({}).size();
}

}  // namespace

Runs RunOnAll(const RunOp& run, FastOutputs fast, OpsUsed ops) {
  std::vector<TestTensor> judged = run(Reference());
  const auto expect_same = [](const std::vector<TestTensor>& outputs, const std::vector<TestTensor>& want,
                              const std::string& name) {
    ASSERT_EQ(outputs.size(), want.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].Bytes(), want[i].Bytes()) << name << ", output " << i;
      EXPECT_TRUE(outputs[i].GuardsIntact()) << name << ", output " << i << ": wrote outside";
    }
  };
  expect_same(run(Reference()), judged, Reference().name);
  for (const ops::Backend& candidate : Candidates()) expect_same(run(candidate), judged, candidate.name);
  std::vector<Runs::Fast> fast_runs;
  for (const FastBackend& backend : FastBackends()) {
    if (ops == OpsUsed::kOfShards && !HasAnyShardOp(backend.one_thread.table)) continue;
    std::vector<TestTensor> one = run(backend.one_thread);
    expect_same(run(backend.three_threads), one, backend.one_thread.name + ", 3 threads");
    if (fast == FastOutputs::kSameBits || (fast == FastOutputs::kSameBitsOnHost && !backend.is_device)) {
      expect_same(one, judged, backend.one_thread.name);
    } else {
      fast_runs.push_back({&backend.one_thread, std::move(one)});
    }
  }
  return Runs(std::move(judged), std::move(fast_runs));
}

double SumDepth(int64_t num_terms) { return static_cast<double>(num_terms) / 16 + 32; }

void ExpectFast(const Runs& runs, size_t index, DType dtype, std::span<const double> want,
                std::span<const double> magnitudes, int64_t num_terms, const std::string& what,
                std::span<const double> slack) {
  for (const Runs::Fast& fast : runs.fast()) {
    const std::vector<double> got = fast.outputs[index].Values();
    ASSERT_EQ(got.size(), want.size()) << what;
    size_t num_bad = 0;
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double inner = SumDepth(num_terms) * 0x1p-24 * magnitudes[i] + (slack.empty() ? 0.0 : slack[i]);
      const double bound = RoundingBound(dtype, std::fabs(want[i]) + inner, magnitudes[i]) + inner;
      const double error = std::fabs(got[i] - want[i]);
      if (error <= bound) continue;  // False for NaN.
      ++num_bad;
      worst = std::max(worst, std::isnan(error) ? INFINITY : error / bound);
    }
    EXPECT_EQ(num_bad, 0U) << what << " on " << fast.backend->name << ": " << num_bad << " of " << got.size()
                           << " out of bounds, worst " << worst << " times the bound";
  }
}

}  // namespace dsv4::test
