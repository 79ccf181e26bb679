// Cost of the ops that are no GEMM in a step of the shape `mini`. Runs them in the model's order with the
// model's shapes, layer after layer, and prints the time of each op summed over a step. The operands that a
// step reads once (mixing matrices, cached rows) exist once per layer. Other memory is read between steps, so
// that they come from where a real step finds them. The decode steps complete an entry of ratio 4, which one
// in four does.
//
//   small_ops_bench [THREADS]       DSV4_CPU_ISA picks the tier, as everywhere.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/parallel.h"
#include "formats/number_formats.h"

namespace dsv4::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHidden = 2048;
constexpr int64_t kStreams = 4;
constexpr int64_t kHeads = 32;
constexpr int64_t kDim = 512;
constexpr int64_t kRotary = 64;
constexpr int64_t kWindow = 128;
constexpr int64_t kIndexHeads = 32;
constexpr int64_t kIndexDim = 128;
constexpr int64_t kTopK = 512;
constexpr int64_t kExperts = 32;
constexpr int64_t kExpertsPerToken = 6;
constexpr int64_t kExpertWidth = 1024;
constexpr int64_t kRatios[] = {0, 0, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128};

[[noreturn]] void Fail(const std::string& message) {
  fmt::print(stderr, "small_ops_bench: {}\n", message);
  std::exit(1);
}

void Require(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

// A tensor that owns its memory: seeded normals, or zeros.
class Owned {
 public:
  Owned() = default;
  Owned(DType dtype, Shape shape, double sigma = 0.0, uint32_t seed = 1) {
    const int64_t count = shape.num_elements();
    bytes_.resize(static_cast<size_t>(count * ElementBytes(dtype)));
    view_ = TensorView::Contiguous(static_cast<void*>(bytes_.data()), dtype, shape);
    if (sigma == 0.0) return;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, static_cast<float>(sigma));
    // A table of normals, read from a random place for every row: drawing all of them would take longer than
    // the bench.
    std::vector<float> table(4099);
    for (float& value : table) value = normal(random);
    size_t at = random() % table.size();
    for (int64_t i = 0; i < count; ++i) {
      at = at + 1 < table.size() ? at + 1 : 0;
      if (i % 509 == 0) at = random() % table.size();
      if (dtype == DType::kF32) {
        view_.as<float>()[i] = table[at];
      } else {
        view_.as<uint16_t>()[i] = Bf16FromFloat(table[at]);
      }
    }
  }
  operator const TensorView&() const { return view_; }  // NOLINT: stands for its view in op arguments.
  TensorView Reshaped(Shape shape) const { return view_.Reshaped(shape); }
  template <typename T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// Memory of one layer: parameters and caches.
struct Layer {
  int64_t ratio = 0;
  Owned hc_fn[2];
  Owned ring;
  Owned entries;
  Owned keys;
  std::vector<void*> entry_pages;
  std::vector<void*> key_pages;
  Owned ape;
  Owned histories[4];  // Values and scores of the main compressor, then of the indexer's.
};

constexpr int64_t kRowsPerPage = 64;

class Bench {
 public:
  // `depth` tokens are cached; a step adds `num_tokens` of one sequence.
  Bench(const ops::Backend& backend, int64_t num_layers, int64_t depth, int64_t num_tokens)
      : backend_(backend), depth_(depth), n_(num_tokens) {
    const auto bf16 = DType::kBF16;
    for (int64_t i = 0; i < num_layers; ++i) {
      const auto seed = static_cast<uint32_t>(100 * i + 7);
      Layer& layer = *layers_.emplace_back(std::make_unique<Layer>());
      layer.ratio = kRatios[i];
      for (Owned& fn : layer.hc_fn) fn = Owned(DType::kF32, {24, kStreams * kHidden}, 0.02, seed);
      ring_capacity_ = kWindow - 1 + n_;
      layer.ring = Owned(bf16, {ring_capacity_, kDim}, 1.0, seed + 1);
      if (layer.ratio == 0) continue;
      const int64_t num_pages = ((depth_ + n_) / layer.ratio + kRowsPerPage) / kRowsPerPage;
      layer.entries = Owned(bf16, {num_pages * kRowsPerPage, kDim}, 1.0, seed + 2);
      for (int64_t page = 0; page < num_pages; ++page)
        layer.entry_pages.push_back(layer.entries.as<uint16_t>() + page * kRowsPerPage * kDim);
      const int64_t channels = layer.ratio == 4 ? 2 : 1;
      layer.ape = Owned(DType::kF32, {layer.ratio, channels * kDim}, 1.0, seed + 3);
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t width = channels * (k < 2 ? kDim : kIndexDim);
        layer.histories[k] = Owned(DType::kF32, {channels * layer.ratio, width}, 1.0, seed + 4);
      }
      if (layer.ratio != 4) continue;
      layer.keys = Owned(bf16, {num_pages * kRowsPerPage, kIndexDim}, 1.0, seed + 5);
      Require(backend_.table.hadamard_fp4(*backend_.context, {layer.keys}));
      for (int64_t page = 0; page < num_pages; ++page)
        layer.key_pages.push_back(layer.keys.as<uint16_t>() + page * kRowsPerPage * kIndexDim);
    }
    streams_ = Owned(bf16, {n_, kStreams, kHidden}, 1.0, 1);
    u_ = Owned(bf16, {n_, kHidden});
    y_ = Owned(bf16, {n_, kHidden}, 1.0, 2);
    post_ = Owned(DType::kF32, {n_, kStreams});
    comb_ = Owned(DType::kF32, {n_, kStreams, kStreams});
    norm_ = Owned(DType::kF32, {kHidden}, 1.0, 3);
    q_lora_ = Owned(bf16, {n_, kDim}, 1.0, 4);
    q_ = Owned(bf16, {n_, kHeads, kDim}, 1.0, 5);
    kv_ = Owned(bf16, {n_, kDim}, 1.0, 6);
    o_ = Owned(bf16, {n_, kHeads, kDim});
    index_q_ = Owned(bf16, {n_, kIndexHeads, kIndexDim}, 1.0, 8);
    index_weights_ = Owned(bf16, {n_, kIndexHeads}, 1.0, 9);
    selected_ = Owned(DType::kI32, {n_, kTopK});
    logits_ = Owned(DType::kF32, {n_, kExperts}, 1.0, 10);
    chosen_ = Owned(DType::kI32, {n_, kExpertsPerToken});
    weights_ = Owned(DType::kF32, {n_, kExpertsPerToken});
    routed_ = Owned(DType::kF32, {n_, kHidden}, 1.0, 11);
    gate_ = Owned(bf16, {n_, kExpertWidth}, 2.0, 12);
    up_ = Owned(bf16, {n_, kExpertWidth}, 2.0, 13);
    gates_ = Owned(bf16, {n_ * kExpertsPerToken, kExpertWidth}, 2.0, 14);
    ups_ = Owned(bf16, {n_ * kExpertsPerToken, kExpertWidth}, 2.0, 15);
    activated_ = Owned(bf16, {n_ * kExpertsPerToken, kExpertWidth});
    hc_scale_ = Owned(DType::kF32, {3}, 1.0, 16);
    hc_base_ = Owned(DType::kF32, {24}, 1.0, 17);
    bias_ = Owned(DType::kF32, {kExperts}, 1.0, 18);
    sink_ = Owned(DType::kF32, {kHeads}, 1.0, 19);
    values_ = Owned(DType::kF32, {n_, 2 * kDim}, 1.0, 20);
    frequencies_ = Owned(DType::kF32, {kRotary / 2});
    constexpr int64_t kPairs = kRotary / 2;
    for (int64_t i = 0; i < kPairs; ++i) {
      frequencies_.as<float>()[i] =
          static_cast<float>(std::pow(1e4, -static_cast<double>(i) / static_cast<double>(kPairs)));
    }
    pooled_ = Owned(DType::kBF16, {n_ / 4 + 1, kDim});
    positions_ = Owned(DType::kI32, {n_});
    std::iota(positions_.as<int32_t>(), positions_.as<int32_t>() + n_, static_cast<int32_t>(depth_));
  }

  // Milliseconds by op, of one step.
  std::map<std::string, double> Step() {
    times_.clear();
    for (const auto& layer : layers_) {
      HyperConnection(*layer, 0);
      Attention(*layer);
      Post();
      HyperConnection(*layer, 1);
      Ffn();
      Post();
    }
    return times_;
  }

  const Owned& o() const { return o_; }
  const Owned& streams() const { return streams_; }
  const Owned& selected() const { return selected_; }

 private:
  template <typename Args>
  void Run(const std::string& name, ops::OpFunction<Args> op, const Args& args) {
    const auto begin = Clock::now();
    const Status status = op(*backend_.context, args);
    times_[name] += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    Require(status);
  }

  void Norm(const TensorView& x) {
    Run<ops::RmsNormArgs>("rms_norm", backend_.table.rms_norm,
                          {x, norm_.Reshaped({kHidden}).Rows(0, x.shape[1]), x, 1e-6F});
  }

  void Rope(const TensorView& x, bool inverse) {
    Run<ops::RopeArgs>("rope", backend_.table.rope,
                       {x, positions_.Reshaped({n_}).Rows(0, x.shape[0]), frequencies_, inverse});
  }

  void HyperConnection(const Layer& layer, int which) {
    Run<ops::HcPreArgs>(
        "hc_pre", backend_.table.hc_pre,
        {streams_, layer.hc_fn[which], hc_scale_, hc_base_, u_, post_, comb_, 1e-6F, 1e-6F, 20});
    Norm(u_);
  }

  void Post() {
    Run<ops::HcPostArgs>("hc_post", backend_.table.hc_post, {y_, streams_, post_, comb_, streams_});
  }

  // Entries that the step completes, pooled, normed, rotated and rounded.
  void Compress(const Layer& layer, bool indexer) {
    const int64_t entries = ops::NumCompletedEntries(depth_, n_, layer.ratio);
    const int64_t channels = layer.ratio == 4 ? 2 : 1;
    const int64_t width = indexer ? kIndexDim : kDim;
    const auto ring = [&](int which) {
      return ops::RingRows{layer.histories[which + (indexer ? 2 : 0)].as<void>(), channels * layer.ratio,
                           channels * width, DType::kF32};
    };
    const ops::CompressorSequence sequence = {0, n_, depth_, ring(0), ring(1)};
    const TensorView values = TensorView::Contiguous(values_.as<void>(), DType::kF32, {n_, channels * width});
    const TensorView ape =
        TensorView::Contiguous(layer.ape.as<void>(), DType::kF32, {layer.ratio, channels * width});
    const TensorView pooled = TensorView::Contiguous(pooled_.as<void>(), DType::kBF16, {entries, width});
    Run<ops::CompressorPoolArgs>(
        "compressor_pool", backend_.table.compressor_pool,
        {values, values, ape, pooled, layer.ratio, channels == 2, std::span(&sequence, 1)});
    Norm(pooled);
    Rope(pooled.Reshaped({entries, 1, width}), false);
    if (indexer) {
      Run<ops::HadamardFp4Args>("hadamard_fp4", backend_.table.hadamard_fp4, {pooled});
    } else {
      Run<ops::SimulateFp8Args>("simulate_fp8", backend_.table.simulate_fp8, {pooled, kDim - kRotary});
    }
  }

  void Attention(const Layer& layer) {
    Norm(q_lora_);
    Run<ops::HeadRmsNormArgs>("head_rms_norm", backend_.table.head_rms_norm, {q_, q_, 1e-6F});
    Rope(q_, false);
    Norm(kv_);
    Rope(kv_.Reshaped({n_, 1, kDim}), false);
    Run<ops::SimulateFp8Args>("simulate_fp8", backend_.table.simulate_fp8, {kv_, kDim - kRotary});
    const int64_t slot = depth_ % ring_capacity_;
    const int64_t first = std::min(n_, ring_capacity_ - slot);
    const std::vector<ops::RowRun> runs = {{0, first, layer.ring.as<uint16_t>() + slot * kDim},
                                           {first, n_ - first, layer.ring.as<uint16_t>()}};
    Run<ops::StoreRowsArgs>("store_rows", backend_.table.store_rows, {kv_, runs});
    const int64_t entries = layer.ratio == 0 ? 0 : (depth_ + n_) / layer.ratio;
    if (layer.ratio == 4) {
      Compress(layer, true);
      Rope(index_q_, false);
      Run<ops::HadamardFp4Args>("hadamard_fp4", backend_.table.hadamard_fp4,
                                {index_q_.Reshaped({n_ * kIndexHeads, kIndexDim})});
      Run<ops::ScaleArgs>("scale", backend_.table.scale, {index_weights_, index_weights_, 1.0F});
      const ops::IndexerSequence sequence = {
          0, n_, depth_, {layer.key_pages, kRowsPerPage, entries, kIndexDim, DType::kBF16}};
      Run<ops::IndexerSelectArgs>("indexer_select", backend_.table.indexer_select,
                                  {index_q_, index_weights_, selected_, 4, std::span(&sequence, 1)});
    }
    if (layer.ratio != 0) Compress(layer, false);
    const ops::AttentionSequence sequence = {0,
                                             n_,
                                             depth_,
                                             {layer.ring.as<void>(), ring_capacity_, kDim, DType::kBF16},
                                             {layer.entry_pages, kRowsPerPage, entries, kDim, DType::kBF16}};
    Run<ops::AttentionArgs>("attention", backend_.table.attention,
                            {q_, sink_, layer.ratio == 4 ? TensorView(selected_) : TensorView(), o_,
                             static_cast<float>(1.0 / std::sqrt(static_cast<double>(kDim))), kWindow,
                             layer.ratio, std::span(&sequence, 1)});
    Rope(o_, true);
  }

  void Ffn() {
    Run<ops::RouterArgs>("router", backend_.table.router, {logits_, bias_, {}, {}, chosen_, weights_, 1.5F});
    // Inside routed_experts in the model.
    Run<ops::SwigluArgs>("swiglu (experts)", backend_.table.swiglu,
                         {gates_, ups_, weights_.Reshaped({n_ * kExpertsPerToken}), activated_, 10.0F});
    Run<ops::SwigluArgs>(
        "swiglu (shared)", backend_.table.swiglu,
        {gate_, up_, {}, activated_.Reshaped({n_ * kExpertsPerToken, kExpertWidth}).Rows(0, n_), 10.0F});
    Run<ops::MoeCombineArgs>("moe_combine", backend_.table.moe_combine, {routed_, y_, y_});
  }

  const ops::Backend& backend_;
  int64_t depth_;
  int64_t n_;
  int64_t ring_capacity_ = 0;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::map<std::string, double> times_;
  Owned streams_, u_, y_, post_, comb_, norm_, q_lora_, q_, kv_, o_, index_q_, index_weights_, selected_,
      logits_, chosen_, weights_, routed_, gate_, up_, gates_, ups_, activated_, hc_scale_, hc_base_, bias_,
      sink_, values_, frequencies_, positions_, pooled_;
};

// Both backends on the same inputs; later layers compare what the same rounding points leave of it.
void Check(const ops::Backend& backend) {
  const ops::Backend reference = backend::MakeReferenceBackend(backend.context->threads().num_threads());
  Bench judged(reference, 4, 2500, 3);
  Bench checked(backend, 4, 2500, 3);
  judged.Step();
  checked.Step();
  const auto cosine = [](const Owned& a, const Owned& b) {
    double ab = 0;
    double aa = 0;
    double bb = 0;
    for (int64_t i = 0; i < TensorView(a).num_elements(); ++i) {
      const double x = static_cast<double>(FloatFromBf16(a.as<uint16_t>()[i]));
      const double y = static_cast<double>(FloatFromBf16(b.as<uint16_t>()[i]));
      ab += x * y;
      aa += x * x;
      bb += y * y;
    }
    return ab / std::sqrt(aa * bb);
  };
  const double streams = cosine(judged.streams(), checked.streams());
  const double o = cosine(judged.o(), checked.o());
  if (!(streams > 0.99999 && o > 0.99999))
    Fail(fmt::format("cosine to the reference: streams {}, attention {}", streams, o));
}

void Print(const ops::Backend& backend, const std::string& title, int64_t depth, int64_t num_tokens) {
  Bench bench(backend, static_cast<int64_t>(std::size(kRatios)), depth, num_tokens);
  std::vector<uint64_t> other(64 << 17, 1);  // 64 MB: what else a step reads.
  std::map<std::string, std::vector<double>> times;
  bench.Step();
  const int repeats = num_tokens == 1 ? 21 : 3;
  uint64_t sum = 0;
  for (int i = 0; i < repeats; ++i) {
    sum += std::accumulate(other.begin(), other.end(), uint64_t{0});
    for (const auto& [name, time] : bench.Step()) times[name].push_back(time);
  }
  if (sum == 0) Fail("no memory was read");
  double total = 0;
  std::vector<std::pair<double, std::string>> rows;
  for (auto& [name, samples] : times) {
    std::nth_element(samples.begin(), samples.begin() + repeats / 2, samples.end());
    rows.emplace_back(samples[static_cast<size_t>(repeats / 2)], name);
    total += rows.back().first;
  }
  std::sort(rows.rbegin(), rows.rend());
  fmt::print("\n{}: {:.3f} ms\n", title, total);
  for (const auto& [time, name] : rows)
    fmt::print("  {:<18} {:>9.3f} ms {:>5.1f} %\n", name, time, 100 * time / total);
}

int Main(int argc, char** argv) {
  const int hardware = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : hardware;
  if (num_threads < 1 || argc > 2) Fail("usage: small_ops_bench [THREADS]");
  auto backend = backend::MakeCpuBackend({.num_threads = num_threads, .isa = std::nullopt});
  if (!backend.has_value()) Fail(backend.error().ToString());
  Check(*backend);
  fmt::print("{}, {} threads, shape mini: ops that are not matrix products, a step\n", backend->name,
             num_threads);
  Print(*backend, "decode, window full", kWindow + 3, 1);
  Print(*backend, "decode at depth 32k", 32768 + 3, 1);
  Print(*backend, "prefill of 512", 0, 512);
  return 0;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::Main(argc, argv); }
