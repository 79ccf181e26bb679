// Micro-benchmarks of the CPU backend's large ops: checks each result first, then prints its time, the bytes it has to read
// as a rate and a percentage of the read bandwidth of this process, and its multiply-adds as a percentage of their peak.
//
//   ops_bench [THREADS]       DSV4_CPU_ISA picks the tier, as everywhere.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "bench/ops/bounds.h"
#include "formats/number_formats.h"

namespace dsv4::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Machine {
  ops::Backend backend;
  double read_bandwidth;
  double multiply_adds;
};

[[noreturn]] void Fail(const std::string& message) {
  fmt::print(stderr, "ops_bench: {}\n", message);
  std::exit(1);
}

void Require(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

// Median seconds of a call, over at least half a second and five calls.
template <typename Run>
double Median(const Run& run) {
  run();
  std::vector<double> seconds;
  double total = 0;
  while (seconds.size() < 5 || total < 0.5) {
    const auto begin = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    total += seconds.back();
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

void Print(const Machine& machine, const std::string& what, double seconds, double bytes, double products) {
  fmt::print("{:<34} {:>9.3f} ms {:>8.1f} MB {:>7.1f} GB/s {:>4.0f} % {:>8.1f} GMAC/s {:>4.0f} %\n", what,
             seconds * 1e3, bytes / 1e6, bytes / seconds / 1e9,
             100 * bytes / seconds / machine.read_bandwidth, products / seconds / 1e9,
             100 * products / seconds / machine.multiply_adds);
}

// A weight of random codes that owns its bytes.
struct RandomWeight {
  Weight weight;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
};

RandomWeight MakeWeight(const std::string& format, int64_t rows, int64_t cols) {
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
  const auto view = [](std::vector<uint8_t>& bytes, DType dtype, Shape shape) {
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
  const bool nvfp4 = format == "nvfp4";
  fill(rows * cols / 2);
  const int64_t block = nvfp4 ? 16 : 32;
  made.scale.assign(static_cast<size_t>(rows * cols / block), nvfp4 ? 0x31 : 125);
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

// Activations of powers of two are their own FP8 rounding, so the definition is a plain sum.
void CheckLinear(const Machine& machine, const Weight& weight, const std::string& what) {
  std::vector<uint16_t> x(static_cast<size_t>(weight.cols));
  for (size_t i = 0; i < x.size(); ++i) x[i] = Bf16FromFloat(i % 3 == 0 ? -0.5F : (i % 3 == 1 ? 2.0F : 1.0F));
  std::vector<float> y(static_cast<size_t>(weight.rows));
  const TensorView y_view =
      TensorView::Contiguous(static_cast<void*>(y.data()), DType::kF32, {1, weight.rows});
  Require(
      machine.backend.table.linear(*machine.backend.context, {View(x, {1, weight.cols}), &weight, y_view}));
  std::vector<float> row(x.size());
  for (int64_t r = 0; r < weight.rows; r += std::max<int64_t>(1, weight.rows / 7)) {
    DequantizeRow(weight, r, row.data());
    double want = 0;
    double magnitude = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double product = static_cast<double>(row[i]) * static_cast<double>(FloatFromBf16(x[i]));
      want += product;
      magnitude += std::fabs(product);
    }
    const double error = std::fabs(static_cast<double>(y[static_cast<size_t>(r)]) - want);
    if (!(error <= static_cast<double>(weight.cols) * 0x1p-24 * magnitude)) {
      Fail(fmt::format("{}: row {}: {}, want {}", what, r, y[static_cast<size_t>(r)], want));
    }
  }
}

void BenchLinear(const Machine& machine) {
  constexpr int64_t kCols = 4096;
  for (const std::string format : {"nvfp4", "mxfp4", "fp8", "bf16"}) {
    const double bits = format == "bf16" ? 16 : (format == "fp8" ? 8 : 4);
    const auto rows_of = [&](double megabytes) {
      return static_cast<int64_t>(megabytes * 1e6 * 8 / bits / static_cast<double>(kCols)) / 128 * 128;
    };
    // Decode from memory: far more than any last-level cache. Prefill: a matrix of a real layer.
    for (const int64_t tokens : {1, 4, 8, 512}) {
      const RandomWeight made = MakeWeight(format, tokens == 512 ? 2048 : rows_of(200), kCols);
      const Weight& weight = made.weight;
      CheckLinear(machine, weight, "linear " + format);
      std::vector<uint16_t> x = Normals(tokens * kCols);
      std::vector<uint16_t> y(static_cast<size_t>(tokens * weight.rows));
      const double seconds = Median([&] {
        Require(machine.backend.table.linear(
            *machine.backend.context, {View(x, {tokens, kCols}), &weight, View(y, {tokens, weight.rows})}));
      });
      Print(machine, fmt::format("linear {} [{}, {}] x {}", format, weight.rows, kCols, tokens), seconds,
            static_cast<double>(made.data.size() + made.scale.size()),
            static_cast<double>(weight.rows * kCols * tokens));
    }
  }
}

void BenchAttention(const Machine& machine) {
  constexpr int64_t kHeads = 64;
  constexpr int64_t kDim = 512;
  constexpr int64_t kWindow = 128;
  for (const int64_t entries : {0, 512, 8192}) {
    std::vector<uint16_t> q = Normals(kHeads * kDim);
    std::vector<uint16_t> o(q.size());
    std::vector<uint16_t> ring = Normals(kWindow * kDim);
    std::vector<uint16_t> page = Normals(std::max<int64_t>(1, entries) * kDim);
    std::vector<float> sink(kHeads, 0.0F);
    void* const pages[] = {page.data()};
    const int64_t ratio = entries == 0 ? 0 : 4;
    const ops::AttentionSequence sequence = {
        .token_begin = 0,
        .num_tokens = 1,
        .first_position = std::max(kWindow, entries * 4) - 1,
        .window = {ring.data(), kWindow, kDim, DType::kBF16},
        .entries = {pages, std::max<int64_t>(1, entries), entries, kDim, DType::kBF16}};
    const TensorView sinks = TensorView::Contiguous(static_cast<void*>(sink.data()), DType::kF32, {kHeads});
    const ops::AttentionArgs args = {View(q, {1, kHeads, kDim}),
                                     sinks,
                                     {},
                                     View(o, {1, kHeads, kDim}),
                                     static_cast<float>(1.0 / std::sqrt(static_cast<double>(kDim))),
                                     kWindow,
                                     ratio,
                                     std::span(&sequence, 1)};
    const double seconds =
        Median([&] { Require(machine.backend.table.attention(*machine.backend.context, args)); });
    // Rows of normals: an average of at least 128 of them has a small mean square, but not zero.
    double square = 0;
    for (const uint16_t value : o) square += std::pow(static_cast<double>(FloatFromBf16(value)), 2);
    if (!(square > 0 && square < static_cast<double>(o.size())))
      Fail("attention: the output is not an average");
    const double rows = static_cast<double>(kWindow + entries);
    Print(machine, fmt::format("attention 64 x 512, {} rows", rows), seconds, rows * kDim * 2,
          2 * rows * static_cast<double>(kHeads * kDim));
  }
}

int Main(int argc, char** argv) {
  const int hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : hardware;
  if (num_threads < 1 || argc > 2) Fail("usage: ops_bench [THREADS]");
  const auto isa = backend::cpu::ChooseIsa(std::nullopt);
  if (!isa.has_value()) Fail(isa.error().ToString());
  auto backend = backend::MakeCpuBackend({.num_threads = num_threads, .isa = *isa});
  if (!backend.has_value()) Fail(backend.error().ToString());
  ThreadPool& threads = backend->context->threads();
  const double read = ReadBandwidth(threads);
  const double peak = MultiplyAddPeak(threads, *isa);
  const Machine machine = {*backend, read, peak};
  fmt::print("{}, {} threads: reads {:.1f} GB/s, {:.1f} GMAC/s\n", backend->name, num_threads, read / 1e9,
             peak / 1e9);
  fmt::print("percentages are of these two\n");
  BenchLinear(machine);
  BenchAttention(machine);
  return 0;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::Main(argc, argv); }
