// Ops exchanged inside a whole model: a right variant changes nothing, a wrong one is named.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <set>

#include "backend/reference/reference_backend.h"
#include "base/parallel.h"
#include "diag/checks/ab_check.h"
#include "tests/diag/seeded_ops.h"
#include "tests/diag/subjects.h"

namespace dsv4::testing {
namespace {

using diag::CheckReport;
using diag::Verdict;

// Backends differ by rounding; here both are the reference, so the bound can be sharp.
CheckReport EachOp(const DiagnosedModel& model, const ops::Backend& variant) {
  const Result<CheckReport> report =
      diag::CheckEachOp(model.subject(), model.tokens, variant, "variant", 1e-6);
  EXPECT_TRUE(report.has_value()) << report.error().message();
  return report.has_value() ? *report : CheckReport{};
}

// Twenty runs each: enough for entries of every compressor.
constexpr size_t kNumTokens = 24;

TEST(EachOpTest, TheSameOpsChangeNothing) {
  DiagnosedModel model = DiagnoseGolden("fp8_mxfp4", model::Numerics::kRelease);
  model.tokens.resize(kNumTokens);
  const CheckReport report = EachOp(model, backend::MakeReferenceBackend(1));
  EXPECT_EQ(report.verdict, Verdict::kPass);
  ASSERT_EQ(report.tables.size(), 1U);
  EXPECT_GE(report.tables[0].rows.size(), 18U);
  for (const std::vector<std::string>& row : report.tables[0].rows) {
    EXPECT_NE(row[1], "0") << row[0] << " was never called";
    EXPECT_EQ(row[2], "0") << row[0];
    EXPECT_EQ(row.back(), "0") << row[0];
  }
}

// One mistake for every op that has one; all are tried elsewhere.
TEST(EachOpTest, AWrongVariantIsNamed) {
  std::set<std::string> seen;
  for (const SeededOp& fault : SeededOps()) {
    const Mutation mutation = AllSeededMistakes().at(fault.mistake).mutation;
    const std::set<std::string> replaced = ReplacedOps(mutation);
    if (replaced.size() != 1 || !seen.insert(*replaced.begin()).second) continue;
    Mutation options_only;
    options_only.options = mutation.options;
    DiagnosedModel healthy = DiagnoseGolden(fault.golden, fault.numerics, options_only);
    // The indexer matters where entries outnumber its choices only.
    const bool indexer = replaced.contains("indexer_select") || replaced.contains("hadamard_fp4");
    if (!indexer && healthy.tokens.size() > kNumTokens) healthy.tokens.resize(kNumTokens);
    TheScene().num_tokens = static_cast<int64_t>(healthy.tokens.size());
    ops::Backend wrong = backend::MakeReferenceBackend(2);
    mutation.ops(wrong.table);
    const CheckReport report = EachOp(healthy, wrong);
    ASSERT_EQ(report.verdict, Verdict::kFinding) << fault.mistake << ": " << report.headline;
    EXPECT_EQ(report.location->op, *replaced.begin()) << fault.mistake;
    EXPECT_EQ(report.tables[0].rows[0][0], *replaced.begin());
    EXPECT_EQ(report.tables[0].rows[1][2], "0") << "ops that are right change nothing";
  }
  std::cout << "  " << seen.size() << " ops\n";
  EXPECT_GE(seen.size(), 8U);
}

TEST(EachOpTest, AVariantThatGivesNaNIsNamed) {
  DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  model.tokens.resize(4);
  ops::Backend broken = backend::MakeReferenceBackend(1);
  broken.table.swiglu = [](ops::OpContext& context, const ops::SwigluArgs& args) -> Status {
    DSV4_RETURN_IF_ERROR(Right().swiglu(context, args));
    args.y.as<float>()[0] = std::nanf("");
    return {};
  };
  const CheckReport report = EachOp(model, broken);
  ASSERT_EQ(report.verdict, Verdict::kFinding);
  EXPECT_EQ(report.location->op, "swiglu");
  EXPECT_NE(report.headline.find("inf"), std::string::npos) << report.headline;
}

TEST(EachOpTest, AVariantThatFailsIsAnErrorThatNamesIt) {
  DiagnosedModel model = DiagnoseGolden("tf_narrow", model::Numerics::kPlain);
  model.tokens.resize(4);
  ops::Backend broken = backend::MakeReferenceBackend(1);
  broken.table.rope = [](ops::OpContext&, const ops::RopeArgs&) { return Internal("no rope today"); };
  const Result<CheckReport> report =
      diag::CheckEachOp(model.subject(), model.tokens, broken, "broken", std::nullopt);
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().message().find("rope=broken"), std::string::npos) << report.error().message();
  EXPECT_NE(report.error().message().find("no rope today"), std::string::npos) << report.error().message();
}

// Says that it is a GPU's.
class FarMemory final : public Memory {
 public:
  Device device() const override { return {DeviceType::kCuda, 0}; }
  Result<Buffer> Allocate(size_t num_bytes) override { return HostMemory().Allocate(num_bytes); }
  Status Copy(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return HostMemory().Copy(to, from, num_bytes, stream);
  }
  Status CopyFromHost(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return HostMemory().CopyFromHost(to, from, num_bytes, stream);
  }
  Status CopyToHost(void* to, const void* from, size_t num_bytes, Stream stream) override {
    return HostMemory().CopyToHost(to, from, num_bytes, stream);
  }
};

class FarContext final : public ops::OpContext {
 public:
  Memory& memory() override { return memory_; }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }

 private:
  FarMemory memory_;
  ThreadPool threads_{1};
};

TEST(ExchangeOpsTest, AVariantOnAnotherDeviceIsRefusedBeforeItRuns) {
  const ops::Backend here = backend::MakeReferenceBackend(1);
  ops::Backend far = here;
  far.name = "far";
  far.context = std::make_shared<FarContext>();
  const Result<diag::OpHooks> hooks = diag::ExchangeOps(here, {{"rope", &far}});
  ASSERT_FALSE(hooks.has_value());
  EXPECT_EQ(hooks.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(hooks.error().message().find("rope of backend far"), std::string::npos)
      << hooks.error().message();
}

}  // namespace
}  // namespace dsv4::testing
