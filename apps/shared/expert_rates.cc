// Measured rates of host kernels, link and device copies, alone and together.
#include "apps/shared/expert_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "apps/shared/bench_machine.h"
#include "backend/cuda/cuda_backend.h"
#include "base/stopwatch.h"
#include "diag/statistics.h"

namespace dsv4::apps {
namespace {

// A weight like an expert's, far larger than any cache, of bytes that are numbers in every format.
struct LargeWeight {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
  Weight weight;
};

LargeWeight MakeLarge(WeightFormat format, int64_t cols) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  LargeWeight large;
  Weight& weight = large.weight;
  weight.format = format;
  weight.cols = cols;
  const bool fp4 = format == WeightFormat::kMxFp4 || format == WeightFormat::kNvFp4;
  const int64_t element_bytes = format == WeightFormat::kPlain ? 2 : 1;
  const int64_t row_bytes = fp4 ? cols / 2 : cols * element_bytes;
  constexpr int64_t kRowsOfBlock = 128;
  weight.rows = kBytes / row_bytes / kRowsOfBlock * kRowsOfBlock;
  large.data.resize(static_cast<size_t>(weight.rows * row_bytes));
  // Small numbers, all different, so that no page is another's.
  for (size_t i = 0; i < large.data.size(); ++i)
    large.data[i] = static_cast<uint8_t>((i * 0x9E3779B97F4A7C15) >> 56 & 0x3B);
  const DType dtype = fp4 ? DType::kU8 : format == WeightFormat::kPlain ? DType::kBF16 : DType::kF8E4M3;
  weight.data = TensorView::Contiguous(static_cast<void*>(large.data.data()), dtype,
                                       {weight.rows, fp4 ? cols / 2 : cols});
  if (format == WeightFormat::kPlain) return large;
  const int64_t scale_rows = fp4 ? weight.rows : weight.rows / kRowsOfBlock;
  const int64_t block = format == WeightFormat::kMxFp4   ? kMxFp4Block
                        : format == WeightFormat::kNvFp4 ? kNvFp4Block
                                                         : kActivationBlock;
  constexpr uint8_t kOneE8m0 = 127;
  constexpr uint8_t kOneE4m3 = 0x38;
  const bool e4m3 = format == WeightFormat::kNvFp4;
  large.scale.assign(static_cast<size_t>(scale_rows * (cols / block)), e4m3 ? kOneE4m3 : kOneE8m0);
  weight.scale = TensorView::Contiguous(static_cast<void*>(large.scale.data()),
                                        e4m3 ? DType::kF8E4M3 : DType::kF8E8M0, {scale_rows, cols / block});
  if (format == WeightFormat::kFp8Block) weight.block_rows = weight.block_cols = kRowsOfBlock;
  if (!e4m3) weight.activation = ActivationQuant::kFp8Block;
  return large;
}

// Passes over a large weight with the host's kernels.
class HostReader {
 public:
  static Result<HostReader> Make(const ModelFlags& flags, WeightFormat format, int64_t cols) {
    DSV4_ASSIGN_OR_RETURN(ops::Backend backend, MakeExpertBackend(flags));
    return HostReader(std::move(backend), MakeLarge(format, cols));
  }

  // Bytes a second of one pass over all of it for one token.
  Result<double> Pass() { return Pass(large_.weight, 1); }
  // Seconds of one over a part of it for a tile of a prompt, times its tokens.
  Result<double> PromptPass() {
    constexpr int64_t kTokens = 128;
    constexpr int64_t kPart = 8;
    const Weight part = large_.weight.Rows(0, large_.weight.rows / kPart / kTokens * kTokens);
    return Pass(part, kTokens);
  }

 private:
  Result<double> Pass(const Weight& weight, int64_t num_tokens) {
    const int64_t cols = weight.cols;
    const int64_t rows = weight.rows;
    x_.resize(static_cast<size_t>(num_tokens * cols), 0x3F80);
    y_.resize(static_cast<size_t>(num_tokens * rows));
    const Stopwatch stopwatch;
    DSV4_TRY(backend_.table.linear(
        *backend_.context,
        {.x = TensorView::Contiguous(static_cast<void*>(x_.data()), DType::kBF16, {num_tokens, cols}),
         .weight = &weight,
         .y = TensorView::Contiguous(static_cast<void*>(y_.data()), DType::kBF16, {num_tokens, rows})}));
    const auto num_bytes = weight.data.num_bytes() + (weight.scale.is_null() ? 0 : weight.scale.num_bytes());
    return static_cast<double>(num_bytes * num_tokens) / stopwatch.seconds();
  }
  HostReader(ops::Backend backend, LargeWeight large)
      : backend_(std::move(backend)), large_(std::move(large)) {}

  ops::Backend backend_;
  LargeWeight large_;  // Its views are of vectors, which keep their memory.
  std::vector<uint16_t> x_;
  std::vector<uint16_t> y_;
};

}  // namespace

Result<ExpertRates> MeasureExpertRates(const ModelFlags& flags, const ops::Backend& device,
                                       WeightFormat format, int64_t cols, const model::ExpertSplit& split) {
  constexpr int kPasses = 7;
  ExpertRates rates;
  std::optional<HostReader> host;
  if (split.host > 0) {
    DSV4_ASSIGN_OR_RETURN(host, HostReader::Make(flags, format, cols));
    for (int pass = 0; pass < kPasses; ++pass) {
      DSV4_ASSIGN_OR_RETURN(const double rate, host->Pass());
      rates.host = std::max(rates.host, rate);
    }
    rates.host_beside = rates.host;
    DSV4_ASSIGN_OR_RETURN(rates.host_prompt, host->PromptPass());  // The first one warms up.
    DSV4_ASSIGN_OR_RETURN(rates.host_prompt, host->PromptPass());
  }
  if (split.cached > 0) {
    DSV4_ASSIGN_OR_RETURN(rates.link, backend::HostToDeviceRate(device));
    rates.link_beside = rates.link;
  }
  if (split.host == 0 || split.cached == 0) return rates;
  // Both read the same memory.
  std::atomic<bool> done = false;
  std::vector<double> passes;
  Status failed;
  std::thread reads([&] {
    while (!done) {
      const Result<double> rate = host->Pass();
      if (!rate.has_value()) {
        failed = rate.error();
        return;
      }
      passes.push_back(*rate);
    }
  });
  const Result<double> link = backend::HostToDeviceRate(device);
  done = true;
  reads.join();
  DSV4_TRY(failed);
  DSV4_ASSIGN_OR_RETURN(rates.link_beside, link);
  rates.host_beside = diag::Median(std::move(passes));
  return rates;
}

Result<double> MeasureDeviceRate(const ops::Backend& device) {
  DSV4_ASSIGN_OR_RETURN(const BenchMeter meter, BenchMeter::OfDevice(device.context->memory()));
  const double rate = meter.Measure().read_bandwidth;
  if (rate <= 0) return Error(Internal("the rate of the GPU's memory: its copies cannot be timed"));
  return rate;
}

}  // namespace dsv4::apps
