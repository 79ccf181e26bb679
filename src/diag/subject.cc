// Subject of model checks: model, tokens, and the one way in which a prefill is run and recorded.
#include "diag/subject.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace dsv4::diag {

Result<std::vector<float>> RunTokens(const Subject& subject, std::span<const int32_t> tokens,
                                     std::span<const int64_t> pieces, model::LogitsRows logits,
                                     model::Observer* observer) {
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, subject.model.NewSequence());
  // Logits of all rows keep all rows in all layers (model/graph/pass_tail.h).
  const bool whole = logits == model::LogitsRows::kNone && subject.model.tail_rows() > 0;
  const model::LogitsRows wanted = whole ? model::LogitsRows::kAll : logits;
  std::vector<float> all;
  for (size_t begin = 0, turn = 0; begin < tokens.size(); ++turn) {
    size_t count = tokens.size() - begin;
    if (!pieces.empty()) {
      const int64_t piece = pieces[std::min(turn, pieces.size() - 1)];
      DSV4_CHECK(piece > 0) << piece;
      count = std::min(count, static_cast<size_t>(piece));
    }
    const model::SequenceChunk chunk = {
        .state = &state, .tokens = tokens.subspan(begin, count), .logits = wanted};
    DSV4_ASSIGN_OR_RETURN(const model::StepOutput output, subject.model.Step(std::span(&chunk, 1), observer));
    if (wanted == logits) all.insert(all.end(), output.logits.begin(), output.logits.end());
    begin += count;
  }
  return all;
}

Result<Recording> Record(const Subject& subject, std::span<const int32_t> tokens,
                         std::span<const int64_t> pieces, model::LogitsRows logits,
                         Recording::Filter filter) {
  Recording recording(subject.context(), std::move(filter));
  const Result<std::vector<float>> run = RunTokens(subject, tokens, pieces, logits, &recording);
  if (!run) return Error(run.error());
  DSV4_TRY(recording.status());
  return recording;
}

std::string_view OpBehind(std::string_view tensor_name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 52> kOps = {{
      {"embed", "embed"},
      {"head.streams", "store_rows"},
      {"head.hc", "hc_head"},
      {"head.norm", "rms_norm"},
      {"logits", "linear"},
      {"attn.hc_pre", "hc_pre"},
      {"attn.hc_post", "hc_pre"},
      {"attn.hc_comb", "hc_pre"},
      {"ffn.hc_pre", "hc_pre"},
      {"ffn.hc_post", "hc_pre"},
      {"ffn.hc_comb", "hc_pre"},
      {"attn.norm", "rms_norm"},
      {"ffn.norm", "rms_norm"},
      {"attn.q_a", "linear"},
      {"attn.q_lora", "rms_norm"},
      {"attn.q_b", "linear"},
      {"attn.q_norm", "head_rms_norm"},
      {"attn.q", "rope"},
      {"attn.kv_a", "linear"},
      {"attn.kv_norm", "rms_norm"},
      {"attn.kv", "rope"},
      {"attn.compressor.values", "linear"},
      {"attn.compressor.scores", "linear"},
      {"attn.compressor.pooled", "compressor_pool"},
      {"attn.compressor.norm", "rms_norm"},
      {"attn.compressed", "rope"},
      {"attn.indexer.compressor.values", "linear"},
      {"attn.indexer.compressor.scores", "linear"},
      {"attn.indexer.compressor.pooled", "compressor_pool"},
      {"attn.indexer.compressor.norm", "rms_norm"},
      {"attn.indexer.compressed", "rope"},
      {"attn.indexer.q_b", "linear"},
      {"attn.indexer.q", "rope"},
      {"attn.indexer.weights", "linear"},
      {"attn.indexer.selected", "indexer_select"},
      {"attn.indexer.candidates", "indexer_select"},
      {"attn.indexer.k", "linear"},
      {"attn.indexer.k_norm", "rms_norm"},
      {"engram.streams", "engram_mix"},
      {"attn.o", "attention"},
      {"attn.o_unrotated", "rope"},
      {"attn.o_lora", "grouped_linear"},
      {"attn.out", "linear"},
      {"attn.streams", "hc_post"},
      {"ffn.streams", "hc_post"},
      {"ffn.router.logits", "linear"},
      {"ffn.router.indices", "router"},
      {"ffn.router.weights", "router"},
      {"ffn.routed", "routed_experts"},
      {"ffn.shared.hidden", "swiglu"},
      {"ffn.shared", "linear"},
      {"ffn.out", "moe_combine"},
  }};
  for (const auto& [name, op] : kOps) {
    if (name == tensor_name) return op;
  }
  return {};
}

}  // namespace dsv4::diag
