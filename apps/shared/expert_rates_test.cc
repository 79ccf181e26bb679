// The rates that need no GPU: those of the host's kernels.
#include "apps/shared/expert_rates.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"

namespace dsv4::apps {
namespace {

TEST(ExpertRates, TheHostsKernelsAreTimedInEveryFormatOfExperts) {
  ModelFlags flags;
  flags.num_threads = 2;
  const Result<ops::Backend> device = backend::MakeCpuBackend({.num_threads = 1});  // Nothing is asked of it.
  ASSERT_TRUE(device.has_value());
  for (const WeightFormat format : {WeightFormat::kNvFp4, WeightFormat::kMxFp4, WeightFormat::kFp8Block}) {
    const Result<ExpertRates> rates = MeasureExpertRates(flags, *device, format, 4096, {.host = 1});
    ASSERT_TRUE(rates.has_value()) << rates.error().ToString();
    EXPECT_GT(rates->host, 1e7);
    EXPECT_EQ(rates->host_beside, rates->host);
    // Speed is the machine's to say: others may have its cores just then.
    EXPECT_GT(rates->host_prompt, 1e7);
    EXPECT_EQ(rates->link, 0);
  }
}

}  // namespace
}  // namespace dsv4::apps
