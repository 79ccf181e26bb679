// Operands on the GPU, times of ops with them, and the lines that tell them (cuda_ops_bench).
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "bench/cuda/matrix_rate.h"
#include "bench/cuda/must.h"

namespace dsv4::bench {

class Bench {
 public:
  explicit Bench(std::string filter)
      : filter_(std::move(filter)),
        backend_(Must(backend::MakeCudaBackend({}))),
        matrix_rate_(Must(Bf16MatrixRate())) {}
  // The same with products in FP8, whose lines say so.
  struct Fp8Products {};
  Bench(const Bench& other, Fp8Products)
      : filter_(other.filter_),
        label_(", FP8 products"),
        backend_(Must(backend::MakeCudaBackend({.fp8_products = backend::cuda::Fp8Products::kMany}))),
        bandwidth_(other.bandwidth_),
        matrix_rate_(Must(E4m3MatrixRate())) {
    fmt::print("tensor core {:.0f} TFLOP/s in e4m3\n", matrix_rate_ / 1e12);
  }

  ops::OpContext& context() { return *backend_.context; }
  const ops::OpTable& ops() const { return backend_.table; }

  // A tensor on the device with random contents: bf16 and f32 numbers of about one, or zeros.
  TensorView Tensor(DType dtype, const Shape& shape, bool random = true) {
    const auto num_bytes = static_cast<size_t>(shape.num_elements() * ElementBytes(dtype));
    buffers_.push_back(Must(context().memory().Allocate(num_bytes)));
    if (random) {
      std::vector<uint8_t> bytes = RandomBytes(num_bytes);
      // Exponents near zero: the high byte of bf16 and of f32 (on its little end) becomes 0x3F or 0xBF.
      const auto element = static_cast<size_t>(ElementBytes(dtype));
      for (size_t i = element - 1; i < num_bytes; i += element) bytes[i] = (bytes[i] & 0x80U) | 0x3FU;
      Must(context().memory().CopyFromHost(buffers_.back().data(), bytes.data(), num_bytes, nullptr));
    }
    return TensorView::Contiguous(buffers_.back().data(), dtype, shape, context().memory().device());
  }

  TensorView Integers(const Shape& shape, int64_t limit) {
    std::vector<int32_t> values(static_cast<size_t>(shape.num_elements()));
    for (int32_t& value : values) value = static_cast<int32_t>(generator_() % static_cast<uint64_t>(limit));
    return FromHost(shape, values);
  }
  TensorView FromHost(const Shape& shape, const std::vector<int32_t>& values) {
    const TensorView view = Tensor(DType::kI32, shape, false);
    Must(context().memory().CopyFromHost(view.data, values.data(), values.size() * sizeof(int32_t), nullptr));
    return view;
  }

  // `count` prepared copies of one random matrix.
  std::vector<Weight> Weights(WeightFormat format, int64_t rows, int64_t cols, int count) {
    Weight source;
    source.format = format;
    source.rows = rows;
    source.cols = cols;
    std::vector<uint8_t> data;
    std::vector<uint8_t> scale;
    const auto host = [](std::vector<uint8_t>& bytes, DType dtype, Shape shape) {
      return TensorView::Contiguous(static_cast<void*>(bytes.data()), dtype, shape);
    };
    if (format == WeightFormat::kPlain) {
      data = RandomBytes(static_cast<size_t>(rows * cols * 2));
      for (size_t i = 1; i < data.size(); i += 2) data[i] = (data[i] & 0x80U) | 0x3CU;
      source.data = host(data, DType::kBF16, {rows, cols});
    } else if (format == WeightFormat::kFp8Block) {
      data = RandomBytes(static_cast<size_t>(rows * cols));
      for (uint8_t& code : data) code &= 0xBFU;  // No NaN.
      scale.assign(static_cast<size_t>((rows + 127) / 128 * ((cols + 127) / 128)), 120);
      source.block_rows = source.block_cols = 128;
      source.activation = ActivationQuant::kFp8Block;
      source.data = host(data, DType::kF8E4M3, {rows, cols});
      source.scale = host(scale, DType::kF8E8M0, {(rows + 127) / 128, (cols + 127) / 128});
    } else {
      const bool nvfp4 = format == WeightFormat::kNvFp4;
      const int64_t block = nvfp4 ? kNvFp4Block : kMxFp4Block;
      data = RandomBytes(static_cast<size_t>(rows * cols / 2));
      scale.assign(static_cast<size_t>(rows * cols / block), nvfp4 ? 0x30 : 122);
      source.activation = nvfp4 ? ActivationQuant::kNone : ActivationQuant::kFp8Block;
      source.data = host(data, nvfp4 ? DType::kU8 : DType::kI8, {rows, cols / 2});
      source.scale = host(scale, nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0, {rows, cols / block});
    }
    std::vector<Weight> weights(static_cast<size_t>(count));
    for (Weight& weight : weights)
      Must(ops().prepare_weight(context(), {.source = &source, .prepared = &weight}));
    return weights;
  }

  static int64_t Bytes(const Weight& weight) {
    return weight.data.num_bytes() + (weight.scale.is_null() ? 0 : weight.scale.num_bytes());
  }

  // Median microseconds of run(i), i counting the calls: of 7 rounds of calls that take a few milliseconds
  // each.
  double Microseconds(const std::function<void(int)>& run) {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    Must(cudaEventCreate(&begin));
    Must(cudaEventCreate(&end));
    const auto stream = static_cast<cudaStream_t>(context().stream());
    int next = 0;
    const auto round = [&](int calls) {
      Must(cudaEventRecord(begin, stream));
      for (int i = 0; i < calls; ++i) run(next++);
      // Collected launches reach the stream before anything else does.
      Must(context().memory().Copy(flushed_.data(), flushed_.data(), 1, nullptr));
      Must(cudaEventRecord(end, stream));
      Must(cudaEventSynchronize(end));
      float milliseconds = 0.0F;
      Must(cudaEventElapsedTime(&milliseconds, begin, end));
      return static_cast<double>(milliseconds) * 1000 / calls;
    };
    const double first = (round(3), round(3));
    const int calls = static_cast<int>(std::clamp(5000.0 / std::max(first, 1.0), 3.0, 500.0));
    std::vector<double> rounds;
    for (int i = 0; i < 7; ++i) rounds.push_back(round(calls));
    Must(cudaEventDestroy(begin));
    Must(cudaEventDestroy(end));
    std::nth_element(rounds.begin(), rounds.begin() + 3, rounds.end());
    return rounds[3];
  }

  void MeasureCopy() {
    constexpr size_t kBytes = size_t{4} << 30;
    const Buffer from = Must(context().memory().Allocate(kBytes));
    const Buffer to = Must(context().memory().Allocate(kBytes));
    const double us =
        Microseconds([&](int) { Must(context().memory().Copy(to.data(), from.data(), kBytes, nullptr)); });
    bandwidth_ = 2.0 * static_cast<double>(kBytes) / us;  // Bytes a microsecond.
    fmt::print("{}: copies {:.2f} TB/s, read and written; tensor core {:.0f} TFLOP/s in bf16\n\n",
               backend_.name, bandwidth_ / 1e6, matrix_rate_ / 1e12);
    fmt::print("{:<76} {:>10} {:>9} {:>8} {:>9} {:>8}\n", "op", "us", "MB", "bound", "TFLOP/s", "of unit");
  }

  bool Wanted(const std::string& name) const { return (name + label_).find(filter_) != std::string::npos; }

  void Report(const std::string& name, int64_t num_bytes, double flops, const std::function<void(int)>& run) {
    const double us = Microseconds(run);
    fmt::print("{:<76} {:>10.1f} {:>9.2f} {:>7.1f}% {:>9.1f} {:>7.1f}%\n", name + label_, us,
               static_cast<double>(num_bytes) / 1e6, 100.0 * static_cast<double>(num_bytes) / bandwidth_ / us,
               flops / us / 1e6, 100.0 * flops / (us * 1e-6) / matrix_rate_);
    std::fflush(stdout);
  }

  void Forget() {
    Must(cudaStreamSynchronize(static_cast<cudaStream_t>(context().stream())));
    buffers_.clear();
  }

 private:
  std::vector<uint8_t> RandomBytes(size_t count) {
    std::vector<uint8_t> bytes(count);
    for (size_t i = 0; i < count; i += 8) {
      const uint64_t word = generator_();
      for (size_t k = i; k < std::min(count, i + 8); ++k)
        bytes[k] = static_cast<uint8_t>(word >> (8 * (k - i)));
    }
    return bytes;
  }

  std::string filter_;
  std::string label_;
  ops::Backend backend_;
  std::mt19937_64 generator_{1};
  std::vector<Buffer> buffers_;
  Buffer flushed_ = Must(backend_.context->memory().Allocate(1));
  double bandwidth_ = 1.0;
  double matrix_rate_;  // Operations a second.
};

}  // namespace dsv4::bench
