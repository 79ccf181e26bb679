#include "backend/reference/reference_backend.h"

#include "backend/reference/reference_ops.h"

namespace dsv4::backend {

namespace {

class ReferenceContext final : public ops::OpContext {
 public:
  explicit ReferenceContext(int num_threads) : threads_(num_threads) {}
  Memory& memory() override { return HostMemory(); }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }

 private:
  ThreadPool threads_;
};

}  // namespace

ops::Backend MakeReferenceBackend(int num_threads) {
  ops::Backend backend;
  backend.name = "reference";
  backend.context = std::make_shared<ReferenceContext>(num_threads);
  backend.packs_rows = true;
  backend.table = {
      .prepare_weight = reference::PrepareWeight,
      .embed = reference::Embed,
      .rms_norm = reference::RmsNorm,
      .head_rms_norm = reference::HeadRmsNorm,
      .linear = reference::Linear,
      .grouped_linear = reference::GroupedLinear,
      .rope = reference::Rope,
      .simulate_fp8 = reference::SimulateFp8,
      .hadamard_fp4 = reference::HadamardFp4,
      .scale = reference::Scale,
      .hc_pre = reference::HcPre,
      .hc_post = reference::HcPost,
      .hc_head = reference::HcHead,
      .store_rows = reference::StoreRows,
      .compressor_pool = reference::CompressorPool,
      .indexer_select = reference::IndexerSelect,
      .attention = reference::Attention,
      .router = reference::Router,
      .swiglu = reference::Swiglu,
      .routed_experts = reference::RoutedExperts,
      .moe_combine = reference::MoeCombine,
      .sample = reference::Sample,
      .indexer_candidates = reference::IndexerCandidates,
      .merge_candidates = reference::MergeCandidates,
      .gather_rows = reference::GatherRows,
      .attention_part = reference::AttentionPart,
      .merge_attention = reference::MergeAttention,
      .sum_rows = reference::SumRows,
      .expert_terms = reference::ExpertTerms,
      .sum_terms = reference::SumTerms,
  };
  return backend;
}

}  // namespace dsv4::backend
