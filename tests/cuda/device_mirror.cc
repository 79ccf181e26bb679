// Backend that runs ops on a device for tests whose tensors lie on the host, with guards around each.
#include "tests/cuda/device_mirror.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <span>
#include <vector>

namespace dsv4::testing {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xFF};

class MirrorContext final : public ops::OpContext {
 public:
  explicit MirrorContext(ops::Backend inner) : inner_(std::move(inner)) {}
  Memory& memory() override { return HostMemory(); }
  ThreadPool& threads() override { return inner_.context->threads(); }
  Stream stream() override { return nullptr; }
  const ops::Backend& inner() const { return inner_; }

 private:
  ops::Backend inner_;
};

// The memory of one op's operands on both sides. First every operand is added, then Upload, then addresses
// translate.
class Mirror {
 public:
  explicit Mirror(const ops::Backend& backend) : backend_(backend), memory_(backend.context->memory()) {}

  void Add(const TensorView& view) {
    if (view.is_null() || view.num_elements() == 0) return;
    int64_t last = 0;
    for (int i = 0; i < view.shape.rank(); ++i)
      last += (view.shape[i] - 1) * view.strides[static_cast<size_t>(i)];
    Add(view.data, (last + 1) * ElementBytes(view.dtype));
  }
  void Add(const RingRows& ring) {
    if (ring.data != nullptr) Add(ring.data, ring.capacity * ring.RowBytes());
  }
  void Add(const PagedRows& rows) {
    for (void* page : rows.pages) Add(page, rows.rows_per_page * rows.RowBytes());
  }
  void Add(const void* data, int64_t num_bytes) {
    if (num_bytes == 0) return;
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
    regions_.push_back({begin, begin + num_bytes, {}});
  }

  Status Upload() {
    std::sort(regions_.begin(), regions_.end(),
              [](const Region& a, const Region& b) { return a.begin < b.begin; });
    std::vector<Region> merged;
    for (const Region& region : regions_) {
      if (!merged.empty() && region.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, region.end);
      } else {
        merged.push_back(region);
      }
    }
    regions_ = std::move(merged);
    for (Region& region : regions_) {
      std::vector<std::byte> bytes(region.size() + 2 * kGuardBytes, kGuard);
      std::copy(region.begin, region.end, bytes.begin() + kGuardBytes);
      DSV4_ASSIGN_OR_RETURN_STATUS(region.device, memory_.Allocate(bytes.size()));
      DSV4_RETURN_IF_ERROR(
          memory_.CopyFromHost(region.device.data(), bytes.data(), bytes.size(), backend_.context->stream()));
    }
    return {};
  }

  // Device address of a host address.
  void* At(const void* host) const {
    const auto* const address = static_cast<const std::byte*>(host);
    for (const Region& region : regions_) {
      if (region.begin <= address && address < region.end)
        return static_cast<std::byte*>(region.device.data()) + kGuardBytes + (address - region.begin);
    }
    return nullptr;  // An operand without elements.
  }
  // One without elements stays where it is: that it is there may count.
  TensorView At(TensorView view) const {
    if (void* const at = At(view.data); at != nullptr) view.data = at;
    view.device = memory_.device();
    return view;
  }
  RingRows At(RingRows ring) const {
    ring.data = At(ring.data);
    return ring;
  }
  PagedRows At(PagedRows rows) {
    std::vector<void*>& pages = page_tables_.emplace_back();
    for (void* page : rows.pages) pages.push_back(At(page));
    rows.pages = pages;
    return rows;
  }
  Result<const Weight*> At(const Weight* weight) {
    if (weight == nullptr) return weight;
    Weight& prepared = weights_.emplace_back();
    DSV4_TRY(backend_.table.prepare_weight(*backend_.context, {.source = weight, .prepared = &prepared}));
    return &prepared;
  }

  Status Download() {
    for (Region& region : regions_) {
      std::vector<std::byte> bytes(region.size() + 2 * kGuardBytes);
      DSV4_RETURN_IF_ERROR(
          memory_.CopyToHost(bytes.data(), region.device.data(), bytes.size(), backend_.context->stream()));
      const auto data = std::span(bytes).subspan(kGuardBytes, region.size());
      const auto intact = [](std::span<const std::byte> guard) {
        return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kGuard; });
      };
      if (!intact(std::span(bytes).first(kGuardBytes)) || !intact(std::span(bytes).last(kGuardBytes)))
        return Internal(fmt::format("wrote outside an operand of {} bytes", region.size()));
      // Only what changed: some operands are constants.
      if (std::memcmp(region.begin, data.data(), data.size()) != 0)
        std::memcpy(region.begin, data.data(), data.size());
    }
    return {};
  }

 private:
  struct Region {
    std::byte* begin;
    std::byte* end;
    Buffer device;
    size_t size() const { return static_cast<size_t>(end - begin); }
  };

  const ops::Backend& backend_;
  Memory& memory_;
  std::vector<Region> regions_;
  std::deque<std::vector<void*>> page_tables_;
  std::deque<Weight> weights_;
};

// Each op's operands are visited twice: first their memory is added, then each is replaced by the device's.
struct Adder {
  Mirror& mirror;
  // Width of store_rows' source, which comes before its format and its runs.
  int64_t run_width = 0;
  int64_t run_row_bytes = 0;

  template <typename Operand>
  void operator()(Operand& operand) {
    Add(operand);
  }
  void Add(const TensorView& view) {
    mirror.Add(view);
    if (view.shape.rank() != 2) return;
    run_width = view.shape[1];
    run_row_bytes = run_width * ElementBytes(view.dtype);
  }
  void Add(const std::optional<CacheFormat>& pack) {
    if (pack.has_value()) run_row_bytes = pack->RowBytes(run_width);
  }
  void Add(const Weight*) {}
  void Add(std::span<const ops::ExpertWeights>) {}
  void Add(std::span<const RowRun> runs) {
    for (const RowRun& run : runs) mirror.Add(run.destination, run.num_rows * run_row_bytes);
  }
  void Add(std::span<const PagedRows> sources) {
    for (const PagedRows& source : sources) mirror.Add(source);
  }
  void Add(std::span<const ops::CompressorSequence> sequences) {
    for (const auto& sequence : sequences) {
      mirror.Add(sequence.value_history);
      mirror.Add(sequence.score_history);
    }
  }
  void Add(std::span<const ops::IndexerSequence> sequences) {
    for (const auto& sequence : sequences) mirror.Add(sequence.keys);
  }
  void Add(std::span<const ops::AttentionSequence> sequences) {
    for (const auto& sequence : sequences) {
      mirror.Add(sequence.window);
      mirror.Add(sequence.entries);
    }
  }
};

struct Translator {
  Mirror& mirror;
  std::vector<RowRun> runs;
  std::vector<PagedRows> sources;
  std::vector<ops::ExpertWeights> experts;
  std::vector<ops::CompressorSequence> compressor_sequences;
  std::vector<ops::IndexerSequence> indexer_sequences;
  std::vector<ops::AttentionSequence> attention_sequences;

  Status status = {};

  template <typename Operand>
  void operator()(Operand& operand) {
    if (status.ok()) status = Replace(operand);
  }
  Status Replace(TensorView& view) {
    if (!view.is_null()) view = mirror.At(view);
    return {};
  }
  Status Replace(std::optional<CacheFormat>& /*pack*/) { return {}; }
  Status Replace(const Weight*& weight) {
    DSV4_ASSIGN_OR_RETURN_STATUS(weight, mirror.At(weight));
    return {};
  }
  Status Replace(std::span<const ops::ExpertWeights>& span) {
    for (const ops::ExpertWeights& expert : span) {
      ops::ExpertWeights& placed = experts.emplace_back();
      for (const auto member : {&ops::ExpertWeights::w1, &ops::ExpertWeights::w2, &ops::ExpertWeights::w3}) {
        DSV4_ASSIGN_OR_RETURN_STATUS(const Weight* const weight, mirror.At(&(expert.*member)));
        placed.*member = *weight;
      }
    }
    span = experts;
    return {};
  }
  Status Replace(std::span<const RowRun>& span) {
    for (RowRun run : span) {
      run.destination = mirror.At(run.destination);
      runs.push_back(run);
    }
    span = runs;
    return {};
  }
  Status Replace(std::span<const PagedRows>& span) {
    for (const PagedRows& source : span) sources.push_back(mirror.At(source));
    span = sources;
    return {};
  }
  Status Replace(std::span<const ops::CompressorSequence>& span) {
    for (ops::CompressorSequence sequence : span) {
      sequence.value_history = mirror.At(sequence.value_history);
      sequence.score_history = mirror.At(sequence.score_history);
      compressor_sequences.push_back(sequence);
    }
    span = compressor_sequences;
    return {};
  }
  Status Replace(std::span<const ops::IndexerSequence>& span) {
    for (ops::IndexerSequence sequence : span) {
      sequence.keys = mirror.At(sequence.keys);
      indexer_sequences.push_back(sequence);
    }
    span = indexer_sequences;
    return {};
  }
  Status Replace(std::span<const ops::AttentionSequence>& span) {
    for (ops::AttentionSequence sequence : span) {
      sequence.window = mirror.At(sequence.window);
      sequence.entries = mirror.At(sequence.entries);
      attention_sequences.push_back(sequence);
    }
    span = attention_sequences;
    return {};
  }
};

// Validation on the host's operands first: errors of a contract read the same, and only sound operands are
// copied.
template <typename Args>
Status RunMirrored(const ops::Backend& inner, ops::OpFunction<Args> op, const Args& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  Mirror mirror(inner);
  Args placed = args;
  Adder adder{mirror};
  ops::VisitOperands(placed, adder);
  DSV4_RETURN_IF_ERROR(mirror.Upload());
  Translator translator{mirror, {}, {}, {}, {}, {}};
  ops::VisitOperands(placed, translator);
  DSV4_RETURN_IF_ERROR(translator.status);
  DSV4_RETURN_IF_ERROR(op(*inner.context, placed));
  return mirror.Download();
}

// The mirror's weights stay on the host; RunMirrored prepares them for every call.
Status RunMirrored(const ops::Backend&, ops::OpFunction<ops::PrepareWeightArgs>,
                   const ops::PrepareWeightArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  *args.prepared = *args.source;
  return {};
}

#define DSV4_MIRRORED_OP(name, Op)                                             \
  Status Mirrored_##name(ops::OpContext& context, const ops::Op##Args& args) { \
    const ops::Backend& inner = static_cast<MirrorContext&>(context).inner();  \
    return RunMirrored(inner, inner.table.name, args);                         \
  }
DSV4_FOR_EVERY_OP(DSV4_MIRRORED_OP)
#undef DSV4_MIRRORED_OP

}  // namespace

ops::Backend MakeDeviceMirror(ops::Backend device) {
  ops::Backend backend;
  backend.name = device.name;
#define DSV4_MIRRORED_ENTRY(name, Op) \
  if (device.table.name != nullptr) backend.table.name = Mirrored_##name;
  DSV4_FOR_EVERY_OP(DSV4_MIRRORED_ENTRY)
#undef DSV4_MIRRORED_ENTRY
  backend.context = std::make_shared<MirrorContext>(std::move(device));
  return backend;
}

}  // namespace dsv4::testing
