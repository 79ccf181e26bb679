// Probe of the attention op with coded values that show which keys each query weighs.
#include "diag/checks/attention_probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "diag/recording.h"
#include "formats/cache_rows.h"

namespace dsv4::diag {
namespace {

// Every key a query could see: rows of the ring, then entries.
struct Candidates {
  int64_t first_position = 0;  // The oldest that the ring still holds.
  int64_t num_positions = 0;
  int64_t num_entries = 0;
  int64_t size() const { return num_positions + num_entries; }
};

Candidates AllCandidates(const ops::AttentionArgs& args) {
  const ops::AttentionSequence& sequence = args.sequences[0];
  const int64_t end = sequence.first_position + sequence.num_tokens;
  Candidates candidates;
  candidates.first_position = std::max<int64_t>(0, end - sequence.window.capacity);
  candidates.num_positions = end - candidates.first_position;
  candidates.num_entries = args.ratio > 0 ? sequence.entries.num_rows : 0;
  return candidates;
}

// Zeroed copies of a call's tensors and cached rows, the latter in their own format, in which rows can be set to a single element.
class CodedCall {
 public:
  static Result<CodedCall> Make(ops::OpContext& context, const ops::AttentionArgs& args) {
    CodedCall call(context, args);
    Memory& memory = context.memory();
    const auto bytes = static_cast<size_t>(args.q.num_bytes());
    const ops::AttentionSequence& sequence = args.sequences[0];
    DSV4_ASSIGN_OR_RETURN(call.q_, memory.Allocate(bytes));
    DSV4_ASSIGN_OR_RETURN(call.o_, memory.Allocate(bytes));
    DSV4_ASSIGN_OR_RETURN(call.ring_, memory.Allocate(static_cast<size_t>(sequence.window.capacity *
                                                                          sequence.window.RowBytes())));
    for (size_t page = 0; page < sequence.entries.pages.size(); ++page) {
      DSV4_ASSIGN_OR_RETURN(
          Buffer buffer,
          memory.Allocate(static_cast<size_t>(sequence.entries.rows_per_page * sequence.entries.RowBytes())));
      call.page_pointers_.push_back(buffer.data());
      call.pages_.push_back(std::move(buffer));
    }
    return call;
  }

  // The row of candidate `key` becomes zeros but for `column`.
  Status Set(const Candidates& candidates, int64_t key, int64_t column, float value) {
    const ops::AttentionSequence& sequence = args_.sequences[0];
    const bool in_window = key < candidates.num_positions;
    const CacheFormat& format = in_window ? sequence.window.format : sequence.entries.format;
    std::vector<float> values(static_cast<size_t>(args_.q.shape[2]));
    values[static_cast<size_t>(column)] = value;
    std::vector<std::byte> row(static_cast<size_t>(format.RowBytes(args_.q.shape[2])));
    DSV4_RETURN_IF_ERROR(PackRow(format, values, row.data()));
    std::byte* place = nullptr;
    if (in_window) {
      const int64_t slot = (candidates.first_position + key) % sequence.window.capacity;
      place = static_cast<std::byte*>(ring_.data()) + slot * sequence.window.RowBytes();
    } else {
      const int64_t entry = key - candidates.num_positions;
      const auto page = static_cast<size_t>(entry / sequence.entries.rows_per_page);
      place = static_cast<std::byte*>(page_pointers_[page]) +
              entry % sequence.entries.rows_per_page * sequence.entries.RowBytes();
    }
    return context_.memory().CopyFromHost(place, row.data(), row.size(), context_.stream());
  }

  Result<std::vector<float>> Run(const InnerOp<ops::AttentionArgs>& attention) const {
    ops::AttentionSequence sequence = args_.sequences[0];
    sequence.window.data = ring_.data();
    sequence.entries.pages = page_pointers_;
    ops::AttentionArgs args = args_;
    args.q = TensorView::Contiguous(q_.data(), args_.q.dtype, args_.q.shape, args_.q.device);
    args.o = TensorView::Contiguous(o_.data(), args_.o.dtype, args_.o.shape, args_.o.device);
    args.sequences = std::span(&sequence, 1);
    DSV4_TRY(attention(args));
    return ToHostFloats(context_, args.o);
  }

 private:
  CodedCall(ops::OpContext& context, const ops::AttentionArgs& args) : context_(context), args_(args) {}

  ops::OpContext& context_;
  const ops::AttentionArgs& args_;
  Buffer q_;
  Buffer o_;
  Buffer ring_;
  std::vector<Buffer> pages_;
  std::vector<void*> page_pointers_;
};

// An exact number of every format: groups of FP4 round others.
constexpr float kCode = 6;

// Half a step of bf16 on either side.
bool SameWeight(float a, float b) { return std::abs(a - b) <= 0.01F * std::max(a, b); }

}  // namespace

Result<std::vector<SeenKeys>> ProbeAttention(ops::OpContext& context,
                                             const InnerOp<ops::AttentionArgs>& attention,
                                             const ops::AttentionArgs& args, int64_t code_width) {
  DSV4_CHECK(args.sequences.size() == 1) << args.sequences.size();
  DSV4_CHECK(0 < code_width && code_width <= args.q.shape[2]) << code_width;
  const Candidates candidates = AllCandidates(args);
  const int64_t num_tokens = args.q.shape[0];
  const int64_t num_heads = args.q.shape[1];
  const int64_t head_dim = args.q.shape[2];
  DSV4_ASSIGN_OR_RETURN(CodedCall call, CodedCall::Make(context, args));
  std::vector<SeenKeys> seen(static_cast<size_t>(num_tokens));
  std::vector<float> weights(static_cast<size_t>(num_tokens * num_heads),
                             0.0F);  // Weight of a key, by query and head.
  for (int64_t begin = 0; begin < candidates.size(); begin += code_width) {
    const int64_t end = std::min(begin + code_width, candidates.size());
    for (int64_t key = begin; key < end; ++key) DSV4_TRY(call.Set(candidates, key, key - begin, kCode));
    DSV4_ASSIGN_OR_RETURN(const std::vector<float> o, call.Run(attention));
    for (int64_t key = begin; key < end; ++key) DSV4_TRY(call.Set(candidates, key, key - begin, 0.0F));
    const auto weight_of = [&](int64_t t, int64_t head, int64_t key) {
      return o[static_cast<size_t>((t * num_heads + head) * head_dim + key - begin)] / kCode;
    };
    for (int64_t t = 0; t < num_tokens; ++t) {
      SeenKeys& query = seen[static_cast<size_t>(t)];
      for (int64_t key = begin; key < end; ++key) {
        bool any = false;
        for (int64_t head = 0; head < num_heads; ++head) {
          const float weight = weight_of(t, head, key);
          any = any || weight != 0.0F;
        }
        if (!any) continue;
        for (int64_t head = 0; head < num_heads; ++head) {
          const float weight = weight_of(t, head, key);
          float& usual = weights[static_cast<size_t>(t * num_heads + head)];
          if (usual == 0.0F) usual = weight;
          query.uneven = query.uneven || !SameWeight(weight, usual);
        }
        if (key < candidates.num_positions) {
          query.window.push_back(candidates.first_position + key);
        } else {
          query.entries.push_back(key - candidates.num_positions);
        }
      }
    }
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float weight = weights[static_cast<size_t>(t * num_heads)];
    seen[static_cast<size_t>(t)].denominator = weight == 0.0F ? 0.0 : 1.0 / static_cast<double>(weight);
  }
  return seen;
}

}  // namespace dsv4::diag
