#include "apps/bench/bench_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/checkpoint/resolved_checkpoint.h"

namespace dsv4::apps {
namespace {

// Of so many experts of a layer, how many a step reads.
double Chosen(const BenchExperts& e, int64_t num_experts, int64_t batch) {
  const double missed = 1.0 - static_cast<double>(e.top_k) / static_cast<double>(e.split.total());
  return static_cast<double>(num_experts) * (1.0 - std::pow(missed, static_cast<double>(batch)));
}

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

Result<double> MeasureHost(const ModelFlags& flags, WeightFormat format, int64_t cols) {
  constexpr int kPasses = 7;
  DSV4_ASSIGN_OR_RETURN(const ops::Backend host, MakeExpertBackend(flags));
  const LargeWeight large = MakeLarge(format, cols);
  std::vector<uint16_t> x(static_cast<size_t>(cols), 0x3F80);
  std::vector<uint16_t> y(static_cast<size_t>(large.weight.rows));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    DSV4_TRY(host.table.linear(
        *host.context,
        {.x = TensorView::Contiguous(static_cast<void*>(x.data()), DType::kBF16, {1, cols}),
         .weight = &large.weight,
         .y = TensorView::Contiguous(static_cast<void*>(y.data()), DType::kBF16, {1, large.weight.rows})}));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, static_cast<double>(large.data.size() + large.scale.size()) / seconds);
  }
  return best;
}

}  // namespace

double BenchExperts::HostBytes(int64_t batch) const {
  return static_cast<double>(num_layers) * expert_bytes * Chosen(*this, split.host, batch);
}

double BenchExperts::AllBytes(int64_t batch) const {
  return static_cast<double>(num_layers) * expert_bytes * Chosen(*this, split.total(), batch);
}

double BenchExperts::BoundSeconds(double bytes, int64_t batch, double gpu_bandwidth) const {
  const double of_host = HostBytes(batch);
  const double of_gpu = AllBytes(batch) - of_host;
  const double rest = std::max(0.0, bytes - of_host - of_gpu);
  return rest / gpu_bandwidth + std::max(of_host / host_rate, of_gpu / gpu_bandwidth);
}

Result<BenchExperts> MeasureExperts(const ModelFlags& flags, const model::ModelConfig& config,
                                    const io::Checkpoint& checkpoint, const model::ExpertSplit& split,
                                    int64_t num_layers) {
  DSV4_ASSIGN_OR_RETURN(const model::ResolvedCheckpoint resolved,
                        model::ResolveCheckpoint(checkpoint, config));
  BenchExperts experts{.split = split, .top_k = config.num_experts_per_tok, .num_layers = num_layers};
  int64_t num_bytes = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    for (const model::ResolvedExpert& expert : resolved.layers[static_cast<size_t>(i)].experts) {
      num_bytes += expert.w1.num_bytes() + expert.w2.num_bytes() + expert.w3.num_bytes();
      ++count;
    }
  }
  experts.expert_bytes = static_cast<double>(num_bytes) / static_cast<double>(std::max<int64_t>(count, 1));
  DSV4_ASSIGN_OR_RETURN(experts.host_rate,
                        MeasureHost(flags, resolved.layers[0].experts[0].w1.format, config.hidden_size));
  return experts;
}

std::string ExpertsText(const BenchExperts& experts) {
  return fmt::format(
      "experts  {} of a layer; a token reads {:.1f} MB of them on the host, {:.1f} MB in all, if it chooses "
      "all "
      "equally often; the host's kernels read {:.1f} GB/s\n",
      model::ToString(experts.split), experts.HostBytes(1) / 1e6, experts.AllBytes(1) / 1e6,
      experts.host_rate / 1e9);
}

}  // namespace dsv4::apps
