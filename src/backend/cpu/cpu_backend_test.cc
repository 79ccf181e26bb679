// The choice of the tier. What the ops compute is in tests/parity and tests/golden.
#include "backend/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/parallel.h"

namespace dsv4::backend {
namespace {

using cpu::Isa;

// Sets DSV4_CPU_ISA for one test, and puts back what was there.
class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* before = std::getenv(kName); before != nullptr) before_ = before;
    value == nullptr ? unsetenv(kName) : setenv(kName, value, 1);
  }
  ~Environment() { before_.empty() ? unsetenv(kName) : setenv(kName, before_.c_str(), 1); }

 private:
  static constexpr const char* kName = "DSV4_CPU_ISA";
  std::string before_;
};

TEST(CpuBackend, HasEveryOpOnEveryTierOfThisMachine) {
  for (const Isa isa : cpu::AvailableIsas()) {
    const auto backend = MakeCpuBackend({.num_threads = 2, .isa = isa});
    ASSERT_TRUE(backend.has_value()) << backend.error().ToString();
    EXPECT_TRUE(ops::MissingOps(backend->table).empty());
    EXPECT_EQ(backend->name, "cpu (" + std::string(cpu::IsaName(isa)) + ")");
    EXPECT_EQ(backend->context->threads().num_threads(), 2);
  }
}

TEST(CpuBackend, BestTierUnlessTheEnvironmentNamesOne) {
  {
    const Environment none(nullptr);
    std::vector<Isa> available = cpu::AvailableIsas();
    if (available.back() == Isa::kAmx) available.pop_back();  // Only by name.
    EXPECT_EQ(*cpu::ChooseIsa(std::nullopt), available.back());
  }
  for (const Isa isa : cpu::AvailableIsas()) {
    const Environment forced(std::string(cpu::IsaName(isa)).c_str());
    EXPECT_EQ(*cpu::ChooseIsa(std::nullopt), isa);
    EXPECT_EQ(*cpu::ChooseIsa(Isa::kScalar), Isa::kScalar);  // An explicit choice is stronger.
  }
}

TEST(CpuBackend, AnUnknownTierIsAnError) {
  const Environment forced("avx1024");
  const auto backend = MakeCpuBackend({});
  ASSERT_FALSE(backend.has_value());
  EXPECT_EQ(backend.error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckCpuVariables(), backend.error());
  EXPECT_NE(backend.error().message().find("'avx1024'"), std::string::npos);
}

TEST(CpuBackend, ATierTheMachineLacksIsAnError) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    const auto available = cpu::AvailableIsas();
    const bool has = std::find(available.begin(), available.end(), isa) != available.end();
    const auto chosen = cpu::ChooseIsa(isa);
    ASSERT_EQ(chosen.has_value(), has) << cpu::IsaName(isa);
    if (has) continue;
    EXPECT_EQ(chosen.error().code(), StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace dsv4::backend
