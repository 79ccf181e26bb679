#include "tests/parity/backends.h"

#include <gtest/gtest.h>

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

std::vector<TestTensor> RunOnAll(const RunOp& run) {
  std::vector<TestTensor> judged = run(Reference());
  const auto expect_same = [&](const ops::Backend& backend) {
    const std::vector<TestTensor> outputs = run(backend);
    ASSERT_EQ(outputs.size(), judged.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].Bytes(), judged[i].Bytes()) << backend.name << ", output " << i;
      EXPECT_TRUE(outputs[i].GuardsIntact()) << backend.name << ", output " << i << ": wrote outside";
    }
  };
  expect_same(Reference());
  for (const ops::Backend& candidate : Candidates()) expect_same(candidate);
  return judged;
}

}  // namespace dsv4::test
