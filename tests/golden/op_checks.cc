// Runs of single ops on golden inputs, compared with golden outputs by the contract's bounds.
#include "tests/golden/op_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>

#include "formats/number_formats.h"
#include "tests/golden/golden_data.h"

namespace dsv4::testing {
namespace {

// A faithful implementation may round a value the other way where its sum landed near a midpoint. Sums here
// are exact to far below a bf16 step, so such values are rare. A rounding point that is left out changes tens
// of percents.
constexpr double kMaxChangedShare = 0.01;

class Runner {
 public:
  Runner(OpCase& c, const ops::Backend& backend, std::vector<OpResult>& results)
      : c_(c), backend_(backend), results_(results) {}

  OpCase& c() { return c_; }
  const ops::OpTable& table() const { return backend_.table; }
  const Json& scalars() const { return c_.scalars(); }
  float Float(const char* key) const { return scalars().at(key).get<float>(); }
  int64_t Int(const char* key) const { return scalars().at(key).get<int64_t>(); }

  template <typename Args>
  void Run(ops::OpFunction<Args> op, const Args& args) {
    if (op == nullptr) throw std::runtime_error(fmt::format("case {}: the backend lacks the op", c_.name()));
    const Status status = op(*backend_.context, args);
    if (!status.ok()) throw std::runtime_error(fmt::format("case {}: {}", c_.name(), status.ToString()));
  }

  // `tiny`: what a cancelled sum may be off by. One changed element is always allowed: small outputs have
  // few.
  void ExpectBf16(const std::string& operand, const TensorView& got, double tiny = 0) {
    const std::vector<float> want = c_.Floats(operand);
    const double share =
        std::max(kMaxChangedShare, 1.0 / static_cast<double>(std::max<size_t>(want.size(), 1)));
    results_.push_back({c_.name() + "/" + operand, CompareBf16(ToFloats(got), want, share, tiny)});
  }
  void ExpectFp32(const std::string& operand, const TensorView& got, int64_t length, double magnitude) {
    results_.push_back(
        {c_.name() + "/" + operand, CompareElements(ToFloats(got), c_.Floats(operand),
                                                    RoundedSumBound(Fp32Epsilon(), 8, length, magnitude))});
  }
  void ExpectExactly(const std::string& operand, const TensorView& got) {
    results_.push_back({c_.name() + "/" + operand, CompareExactly(ToFloats(got), c_.Floats(operand))});
  }

 private:
  OpCase& c_;
  const ops::Backend& backend_;
  std::vector<OpResult>& results_;
};

void RmsNorm(Runner& r) {
  const TensorView x = r.c().Copy("x", DType::kBF16);
  const TensorView y = r.c().New(DType::kBF16, x.shape);
  r.Run(r.table().rms_norm,
        {.x = x, .weight = r.c().Copy("weight", DType::kF32), .y = y, .eps = r.Float("eps")});
  r.ExpectBf16("y", y);
}

void HeadNorm(Runner& r) {
  const TensorView x = r.c().Copy("x", DType::kBF16);
  const TensorView y = r.c().New(DType::kBF16, x.shape);
  r.Run(r.table().head_rms_norm, {.x = x, .y = y, .eps = r.Float("eps")});
  r.ExpectBf16("y", y);
}

void Rope(Runner& r) {
  const TensorView x = r.c().Copy("x", DType::kBF16);
  r.Run(r.table().rope, {.x = x,
                         .positions = r.c().Copy("positions", DType::kI32),
                         .frequencies = r.c().Copy("frequencies", DType::kF32),
                         .inverse = r.scalars().at("inverse").get<bool>()});
  r.ExpectBf16("y", x);
}

void KvRow(Runner& r) {
  const TensorView x = r.c().Copy("x", DType::kBF16);
  r.Run(r.table().simulate_fp8,
        {.x = x, .num_columns = x.shape[1] - r.Int("rope_dim"), .group = r.Int("group")});
  r.ExpectExactly("y", x);
}

void QuantiseFp8(Runner& r) {
  const TensorView x = r.c().Copy("x", DType::kBF16);
  r.Run(r.table().simulate_fp8, {.x = x, .num_columns = x.shape[1], .group = r.Int("group")});
  r.ExpectExactly("y", x);
}

void IndexerRow(Runner& r) {
  const TensorView x = r.c().Copy("x", DType::kBF16);
  r.Run(r.table().hadamard_fp4, {.x = x});
  r.ExpectExactly("y", x);
}

// The largest sum of magnitudes that a row of y adds up.
double SumMagnitude(const std::vector<float>& x, const Weight& weight) {
  std::vector<float> row(static_cast<size_t>(weight.cols));
  double largest = 0;
  for (int64_t n = 0; n < weight.rows; ++n) {
    DequantizeRow(weight, n, row.data());
    for (size_t t = 0; t < x.size(); t += row.size()) {
      double sum = 0;
      for (size_t k = 0; k < row.size(); ++k) sum += std::abs(static_cast<double>(row[k]) * x[t + k]);
      largest = std::max(largest, sum);
    }
  }
  return largest;
}

void LinearWith(Runner& r, ActivationQuant activation) {
  int64_t block_rows = 128;
  int64_t block_cols = 128;
  if (r.scalars().contains("block")) {
    block_rows = r.scalars()["block"][0].get<int64_t>();
    block_cols = r.scalars()["block"][1].get<int64_t>();
  }
  const Weight weight = r.c().StoredWeight("", activation, block_rows, block_cols);
  const TensorView x = r.c().Copy("x", DType::kBF16);
  const bool fp32 = r.c().Stored("y").dtype == DType::kF32;
  const TensorView y = r.c().New(fp32 ? DType::kF32 : DType::kBF16, {x.shape[0], weight.rows});
  r.Run(r.table().linear, {.x = x, .weight = &weight, .y = y});
  const double magnitude = SumMagnitude(r.c().Floats("x"), weight);
  if (fp32) {
    r.ExpectFp32("y", y, weight.cols, magnitude);
  } else {
    r.ExpectBf16("y", y);
  }
}

void GroupedLinear(Runner& r) {
  const Weight weight = r.c().StoredWeight("", ActivationQuant::kNone);
  const int64_t groups = r.Int("groups");
  const TensorView flat = r.c().Copy("x", DType::kBF16);
  const int64_t n = flat.shape[0];
  const TensorView y = r.c().New(DType::kBF16, {n, groups, weight.rows / groups});
  r.Run(r.table().grouped_linear,
        {.x = flat.Reshaped({n, groups, flat.shape[1] / groups}), .weight = &weight, .y = y});
  r.ExpectBf16("y", y);
}

void HyperConnection(Runner& r) {
  const TensorView streams = r.c().Copy("streams", DType::kBF16);
  const int64_t n = streams.shape[0];
  const int64_t h = streams.shape[1];
  const int64_t d = streams.shape[2];
  const TensorView u = r.c().New(DType::kBF16, {n, d});
  const TensorView post = r.c().New(DType::kF32, {n, h});
  const TensorView comb = r.c().New(DType::kF32, {n, h, h});
  r.Run(r.table().hc_pre, {.streams = streams,
                           .fn = r.c().Copy("fn", DType::kF32),
                           .scale = r.c().Copy("scale", DType::kF32),
                           .base = r.c().Copy("base", DType::kF32),
                           .u = u,
                           .post = post,
                           .comb = comb,
                           .norm_eps = r.Float("norm_eps"),
                           .hc_eps = r.Float("hc_eps"),
                           .sinkhorn_iters = static_cast<int>(r.Int("iterations"))});
  r.ExpectBf16("u", u);
  // The mixing products add h * d terms of order one; the sigmoids and the Sinkhorn steps do not enlarge
  // their error.
  r.ExpectFp32("post", post, h * d, 1);
  r.ExpectFp32("comb", comb, h * d, 1);
  const TensorView out = r.c().New(DType::kBF16, streams.shape);
  r.Run(r.table().hc_post, {.y = r.c().Copy("sublayer_out", DType::kBF16),
                            .residual = streams,
                            .post = r.c().Copy("post", DType::kF32),
                            .comb = r.c().Copy("comb", DType::kF32),
                            .out = out});
  r.ExpectBf16("new_streams", out);
  const TensorView head = r.c().New(DType::kBF16, {n, d});
  r.Run(r.table().hc_head, {.streams = streams,
                            .fn = r.c().Copy("head_fn", DType::kF32),
                            .scale = r.c().Copy("head_scale", DType::kF32),
                            .base = r.c().Copy("head_base", DType::kF32),
                            .y = head,
                            .norm_eps = r.Float("norm_eps"),
                            .hc_eps = r.Float("hc_eps")});
  r.ExpectBf16("head_out", head);
}

void Compressor(Runner& r) {
  const int64_t ratio = r.Int("ratio");
  const bool overlap = ratio == 4;
  const TensorView u = r.c().Copy("u", DType::kBF16);
  const int64_t n = u.shape[0];
  std::vector<TensorView> projected;
  for (const char* name : {"wkv", "wgate"}) {
    Weight weight;
    weight.data = r.c().Stored(name);
    weight.rows = weight.data.shape[0];
    weight.cols = weight.data.shape[1];
    projected.push_back(r.c().New(DType::kF32, {n, weight.rows}));
    r.Run(r.table().linear, {.x = u, .weight = &weight, .y = projected.back()});
    const double magnitude = SumMagnitude(r.c().Floats("u"), weight);
    r.ExpectFp32(name == std::string("wkv") ? "values" : "scores", projected.back(), weight.cols, magnitude);
  }
  const int64_t channels_width = projected[0].shape[1];
  const int64_t d = overlap ? channels_width / 2 : channels_width;
  const int64_t num_entries = n / ratio;
  const int64_t capacity = ratio * (overlap ? 2 : 1);
  const auto ring = [&] {
    return RingRows{r.c().New(DType::kF32, {capacity, channels_width}).data, capacity, channels_width,
                    DType::kF32};
  };
  const ops::CompressorSequence sequence = {.token_begin = 0,
                                            .num_tokens = n,
                                            .first_position = 0,
                                            .value_history = ring(),
                                            .score_history = ring()};
  const TensorView pooled = r.c().New(DType::kBF16, {num_entries, d});
  r.Run(r.table().compressor_pool, {.values = r.c().Copy("values", DType::kF32),
                                    .scores = r.c().Copy("scores", DType::kF32),
                                    .ape = r.c().Copy("ape", DType::kF32),
                                    .pooled = pooled,
                                    .ratio = ratio,
                                    .overlap = overlap,
                                    .sequences = std::span(&sequence, 1)});
  r.ExpectBf16("pooled", pooled);

  const TensorView entries = r.c().Copy("pooled", DType::kBF16);
  r.Run(r.table().rms_norm,
        {.x = entries, .weight = r.c().Copy("norm", DType::kF32), .y = entries, .eps = r.Float("eps")});
  const TensorView positions = r.c().New(DType::kI32, {num_entries});
  for (int64_t j = 0; j < num_entries; ++j) positions.as<int32_t>()[j] = static_cast<int32_t>(j * ratio);
  r.Run(r.table().rope, {.x = entries.Reshaped({num_entries, 1, d}),
                         .positions = positions,
                         .frequencies = r.c().Copy("frequencies", DType::kF32),
                         .inverse = false});
  r.ExpectBf16("rotated", entries);

  const TensorView finished = r.c().Copy("rotated", DType::kBF16);
  if (r.scalars().at("kind") == "main") {
    r.Run(r.table().simulate_fp8, {.x = finished, .num_columns = d - r.Int("rope_dim"), .group = 64});
  } else {
    r.Run(r.table().hadamard_fp4, {.x = finished});
  }
  r.ExpectExactly("entries", finished);
}

// One page that holds all rows.
struct OnePage {
  void* page;
  PagedRows rows;
  explicit OnePage(const TensorView& all)
      : page(all.data),
        rows{.pages = {},
             .rows_per_page = std::max<int64_t>(all.shape[0], 1),
             .num_rows = all.shape[0],
             .width = all.shape[1],
             .format = all.dtype} {}
  PagedRows Get() {
    rows.pages = std::span<void* const>(&page, 1);
    return rows;
  }
};

void Indexer(Runner& r) {
  const TensorView u = r.c().Copy("u", DType::kBF16);
  Weight projection;
  projection.data = r.c().Stored("weights_proj");
  projection.rows = projection.data.shape[0];
  projection.cols = projection.data.shape[1];
  const TensorView weights = r.c().New(DType::kBF16, {u.shape[0], projection.rows});
  r.Run(r.table().linear, {.x = u, .weight = &projection, .y = weights});
  const double factor = 1 / std::sqrt(static_cast<double>(r.Int("head_dim") * projection.rows));
  r.Run(r.table().scale, {.x = weights, .y = weights, .factor = static_cast<float>(factor)});
  r.ExpectBf16("weights", weights);

  OnePage entries(r.c().Copy("entries", DType::kBF16));
  const ops::IndexerSequence sequence = {.token_begin = 0,
                                         .num_tokens = u.shape[0],
                                         .first_position = r.Int("first_position"),
                                         .keys = entries.Get()};
  const TensorView selected = r.c().New(DType::kI32, {u.shape[0], r.Int("topk")});
  r.Run(r.table().indexer_select, {.q = r.c().Copy("q", DType::kBF16),
                                   .weights = r.c().Copy("weights", DType::kBF16),
                                   .selected = selected,
                                   .ratio = r.Int("ratio"),
                                   .sequences = std::span(&sequence, 1)});
  r.ExpectExactly("selected", selected);
}

void Attention(Runner& r) {
  const TensorView q = r.c().Copy("q", DType::kBF16);
  const TensorView rows = r.c().Copy("window_rows", DType::kBF16);
  const int64_t first = r.Int("first_position");
  const int64_t n = q.shape[0];
  const int64_t d = q.shape[2];
  // The ring holds the row of position p at slot p mod capacity.
  const int64_t capacity = rows.shape[0];
  const TensorView ring = r.c().New(DType::kBF16, rows.shape);
  for (int64_t i = 0; i < capacity; ++i) {
    const int64_t slot = (first + n - capacity + i) % capacity;
    std::copy_n(rows.as<uint16_t>() + i * d, d, ring.as<uint16_t>() + slot * d);
  }
  ops::AttentionSequence sequence = {.token_begin = 0,
                                     .num_tokens = n,
                                     .first_position = first,
                                     .window = {ring.data, capacity, d, DType::kBF16},
                                     .entries = {}};
  const bool compressed = r.c().Has("entries");
  OnePage entries(compressed ? r.c().Copy("entries", DType::kBF16) : r.c().New(DType::kBF16, {0, d}));
  if (compressed) sequence.entries = entries.Get();
  const TensorView o = r.c().New(DType::kBF16, q.shape);
  r.Run(r.table().attention,
        {.q = q,
         .sink = r.c().Copy("sink", DType::kF32),
         .selected = r.c().Has("selected") ? r.c().Copy("selected", DType::kI32) : TensorView{},
         .o = o,
         .softmax_scale = r.Float("scale"),
         .window_size = r.Int("window"),
         .ratio = r.Int("ratio"),
         .sequences = std::span(&sequence, 1)});
  r.ExpectBf16("o", o);
}

void Router(Runner& r) {
  Weight gate;
  gate.data = r.c().Stored("gate");
  gate.rows = gate.data.shape[0];
  gate.cols = gate.data.shape[1];
  const TensorView u = r.c().Copy("u", DType::kBF16);
  const TensorView logits = r.c().New(DType::kF32, {u.shape[0], gate.rows});
  r.Run(r.table().linear, {.x = u, .weight = &gate, .y = logits});
  r.ExpectFp32("logits", logits, gate.cols, SumMagnitude(r.c().Floats("u"), gate));

  const bool hashed = r.c().Has("tid2eid");
  const TensorView indices = r.c().New(DType::kI32, {u.shape[0], r.Int("topk")});
  const TensorView weights = r.c().New(DType::kF32, indices.shape);
  r.Run(r.table().router, {.logits = r.c().Copy("logits", DType::kF32),
                           .bias = hashed ? TensorView{} : r.c().Copy("bias", DType::kF32),
                           .hash_table = hashed ? r.c().Copy("tid2eid", DType::kI32) : TensorView{},
                           .token_ids = hashed ? r.c().Copy("token_ids", DType::kI32) : TensorView{},
                           .indices = indices,
                           .weights = weights,
                           .route_scale = r.Float("route_scale")});
  r.ExpectExactly("experts", indices);
  r.ExpectFp32("weights", weights, 1, 1);
}

void Swiglu(Runner& r) {
  const TensorView gate = r.c().Copy("gate", DType::kBF16);
  const TensorView y = r.c().New(DType::kBF16, gate.shape);
  const Json& limit = r.scalars().at("limit");
  TensorView row_weights;
  if (r.c().Has("weight")) row_weights = r.c().Copy("weight", DType::kF32).Reshaped({gate.shape[0]});
  r.Run(r.table().swiglu,
        {.gate = gate,
         .up = r.c().Copy("up", DType::kBF16),
         .row_weights = row_weights,
         .y = y,
         .limit = limit.is_null() ? std::numeric_limits<float>::infinity() : limit.get<float>()});
  r.ExpectBf16("h", y);
}

void RoutedExperts(Runner& r) {
  std::vector<ops::ExpertWeights> experts;
  for (int64_t e = 0; e < r.Int("num_experts"); ++e) {
    const auto load = [&](const char* name) {
      return r.c().StoredWeight(fmt::format("experts.{}.{}.", e, name), ActivationQuant::kFp8Block);
    };
    experts.push_back({.w1 = load("w1"), .w2 = load("w2"), .w3 = load("w3")});
  }
  const TensorView x = r.c().Copy("x", DType::kBF16);
  const TensorView y = r.c().New(DType::kF32, x.shape);
  r.Run(r.table().routed_experts, {.x = x,
                                   .indices = r.c().Copy("indices", DType::kI32),
                                   .weights = r.c().Copy("weights", DType::kF32),
                                   .experts = experts,
                                   .limit = r.Float("limit"),
                                   .y = y});
  r.ExpectExactly("y", y);
}

void Combine(Runner& r) {
  const TensorView shared = r.c().Copy("shared", DType::kBF16);
  const TensorView y = r.c().New(DType::kBF16, shared.shape);
  r.Run(r.table().moe_combine, {.routed = r.c().Copy("routed_sum", DType::kF32), .shared = shared, .y = y});
  r.ExpectExactly("y", y);
}

void EngramMix(Runner& r) {
  const TensorView streams = r.c().Copy("streams", DType::kBF16);
  const TensorView out = r.c().New(DType::kBF16, streams.shape);
  r.Run(r.table().engram_mix, {.streams = streams,
                               .mixed = r.c().Copy("mixed", DType::kBF16),
                               .q_weight = r.c().Copy("q_weight", DType::kF32),
                               .k_weight = r.c().Copy("k_weight", DType::kF32),
                               .is_image = r.c().Copy("is_image", DType::kI32),
                               .out = out,
                               .eps = r.Float("eps")});
  r.ExpectBf16("out", out);
}

void Head(Runner& r) {
  const Weight weight = r.c().StoredWeight("", ActivationQuant::kNone);
  const TensorView z = r.c().Copy("z", DType::kBF16);
  const TensorView logits = r.c().New(DType::kF32, {z.shape[0], weight.rows});
  r.Run(r.table().linear, {.x = z, .weight = &weight, .y = logits});
  r.ExpectFp32("logits", logits, weight.cols, SumMagnitude(r.c().Floats("z"), weight));
}

const std::map<std::string, std::function<void(Runner&)>>& Checks() {
  const auto linear = [](ActivationQuant activation) {
    return [activation](Runner& r) { LinearWith(r, activation); };
  };
  static const std::map<std::string, std::function<void(Runner&)>> checks = {
      {"rms_norm", RmsNorm},
      {"head_norm", HeadNorm},
      {"rope", Rope},
      {"quantise_fp8", QuantiseFp8},
      {"kv_row", KvRow},
      {"indexer_row", IndexerRow},
      {"linear_fp8", linear(ActivationQuant::kFp8Block)},
      {"linear_mxfp4", linear(ActivationQuant::kFp8Block)},
      {"linear_fp8_32", linear(ActivationQuant::kFp8Columns32)},
      {"linear_mxfp4_32", linear(ActivationQuant::kFp8Columns32)},
      {"linear_nvfp4", linear(ActivationQuant::kNone)},
      {"linear_bf16", linear(ActivationQuant::kNone)},
      {"linear_f32", linear(ActivationQuant::kNone)},
      {"grouped_linear", GroupedLinear},
      {"hyper_connection", HyperConnection},
      {"compressor", Compressor},
      {"indexer", Indexer},
      {"attention", Attention},
      {"router", Router},
      {"swiglu", Swiglu},
      {"routed_experts", RoutedExperts},
      {"combine", Combine},
      {"head", Head},
      {"engram", EngramMix},
  };
  return checks;
}

}  // namespace

std::vector<std::string> OpGoldenFiles() {
  std::vector<std::string> names;
  for (const auto& [name, check] : Checks()) names.push_back(name);
  return names;
}

std::vector<OpResult> RunOpGolden(const std::string& file, const ops::Backend& backend) {
  OpFile op_file(file);
  std::vector<OpResult> results;
  for (OpCase& c : op_file.cases()) {
    Runner runner(c, backend, results);
    Checks().at(file)(runner);
  }
  return results;
}

}  // namespace dsv4::testing
