// Times the ops of a decode step on the GPU, in the Flash shape, and compares each with the time its bytes would take at the
// copy bandwidth measured first. Weights are many times the L2 cache and taken in turn. Figures include what the host spends
// on queueing where that is the longer part: an op is called as the model calls it. Products of many tokens come twice, as they are by
// default and with DSV4_CUDA_FP8_PRODUCTS=many, and are compared with a loop of nothing but products on the matrix unit: in bf16, and
// with products in FP8 in e4m3.
//
//   cuda_ops_bench [SUBSTRING]   only the ops whose line contains SUBSTRING
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "bench/cuda/matrix_rate.h"
#include "bench/cuda/must.h"

namespace dsv4::bench {
namespace {

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
    fmt::print("matrix unit {:.0f} TFLOP/s in e4m3\n", matrix_rate_ / 1e12);
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

  // Median microseconds of run(i), i counting the calls: of 7 rounds of calls that take a few milliseconds each.
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
      // What is collected reaches the stream before anything else does.
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
    fmt::print("{}: copies {:.2f} TB/s, read and written; matrix unit {:.0f} TFLOP/s in bf16\n\n",
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

struct Format {
  WeightFormat format;
  const char* name;
};
const std::vector<Format> kFormats = {{WeightFormat::kNvFp4, "NVFP4"},
                                      {WeightFormat::kMxFp4, "MXFP4"},
                                      {WeightFormat::kFp8Block, "FP8"},
                                      {WeightFormat::kPlain, "BF16"}};

void Linear(Bench& bench) {
  struct MatrixShape {
    int64_t rows;
    int64_t cols;
  };
  for (const auto& format : kFormats) {
    for (const auto& [rows, cols] : {MatrixShape{4096, 4096}, MatrixShape{1024, 4096},
                                     MatrixShape{32768, 1024}, MatrixShape{4096, 8192}}) {
      std::vector<Weight> weights;
      for (const int64_t num_tokens : {1, 8, 9, 32, 64, 128, 256, 512}) {
        const std::string name =
            fmt::format("linear {} [{}, {}], {} tokens", format.name, rows, cols, num_tokens);
        if (!bench.Wanted(name)) continue;
        // More than the L2 cache holds.
        if (weights.empty())
          weights =
              bench.Weights(format.format, rows, cols, static_cast<int>((int64_t{48} << 24) / (rows * cols)));
        // Linears of the same activations would be one launch.
        const TensorView xs[2] = {bench.Tensor(DType::kBF16, {num_tokens, cols}),
                                  bench.Tensor(DType::kBF16, {num_tokens, cols})};
        const TensorView y = bench.Tensor(DType::kBF16, {num_tokens, rows}, false);
        bench.Report(name, Bench::Bytes(weights[0]) + xs[0].num_bytes() + y.num_bytes(),
                     2.0 * static_cast<double>(num_tokens * rows * cols), [&](int i) {
                       const Weight& weight = weights[static_cast<size_t>(i) % weights.size()];
                       Must(bench.ops().linear(bench.context(), {.x = xs[i % 2], .weight = &weight, .y = y}));
                     });
      }
      bench.Forget();
    }
  }
}

void Experts(Bench& bench, const std::vector<Format>& formats, const std::vector<int64_t>& token_counts) {
  constexpr int64_t kDim = 4096;
  constexpr int64_t kInter = 2048;
  constexpr int64_t kExperts = 256;
  constexpr int64_t kTopK = 6;
  for (const auto& format : formats) {
    std::vector<ops::ExpertWeights> experts;
    std::mt19937 random(3);
    for (const int64_t num_tokens : token_counts) {
      const std::string name = fmt::format("routed_experts {} {} x [{}, {}], top {}, {} tokens", format.name,
                                           kExperts, kInter, kDim, kTopK, num_tokens);
      if (!bench.Wanted(name)) continue;
      if (experts.empty()) {
        const auto w1 = bench.Weights(format.format, kInter, kDim, kExperts);
        const auto w3 = bench.Weights(format.format, kInter, kDim, kExperts);
        const auto w2 = bench.Weights(format.format, kDim, kInter, kExperts);
        for (size_t e = 0; e < kExperts; ++e) experts.push_back({w1[e], w2[e], w3[e]});
      }
      const TensorView x = bench.Tensor(DType::kBF16, {num_tokens, kDim});
      const TensorView y = bench.Tensor(DType::kF32, {num_tokens, kDim}, false);
      const TensorView weights = bench.Tensor(DType::kF32, {num_tokens, kTopK});
      // Every call chooses others, all different within a token; many tokens choose at random.
      std::vector<TensorView> choices;
      int64_t num_chosen = 0;
      for (int64_t set = 0; set < 16; ++set) {
        std::vector<int32_t> indices;
        std::vector<bool> seen(kExperts, false);
        for (int64_t t = 0; t < num_tokens; ++t) {
          const auto first = std::ssize(indices);
          for (int64_t k = 0; k < kTopK; ++k) {
            auto expert = static_cast<int32_t>((set * 89 + t * 37 + k * 43) % kExperts);
            if (num_tokens > 512) {
              do {
                expert = static_cast<int32_t>(random() % kExperts);
              } while (std::find(indices.begin() + first, indices.end(), expert) != indices.end());
            }
            indices.push_back(expert);
            seen[static_cast<size_t>(indices.back())] = true;
          }
        }
        num_chosen = std::max<int64_t>(num_chosen, std::count(seen.begin(), seen.end(), true));
        choices.push_back(bench.FromHost({num_tokens, kTopK}, indices));
      }
      const int64_t expert_bytes =
          Bench::Bytes(experts[0].w1) + Bench::Bytes(experts[0].w2) + Bench::Bytes(experts[0].w3);
      bench.Report(name, num_chosen * expert_bytes + x.num_bytes() + y.num_bytes(),
                   6.0 * static_cast<double>(num_tokens * kTopK * kInter * kDim), [&](int i) {
                     Must(bench.ops().routed_experts(
                         bench.context(), {.x = x,
                                           .indices = choices[static_cast<size_t>(i) % choices.size()],
                                           .weights = weights,
                                           .experts = experts,
                                           .limit = 10.0F,
                                           .y = y}));
                   });
    }
    experts.clear();
    bench.Forget();
  }
}

// What prefill does: products of the Flash shape's matrices for the tokens of a pass, experts chosen at random.
void ManyTokens(Bench& bench, const std::vector<Format>& formats) {
  struct MatrixShape {
    int64_t rows;
    int64_t cols;
  };
  for (const auto& format : formats) {
    for (const auto& [rows, cols] : {MatrixShape{32768, 1024}, MatrixShape{4096, 8192},
                                     MatrixShape{4096, 4096}, MatrixShape{2048, 4096}}) {
      std::vector<Weight> weights;
      for (const int64_t num_tokens : {256, 512, 1024, 2048, 8192}) {
        const std::string name =
            fmt::format("many linear {} [{}, {}], {} tokens", format.name, rows, cols, num_tokens);
        if (!bench.Wanted(name)) continue;
        if (weights.empty()) weights = bench.Weights(format.format, rows, cols, 2);
        const TensorView x = bench.Tensor(DType::kBF16, {num_tokens, cols});
        const TensorView y = bench.Tensor(DType::kBF16, {num_tokens, rows}, false);
        bench.Report(name, Bench::Bytes(weights[0]) + x.num_bytes() + y.num_bytes(),
                     2.0 * static_cast<double>(num_tokens * rows * cols), [&](int i) {
                       const Weight& weight = weights[static_cast<size_t>(i) % weights.size()];
                       Must(bench.ops().linear(bench.context(), {.x = x, .weight = &weight, .y = y}));
                     });
      }
      bench.Forget();
    }
  }
}

// `batch` sequences with one query each; entries of the window and of the list, or all entries.
void Attention(Bench& bench, int64_t batch, int64_t position, int64_t ratio, int64_t top_k) {
  constexpr int64_t kHeads = 64;
  constexpr int64_t kDim = 512;
  constexpr int64_t kWindow = 128;
  constexpr int64_t kPage = 64;
  const int64_t num_entries = ratio == 0 ? 0 : (position + 1) / ratio;
  const int64_t num_seen = top_k > 0 ? std::min(top_k, num_entries) : num_entries;
  const std::string name = fmt::format("attention {} heads, {} sequences, {} + {} of {} entries", kHeads,
                                       batch, kWindow, num_seen, num_entries);
  if (!bench.Wanted(name)) return;
  const TensorView q = bench.Tensor(DType::kBF16, {batch, kHeads, kDim});
  const TensorView o = bench.Tensor(DType::kBF16, {batch, kHeads, kDim}, false);
  const TensorView sink = bench.Tensor(DType::kF32, {kHeads});
  const int64_t num_pages = (num_entries + kPage - 1) / kPage;
  const TensorView rings = bench.Tensor(DType::kBF16, {batch, kWindow, kDim});
  const TensorView pages = bench.Tensor(DType::kBF16, {batch, std::max<int64_t>(num_pages, 1) * kPage, kDim});
  std::vector<std::vector<void*>> tables(static_cast<size_t>(batch));
  std::vector<ops::AttentionSequence> sequences;
  std::vector<int32_t> list;
  for (int64_t s = 0; s < batch; ++s) {
    auto& table = tables[static_cast<size_t>(s)];
    for (int64_t i = 0; i < num_pages; ++i)
      table.push_back(pages.Rows(s, s + 1).as<uint16_t>() + i * kPage * kDim);
    sequences.push_back({.token_begin = s,
                         .num_tokens = 1,
                         .first_position = position,
                         .window = {rings.Rows(s, s + 1).data, kWindow, kDim, DType::kBF16},
                         .entries = {table, kPage, num_entries, kDim, DType::kBF16}});
    for (int64_t i = 0; i < top_k; ++i)
      list.push_back(i < num_seen ? static_cast<int32_t>(i * num_entries / num_seen) : -1);
  }
  const TensorView selected = top_k > 0 ? bench.FromHost({batch, top_k}, list) : TensorView();
  const int64_t num_keys = kWindow + num_seen;
  bench.Report(name, batch * num_keys * kDim * 2 + 2 * q.num_bytes(),
               4.0 * static_cast<double>(batch * kHeads * num_keys * kDim), [&](int) {
                 Must(bench.ops().attention(bench.context(), {.q = q,
                                                              .sink = sink,
                                                              .selected = selected,
                                                              .o = o,
                                                              .softmax_scale = 0.044F,
                                                              .window_size = kWindow,
                                                              .ratio = ratio,
                                                              .sequences = sequences}));
               });
  bench.Forget();
}

void Indexer(Bench& bench, int64_t position) {
  constexpr int64_t kHeads = 64;
  constexpr int64_t kWidth = 128;
  constexpr int64_t kTopK = 512;
  constexpr int64_t kRatio = 4;
  constexpr int64_t kPage = 64;
  const int64_t num_entries = (position + 1) / kRatio;
  const std::string name =
      fmt::format("indexer_select {} heads, top {} of {} entries", kHeads, kTopK, num_entries);
  if (!bench.Wanted(name)) return;
  const TensorView q = bench.Tensor(DType::kBF16, {1, kHeads, kWidth});
  const TensorView weights = bench.Tensor(DType::kBF16, {1, kHeads});
  const TensorView selected = bench.Tensor(DType::kI32, {1, kTopK}, false);
  const int64_t num_pages = (num_entries + kPage - 1) / kPage;
  const TensorView keys = bench.Tensor(DType::kBF16, {num_pages * kPage, kWidth});
  std::vector<void*> table;
  for (int64_t i = 0; i < num_pages; ++i) table.push_back(keys.as<uint16_t>() + i * kPage * kWidth);
  const ops::IndexerSequence sequence = {.token_begin = 0,
                                         .num_tokens = 1,
                                         .first_position = position,
                                         .keys = {table, kPage, num_entries, kWidth, DType::kBF16}};
  bench.Report(name, num_entries * kWidth * 2, 2.0 * static_cast<double>(kHeads * num_entries * kWidth),
               [&](int) {
                 Must(bench.ops().indexer_select(bench.context(), {.q = q,
                                                                   .weights = weights,
                                                                   .selected = selected,
                                                                   .ratio = kRatio,
                                                                   .sequences = {&sequence, 1}}));
               });
  bench.Forget();
}

void HyperConnection(Bench& bench, int64_t num_tokens) {
  constexpr int64_t kMult = 4;
  constexpr int64_t kDim = 4096;
  constexpr int64_t kRows = (2 + kMult) * kMult;
  const std::string name = fmt::format("hc_pre [{}, {}], {} tokens", kMult, kDim, num_tokens);
  if (!bench.Wanted(name)) return;
  const TensorView streams = bench.Tensor(DType::kBF16, {num_tokens, kMult, kDim});
  const TensorView fn = bench.Tensor(DType::kF32, {kRows, kMult * kDim});
  const TensorView scale = bench.Tensor(DType::kF32, {3});
  const TensorView base = bench.Tensor(DType::kF32, {kRows});
  const TensorView u = bench.Tensor(DType::kBF16, {num_tokens, kDim}, false);
  const TensorView post = bench.Tensor(DType::kF32, {num_tokens, kMult}, false);
  const TensorView comb = bench.Tensor(DType::kF32, {num_tokens, kMult, kMult}, false);
  bench.Report(name, fn.num_bytes() + streams.num_bytes() + u.num_bytes(),
               2.0 * static_cast<double>(num_tokens * kRows * kMult * kDim), [&](int) {
                 Must(bench.ops().hc_pre(bench.context(), {.streams = streams,
                                                           .fn = fn,
                                                           .scale = scale,
                                                           .base = base,
                                                           .u = u,
                                                           .post = post,
                                                           .comb = comb,
                                                           .norm_eps = 1e-6F,
                                                           .hc_eps = 1e-6F,
                                                           .sinkhorn_iters = 20}));
               });
  bench.Forget();
}

void Sample(Bench& bench, int64_t num_rows) {
  constexpr int64_t kVocab = 129280;
  constexpr float kPeaked =
      0.1F;  // Logits of the bench lie between -2 and 2: a temperature that leaves a few dozens.
  const struct {
    const char* name;
    sampling::ChoiceParams choice;
  } kinds[] = {{"greedy", {.temperature = 0.0F}},
               {"all", {.temperature = kPeaked, .uniform = 0.5}},
               {"top_k 50", {.temperature = kPeaked, .top_k = 50, .uniform = 0.5}},
               {"top_p 0.9", {.temperature = kPeaked, .top_p = 0.9F, .uniform = 0.5}},
               {"top_k 50, top_p 0.9", {.temperature = kPeaked, .top_k = 50, .top_p = 0.9F, .uniform = 0.5}}};
  for (const auto& kind : kinds) {
    const std::string name = fmt::format("sample [{}, {}], {}", num_rows, kVocab, kind.name);
    if (!bench.Wanted(name)) continue;
    const TensorView logits = bench.Tensor(DType::kF32, {num_rows, kVocab});
    const TensorView tokens = bench.Tensor(DType::kI32, {num_rows}, false);
    const TensorView faults = bench.Tensor(DType::kI32, {num_rows}, false);
    const std::vector<sampling::ChoiceParams> choices(static_cast<size_t>(num_rows), kind.choice);
    bench.Report(name, logits.num_bytes(), 0.0, [&](int) {
      Must(bench.ops().sample(
          bench.context(),
          {.logits = logits, .allowed = {}, .choices = choices, .tokens = tokens, .faults = faults}));
    });
    bench.Forget();
  }
}

void SmallOps(Bench& bench, int64_t num_tokens) {
  constexpr int64_t kDim = 4096;
  const std::string name = fmt::format("rms_norm [{}, {}]", num_tokens, kDim);
  if (!bench.Wanted(name)) return;
  const TensorView x = bench.Tensor(DType::kBF16, {num_tokens, kDim});
  const TensorView weight = bench.Tensor(DType::kF32, {kDim});
  bench.Report(name, 2 * x.num_bytes(), 0.0, [&](int) {
    Must(bench.ops().rms_norm(bench.context(), {.x = x, .weight = weight, .y = x, .eps = 1e-6F}));
  });
  bench.Forget();
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  using namespace dsv4::bench;
  using dsv4::WeightFormat;
  Bench bench(argc > 1 ? argv[1] : "");
  bench.MeasureCopy();
  Linear(bench);
  Experts(bench, kFormats, {1, 8, 64, 512, 2048, 8192});
  ManyTokens(bench, kFormats);
  {
    Bench fp8(bench, Bench::Fp8Products());
    ManyTokens(fp8, {{WeightFormat::kFp8Block, "FP8"}});
    Experts(fp8, {{WeightFormat::kMxFp4, "MXFP4"}}, {8192});
  }
  for (const int64_t batch : {1, 64}) {
    Attention(bench, batch, 8191, 0, 0);
    Attention(bench, batch, 8191, 4, 512);
  }
  Attention(bench, 1, 131071, 128, 0);
  Attention(bench, 1, 1048575, 128, 0);
  for (const int64_t position : {8191, 131071, 1048575}) Indexer(bench, position);
  for (const int64_t num_tokens : {1, 512, 8192}) HyperConnection(bench, num_tokens);
  for (const int64_t num_tokens : {1, 512}) SmallOps(bench, num_tokens);
  for (const int64_t num_rows : {1, 64}) Sample(bench, num_rows);
  return 0;
}
