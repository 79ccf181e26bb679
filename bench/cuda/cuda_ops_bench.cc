// Times the ops of a decode step on the GPU, in the Flash shape. Compares each with the time that its bytes
// would take at the copy bandwidth measured first. Weights are many times the L2 cache and taken in turn.
// Figures include the host's time for queueing where that is the longer part: an op is called as the model
// calls it. Products of many tokens come twice, as they are by default and with DSV4_CUDA_FP8_PRODUCTS=many.
// They are compared with a loop of nothing but products on tensor cores: in bf16, and with products in FP8 in
// e4m3.
//
//   cuda_ops_bench [SUBSTRING]   only the ops whose line contains SUBSTRING
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/cuda/bench.h"
#include "bench/cuda/must.h"

namespace dsv4::bench {
namespace {

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
      for (const int64_t num_tokens : {1, 8, 9, 32, 64, 96, 128, 192, 256, 512}) {
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

// Work of a rank of two that has half of the experts: its terms, and the sum over both ranks' terms.
void Terms(Bench& bench, const std::vector<int64_t>& token_counts) {
  constexpr int64_t kDim = 4096;
  constexpr int64_t kInter = 2048;
  constexpr int64_t kHere = 128;
  constexpr int64_t kExperts = 2 * kHere;
  constexpr int64_t kTopK = 6;
  std::vector<ops::ExpertWeights> experts;
  for (const int64_t num_tokens : token_counts) {
    const std::string of = fmt::format("NVFP4 {} of {} x [{}, {}], top {}, {} tokens", kHere, kExperts,
                                       kInter, kDim, kTopK, num_tokens);
    if (!bench.Wanted("expert_terms " + of) && !bench.Wanted("sum_terms " + of)) continue;
    if (experts.empty()) {
      const auto w1 = bench.Weights(WeightFormat::kNvFp4, kInter, kDim, kHere);
      const auto w3 = bench.Weights(WeightFormat::kNvFp4, kInter, kDim, kHere);
      const auto w2 = bench.Weights(WeightFormat::kNvFp4, kDim, kInter, kHere);
      for (size_t e = 0; e < kHere; ++e) experts.push_back({w1[e], w2[e], w3[e]});
    }
    const TensorView x = bench.Tensor(DType::kBF16, {num_tokens, kDim});
    const TensorView y = bench.Tensor(DType::kF32, {num_tokens, kDim}, false);
    const TensorView weights = bench.Tensor(DType::kF32, {num_tokens, kTopK});
    const TensorView parts = bench.Tensor(DType::kBF16, {2, num_tokens, kTopK, kDim});
    // Every call chooses others, all different within a token; half of them are here.
    std::vector<TensorView> choices;
    int64_t num_chosen = 0;
    for (int64_t set = 0; set < 16; ++set) {
      std::vector<int32_t> indices;
      std::vector<bool> seen(kHere, false);
      for (int64_t i = 0; i < num_tokens * kTopK; ++i) {
        const int64_t id = (set * 89 + i / kTopK * 37 + i % kTopK * 43) % kExperts;
        indices.push_back(static_cast<int32_t>(id % 2 * kHere + id / 2));
        if (id % 2 == 0) seen[static_cast<size_t>(id / 2)] = true;
      }
      num_chosen = std::max<int64_t>(num_chosen, std::count(seen.begin(), seen.end(), true));
      choices.push_back(bench.FromHost({num_tokens, kTopK}, indices));
    }
    const int64_t expert_bytes =
        Bench::Bytes(experts[0].w1) + Bench::Bytes(experts[0].w2) + Bench::Bytes(experts[0].w3);
    bench.Report("expert_terms " + of, num_chosen * expert_bytes + x.num_bytes(),
                 3.0 * static_cast<double>(num_tokens * kTopK * kInter * kDim), [&](int i) {
                   Must(bench.ops().expert_terms(
                       bench.context(), {.x = x,
                                         .indices = choices[static_cast<size_t>(i) % choices.size()],
                                         .weights = weights,
                                         .experts = experts,
                                         .first_expert = 0,
                                         .num_experts = kExperts,
                                         .limit = 10.0F,
                                         .terms = parts.Rows(0, 1).Reshaped({num_tokens, kTopK, kDim})}));
                 });
    const int64_t begins[] = {0, kHere, kExperts};
    bench.Report("sum_terms " + of, parts.num_bytes() / 2 + y.num_bytes(), 0.0, [&](int) {
      Must(bench.ops().sum_terms(bench.context(),
                                 {.parts = parts, .indices = choices[0], .begins = begins, .y = y}));
    });
  }
  bench.Forget();
}

// Work of prefill: products of the Flash shape's matrices for the tokens of a pass, experts chosen at random.
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
        // Linears of the same tokens would pack them once.
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

// Row and element-wise ops of a layer of prefill, of which nothing but bytes should take time.
void ManyRows(Bench& bench, int64_t num_tokens) {
  constexpr int64_t kDim = 4096;
  constexpr int64_t kRow = 512;
  const auto wanted = [&](const std::string& name) { return bench.Wanted(name); };
  for (const int64_t width : {int64_t{7168}, kDim, int64_t{1024}, kRow}) {
    const std::string name = fmt::format("many rms_norm [{}, {}]", num_tokens, width);
    if (!wanted(name)) continue;
    // Two, since steps on the same rows would be one launch.
    const TensorView x[2] = {bench.Tensor(DType::kBF16, {num_tokens, width}),
                             bench.Tensor(DType::kBF16, {num_tokens, width})};
    const TensorView weight = bench.Tensor(DType::kF32, {width});
    bench.Report(name, 2 * x[0].num_bytes(), 0.0, [&](int i) {
      Must(bench.ops().rms_norm(bench.context(),
                                {.x = x[i % 2], .weight = weight, .y = x[i % 2], .eps = 1e-6F}));
    });
    bench.Forget();
  }
  if (const std::string name = fmt::format("many window rows [{}, {}]", num_tokens, kRow); wanted(name)) {
    const TensorView x[2] = {bench.Tensor(DType::kBF16, {num_tokens, kRow}),
                             bench.Tensor(DType::kBF16, {num_tokens, kRow})};
    const TensorView ring = bench.Tensor(DType::kBF16, {num_tokens, kRow}, false);
    const TensorView weight = bench.Tensor(DType::kF32, {kRow});
    const TensorView frequencies = bench.Tensor(DType::kF32, {32});
    const TensorView positions = bench.Integers({num_tokens}, 100000);
    const RowRun run = {.source_begin = 0, .num_rows = num_tokens, .destination = ring.data};
    bench.Report(name, 3 * ring.num_bytes(), 0.0, [&](int i) {
      const TensorView& rows = x[i % 2];
      Must(bench.ops().rms_norm(bench.context(), {.x = rows, .weight = weight, .y = rows, .eps = 1e-6F}));
      Must(bench.ops().rope(bench.context(), {.x = rows.Reshaped({num_tokens, 1, kRow}),
                                              .positions = positions,
                                              .frequencies = frequencies,
                                              .inverse = false}));
      Must(bench.ops().simulate_fp8(bench.context(), {.x = rows, .num_columns = kRow - 64}));
      Must(bench.ops().store_rows(bench.context(), {.source = rows, .runs = std::span(&run, 1)}));
    });
    bench.Forget();
  }
  for (const int64_t heads : {32, 64}) {
    const std::string name = fmt::format("many head_rms_norm [{}, {}, {}]", num_tokens, heads, kRow);
    if (!wanted(name)) continue;
    const TensorView x = bench.Tensor(DType::kBF16, {num_tokens, heads, kRow});
    bench.Report(name, 2 * x.num_bytes(), 0.0, [&](int) {
      Must(bench.ops().head_rms_norm(bench.context(), {.x = x, .y = x, .eps = 1e-6F}));
    });
    bench.Forget();
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool has_shared : {true, false}) {
      const std::string name = fmt::format("many moe_combine {} [{}, {}] of {}", DTypeName(dtype), num_tokens,
                                           kDim, has_shared ? 2 : 1);
      if (!wanted(name)) continue;
      const TensorView routed = bench.Tensor(DType::kF32, {num_tokens, kDim});
      const TensorView shared = has_shared ? bench.Tensor(dtype, {num_tokens, kDim}) : TensorView();
      const TensorView y = bench.Tensor(dtype, {num_tokens, kDim}, false);
      bench.Report(
          name, routed.num_bytes() + (has_shared ? shared.num_bytes() : 0) + y.num_bytes(), 0.0, [&](int) {
            Must(bench.ops().moe_combine(bench.context(), {.routed = routed, .shared = shared, .y = y}));
          });
      bench.Forget();
    }
  }
  if (const std::string name = fmt::format("many swiglu [{}, 2048]", num_tokens); wanted(name)) {
    const TensorView gate = bench.Tensor(DType::kBF16, {num_tokens, 2048});
    const TensorView up = bench.Tensor(DType::kBF16, {num_tokens, 2048});
    const TensorView y = bench.Tensor(DType::kBF16, {num_tokens, 2048}, false);
    bench.Report(name, 3 * y.num_bytes(), 0.0, [&](int) {
      Must(bench.ops().swiglu(bench.context(),
                              {.gate = gate, .up = up, .row_weights = {}, .y = y, .limit = 10.0F}));
    });
    bench.Forget();
  }
  if (const std::string name = fmt::format("many sum_terms [{}, 6, {}]", num_tokens, kDim); wanted(name)) {
    const TensorView parts = bench.Tensor(DType::kBF16, {2, num_tokens, 6, kDim}, false);
    const TensorView y = bench.Tensor(DType::kF32, {num_tokens, kDim}, false);
    std::vector<int32_t> chosen;
    for (int64_t i = 0; i < num_tokens * 6; ++i)
      chosen.push_back(static_cast<int32_t>((i / 6 * 37 + i % 6 * 43) % 256));
    const TensorView indices = bench.FromHost({num_tokens, 6}, chosen);
    const int64_t begins[] = {0, 128, 256};
    bench.Report(name, parts.num_bytes() / 2 + y.num_bytes(), 0.0, [&](int) {
      Must(bench.ops().sum_terms(bench.context(),
                                 {.parts = parts, .indices = indices, .begins = begins, .y = y}));
    });
    bench.Forget();
  }
  for (const bool combines : {false, true}) {
    const std::string name = fmt::format("many {}hc_post [4, {}], {} tokens",
                                         combines ? "moe_combine and " : "", kDim, num_tokens);
    if (!wanted(name)) continue;
    const TensorView streams = bench.Tensor(DType::kBF16, {num_tokens, 4, kDim});
    const TensorView out = bench.Tensor(DType::kBF16, {num_tokens, 4, kDim}, false);
    const TensorView routed = bench.Tensor(DType::kF32, {num_tokens, kDim});
    const TensorView y = bench.Tensor(DType::kBF16, {num_tokens, kDim});
    const TensorView post = bench.Tensor(DType::kF32, {num_tokens, 4});
    const TensorView comb = bench.Tensor(DType::kF32, {num_tokens, 4, 4});
    bench.Report(
        name,
        streams.num_bytes() + out.num_bytes() + y.num_bytes() +
            (combines ? routed.num_bytes() + y.num_bytes() : 0),
        0.0, [&](int) {
          if (combines) {
            Must(bench.ops().moe_combine(bench.context(), {.routed = routed, .shared = y, .y = y}));
          }
          Must(bench.ops().hc_post(bench.context(),
                                   {.y = y, .residual = streams, .post = post, .comb = comb, .out = out}));
        });
    bench.Forget();
  }
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
  Terms(bench, {1, 8, 64, 128, 512});
  ManyTokens(bench, kFormats);
  {
    Bench fp8(bench, Bench::Fp8Products());
    ManyTokens(fp8, {{WeightFormat::kFp8Block, "FP8"}});
    Experts(fp8, {{WeightFormat::kMxFp4, "MXFP4"}}, {8192});
  }
  for (const int64_t batch : {1, 16, 32, 64}) {
    Attention(bench, batch, 8191, 0, 0);
    Attention(bench, batch, 8191, 4, 512);
  }
  Attention(bench, 1, 131071, 128, 0);
  Attention(bench, 1, 1048575, 128, 0);
  for (const int64_t position : {8191, 131071, 1048575}) Indexer(bench, position);
  for (const int64_t num_tokens : {1, 32, 64, 512, 8192}) HyperConnection(bench, num_tokens);
  for (const int64_t num_tokens : {1, 512}) SmallOps(bench, num_tokens);
  ManyRows(bench, 8192);
  for (const int64_t num_rows : {1, 64}) Sample(bench, num_rows);
  return 0;
}
