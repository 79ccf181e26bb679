// Mistakes 12 to 16: what a query sees, the sink, and what is summed.
#include <algorithm>
#include <cmath>

#include "backend/reference/values.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

enum class Fault : uint8_t {
  kInverseAtKey,
  kNoSink,
  kSinkScaled,
  kSinkPerChunk,
  kSinkValue,
  kValueNopeOnly,
  kValueUnrotated,
  kValueUnquantised,
  kCountOffByOne,
  kCountPerChunk,
  kIncompleteBlock,
  kOutsideWindow,
  kWindow127,
  kWindow129,
  kRingOverwritten,
  kHcaSelected,
};

constexpr int64_t kChunk = 37;  // Chunk of the chunk-wise mistakes, as in the oracle.

struct Row {
  std::vector<double> key;
  int64_t position = 0;  // At which it was rotated.
};

int64_t ChunkEnd(int64_t position, int64_t num_tokens) {
  return std::min((position / kChunk + 1) * kChunk, num_tokens);
}

template <Fault F>
int64_t VisibleEntries(int64_t position, int64_t ratio, int64_t num_tokens) {
  switch (F) {
    case Fault::kCountOffByOne:
      return position / ratio;
    case Fault::kIncompleteBlock:
      return std::min((position + ratio) / ratio, num_tokens / ratio);
    case Fault::kCountPerChunk:
      return ChunkEnd(position, num_tokens) / ratio;
    default:
      return (position + 1) / ratio;
  }
}

template <Fault F>
bool SeesWindow(int64_t query, int64_t key, int64_t window, int64_t num_tokens) {
  if (F == Fault::kWindow127) window -= 1;
  if (F == Fault::kWindow129) window += 1;
  if (F == Fault::kRingOverwritten && key <= ChunkEnd(query, num_tokens) - 1 - window) return false;
  return key <= query && key > query - window;
}

// Term of a key: the key itself, but for the mistakes that make it something else.
template <Fault F>
std::vector<double> ValueOf(const Row& row, const std::vector<float>& frequencies) {
  std::vector<double> value = row.key;
  const size_t nope = value.size() - 2 * frequencies.size();
  if (F == Fault::kValueNopeOnly) std::fill(value.begin() + static_cast<int64_t>(nope), value.end(), 0.0);
  if (F == Fault::kValueUnrotated || F == Fault::kInverseAtKey) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const double angle = static_cast<double>(static_cast<float>(row.position) * frequencies[i]);
      const double a = value[nope + 2 * i];
      const double b = value[nope + 2 * i + 1];
      value[nope + 2 * i] = a * std::cos(angle) + b * std::sin(angle);
      value[nope + 2 * i + 1] = b * std::cos(angle) - a * std::sin(angle);
    }
  }
  return value;
}

// Which of the visible entries the indexer chose; all without one. The right selection is redone for a wrong
// count: the newest entries that it could not know are added.
bool Chosen(const ops::AttentionArgs& args, int64_t token, int64_t position, int64_t entry) {
  if (args.selected.is_null() || entry >= (position + 1) / args.ratio) return true;
  const int64_t top_k = args.selected.shape[1];
  const auto* list = args.selected.as<const int32_t>() + token * top_k;
  return std::find(list, list + top_k, static_cast<int32_t>(entry)) != list + top_k;
}

// Rows before their FP8 rounding, in the order of the calls: a layer's window rows, then its entries.
Status SaveUnrounded(ops::OpContext& context, const ops::SimulateFp8Args& args) {
  const std::vector<double> rows = Values(args.x);
  TheScene().saved.insert(TheScene().saved.end(), rows.begin(), rows.end());
  return Right().simulate_fp8(context, args);
}

void TakeUnrounded(std::vector<std::vector<double>>& values) {
  auto next = TheScene().saved.begin();
  for (std::vector<double>& value : values) {
    std::copy_n(next, value.size(), value.begin());
    next += static_cast<int64_t>(value.size());
  }
  TheScene().saved.clear();
}

// One sequence from position 0, the whole prompt at once.
template <Fault F>
Status Attention(ops::OpContext&, const ops::AttentionArgs& args) {
  const ops::AttentionSequence& sequence = args.sequences[0];
  const int64_t n = sequence.num_tokens;
  const int64_t heads = args.q.shape[1];
  const auto d = static_cast<size_t>(args.q.shape[2]);
  const Scene& scene = TheScene();
  std::vector<Row> rows;
  for (int64_t p = 0; p < n; ++p) {
    rows.push_back({std::vector<double>(d), p});
    backend::reference::LoadRingRow(sequence.window, p, rows.back().key);
  }
  for (int64_t j = 0; args.ratio > 0 && j < sequence.entries.num_rows; ++j) {
    rows.push_back({std::vector<double>(d), j * args.ratio});
    backend::reference::LoadPagedRow(sequence.entries, j, rows.back().key);
  }
  std::vector<std::vector<double>> values;
  for (const Row& row : rows) {
    values.push_back(ValueOf<F>(row, args.ratio > 0 ? scene.compress_frequencies : scene.plain_frequencies));
  }
  if (F == Fault::kValueUnquantised) TakeUnrounded(values);
  const std::vector<double> q = Values(args.q);
  const std::vector<double> sinks = Values(args.sink);
  std::vector<double> o;
  for (int64_t t = 0; t < n; ++t) {
    std::vector<size_t> seen;
    for (int64_t p = 0; p < n; ++p) {
      if (SeesWindow<F>(t, p, args.window_size, n)) seen.push_back(static_cast<size_t>(p));
    }
    const int64_t count =
        args.ratio > 0 ? std::min(VisibleEntries<F>(t, args.ratio, n), sequence.entries.num_rows) : 0;
    for (int64_t j = 0; j < count; ++j) {
      if (F == Fault::kOutsideWindow && (j + 1) * args.ratio > t - args.window_size + 1) continue;
      if (F == Fault::kHcaSelected && args.ratio == 128 && j + 1 < count) continue;
      if (Chosen(args, t, t, j)) seen.push_back(static_cast<size_t>(n + j));
    }
    for (int64_t h = 0; h < heads; ++h) {
      const double* query = q.data() + (t * heads + h) * args.q.shape[2];
      std::vector<double> logits;
      for (const size_t i : seen) {
        logits.push_back(backend::reference::Dot(query, rows[i].key.data(), args.q.shape[2]) *
                         static_cast<double>(args.softmax_scale));
      }
      const double max = *std::max_element(logits.begin(), logits.end());
      double sink = sinks[static_cast<size_t>(h)];
      if (F == Fault::kSinkScaled) sink *= static_cast<double>(args.softmax_scale);
      double extra = F == Fault::kNoSink ? 0 : std::exp(sink - max);
      if (F == Fault::kSinkPerChunk) extra *= std::ceil(static_cast<double>(seen.size()) / kChunk);
      double total = extra;
      std::vector<double> out(d, 0.0);
      for (size_t i = 0; i < seen.size(); ++i) {
        const double e = std::exp(logits[i] - max);
        total += e;
        backend::reference::AddScaled(backend::reference::HeldAs(args.q.dtype, e), values[seen[i]], out);
      }
      if (F == Fault::kSinkValue) backend::reference::AddScaled(extra, values[0], out);
      for (const double value : out) o.push_back(value / total);
    }
  }
  SetValues(args.o, o);
  return {};
}

Status NoInverse(ops::OpContext& context, const ops::RopeArgs& args) {
  return args.inverse ? Status() : Right().rope(context, args);
}

template <Fault F>
SeededMistake With() {
  SeededMistake mistake;
  mistake.mutation.ops = [](ops::OpTable& table) {
    table.attention = Attention<F>;
    if (F == Fault::kInverseAtKey) table.rope = NoInverse;
    if (F == Fault::kValueUnquantised) table.simulate_fp8 = SaveUnrounded;
  };
  // The faulty op reads every window row of the prompt, so the ring must keep them all.
  mistake.mutation.options = [](model::ModelOptions& options) { options.max_rewind_tokens = 512; };
  return mistake;
}

}  // namespace

void AddAttentionMistakes(SeededMistakes& mistakes) {
  mistakes["12-inverse-at-key"] = With<Fault::kInverseAtKey>();
  mistakes["13-no-sink"] = With<Fault::kNoSink>();
  mistakes["13-sink-scaled"] = With<Fault::kSinkScaled>();
  mistakes["13-sink-per-chunk"] = With<Fault::kSinkPerChunk>();
  mistakes["13-sink-value"] = With<Fault::kSinkValue>();
  mistakes["14-value-nope-only"] = With<Fault::kValueNopeOnly>();
  mistakes["14-value-unrotated"] = With<Fault::kValueUnrotated>();
  mistakes["14-value-unquantised"] = With<Fault::kValueUnquantised>();
  mistakes["15-count-off-by-one"] = With<Fault::kCountOffByOne>();
  mistakes["15-count-per-chunk"] = With<Fault::kCountPerChunk>();
  mistakes["15-incomplete-block"] = With<Fault::kIncompleteBlock>();
  mistakes["15-outside-window"] = With<Fault::kOutsideWindow>();
  mistakes["16-window-127"] = With<Fault::kWindow127>();
  mistakes["16-window-129"] = With<Fault::kWindow129>();
  mistakes["16-ring-overwritten"] = With<Fault::kRingOverwritten>();
  mistakes["18-hca-selected"] = With<Fault::kHcaSelected>();
}

}  // namespace dsv4::testing
