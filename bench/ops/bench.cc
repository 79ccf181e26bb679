// Common parts of ops_bench: timing, checks of results, and lines of the table.
#include "bench/ops/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>

#include "formats/number_formats.h"

namespace dsv4::bench {

void Fail(const std::string& message) {
  fmt::print(stderr, "ops_bench: {}\n", message);
  std::exit(1);
}

void Require(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

Timing Time(const Machine& machine, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> seconds;
  std::vector<double> bandwidths;
  double total = 0;
  while (seconds.size() < 5 || total < 0.5) {
    const auto begin = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    total += seconds.back();
    bandwidths.push_back(machine.memory.Bandwidth(machine.backend.context->threads()));
  }
  const auto middle = [](std::vector<double>& values) {
    const auto at = values.begin() + static_cast<int64_t>(values.size() / 2);
    std::nth_element(values.begin(), at, values.end());
    return *at;
  };
  return {.seconds = middle(seconds), .read_bandwidth = middle(bandwidths)};
}

void Print(const Machine& machine, const std::string& what, const Timing& timing, double bytes,
           double products) {
  const double seconds = timing.seconds;
  fmt::print(
      "{:<38} {:>9.3f} ms {:>8.1f} MB {:>7.1f} GB/s {:>4.0f} % of {:>5.1f} {:>8.1f} GMAC/s {:>4.0f} %\n",
      what, seconds * 1e3, bytes / 1e6, bytes / seconds / 1e9, 100 * bytes / seconds / timing.read_bandwidth,
      timing.read_bandwidth / 1e9, products / seconds / 1e9,
      100 * products / seconds / machine.multiply_adds);
}

RandomWeight MakeWeight(std::string_view format, int64_t rows, int64_t cols) {
  RandomWeight made;
  Weight& weight = made.weight;
  weight.rows = rows;
  weight.cols = cols;
  std::mt19937_64 random(1);
  const auto fill = [&](int64_t bytes) {
    made.data.resize(static_cast<size_t>(bytes));
    for (size_t i = 0; i + 8 <= made.data.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(&made.data[i], &word, sizeof(word));
    }
  };
  const auto view = [](Bytes& bytes, DType dtype, Shape shape) {
    return TensorView::Contiguous(static_cast<void*>(bytes.data()), dtype, shape);
  };
  if (format == "bf16") {
    fill(2 * rows * cols);
    for (size_t i = 1; i < made.data.size(); i += 2) {  // Magnitudes near 1.
      made.data[i] = static_cast<uint8_t>((made.data[i] & 0x80U) | 0x3FU);
    }
    weight.data = view(made.data, DType::kBF16, {rows, cols});
    return made;
  }
  if (format == "fp8") {
    fill(rows * cols);
    for (uint8_t& code : made.data) code = (code & 0x7FU) == 0x7FU ? 0 : code;  // NaN.
    weight.format = WeightFormat::kFp8Block;
    weight.block_rows = weight.block_cols = 128;
    const int64_t scale_rows = (rows + 127) / 128;
    const int64_t scale_cols = (cols + 127) / 128;
    made.scale.assign(static_cast<size_t>(scale_rows * scale_cols), 120);
    weight.data = view(made.data, DType::kF8E4M3, {rows, cols});
    weight.scale = view(made.scale, DType::kF8E8M0, {scale_rows, scale_cols});
    weight.activation = ActivationQuant::kFp8Block;
    return made;
  }
  const bool subnormal = format == "nvfp4-subnormal";
  const bool nvfp4 = format == "nvfp4" || subnormal;
  if (!nvfp4 && format != "mxfp4") Fail(fmt::format("format {}: unknown", format));
  fill(rows * cols / 2);
  const int64_t block = nvfp4 ? 16 : 32;
  made.scale.assign(static_cast<size_t>(rows * cols / block), subnormal ? 0x03 : nvfp4 ? 0x31 : 125);
  weight.format = nvfp4 ? WeightFormat::kNvFp4 : WeightFormat::kMxFp4;
  weight.data = view(made.data, nvfp4 ? DType::kU8 : DType::kI8, {rows, cols / 2});
  weight.scale = view(made.scale, nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0, {rows, cols / block});
  weight.global_scale = 0.01F;
  if (!nvfp4) weight.activation = ActivationQuant::kFp8Block;
  return made;
}

std::vector<uint16_t> Normals(int64_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) value = Bf16FromFloat(normal(random));
  return values;
}

TensorView View(std::vector<uint16_t>& values, Shape shape) {
  return TensorView::Contiguous(static_cast<void*>(values.data()), DType::kBF16, shape);
}

}  // namespace dsv4::bench
