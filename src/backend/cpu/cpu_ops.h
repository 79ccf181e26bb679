// The op functions of the CPU backend, and the context they share. Contracts are in ops/<op>.h.
#pragma once

#include "backend/cpu/kernels/kernels.h"
#include "ops/op_table.h"

namespace dsv4::backend::cpu {

class CpuContext final : public ops::OpContext {
 public:
  CpuContext(const ThreadPoolOptions& threads, const Kernels& kernels)
      : threads_(threads), kernels_(kernels) {}
  Memory& memory() override { return HostMemory(); }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }
  const Kernels& kernels() const { return kernels_; }

 private:
  ThreadPool threads_;
  Kernels kernels_;
};

// The ops below are only ever handed the context made with them.
inline const Kernels& KernelsOf(const ops::OpContext& context) {
  return static_cast<const CpuContext&>(context).kernels();
}

Status PrepareWeight(ops::OpContext& context, const ops::PrepareWeightArgs& args);
Status Embed(ops::OpContext& context, const ops::EmbedArgs& args);
Status RmsNorm(ops::OpContext& context, const ops::RmsNormArgs& args);
Status HeadRmsNorm(ops::OpContext& context, const ops::HeadRmsNormArgs& args);
Status Linear(ops::OpContext& context, const ops::LinearArgs& args);
Status GroupedLinear(ops::OpContext& context, const ops::GroupedLinearArgs& args);
Status Rope(ops::OpContext& context, const ops::RopeArgs& args);
Status SimulateFp8(ops::OpContext& context, const ops::SimulateFp8Args& args);
Status HadamardFp4(ops::OpContext& context, const ops::HadamardFp4Args& args);
Status Scale(ops::OpContext& context, const ops::ScaleArgs& args);
Status HcPre(ops::OpContext& context, const ops::HcPreArgs& args);
Status HcPost(ops::OpContext& context, const ops::HcPostArgs& args);
Status HcHead(ops::OpContext& context, const ops::HcHeadArgs& args);
Status StoreRows(ops::OpContext& context, const ops::StoreRowsArgs& args);
Status CompressorPool(ops::OpContext& context, const ops::CompressorPoolArgs& args);
Status IndexerSelect(ops::OpContext& context, const ops::IndexerSelectArgs& args);
Status Attention(ops::OpContext& context, const ops::AttentionArgs& args);
Status Router(ops::OpContext& context, const ops::RouterArgs& args);
Status Swiglu(ops::OpContext& context, const ops::SwigluArgs& args);
Status RoutedExperts(ops::OpContext& context, const ops::RoutedExpertsArgs& args);
Status MoeCombine(ops::OpContext& context, const ops::MoeCombineArgs& args);
Status Sample(ops::OpContext& context, const ops::SampleArgs& args);
Status IndexerCandidates(ops::OpContext& context, const ops::IndexerCandidatesArgs& args);
Status MergeCandidates(ops::OpContext& context, const ops::MergeCandidatesArgs& args);
Status AttentionPart(ops::OpContext& context, const ops::AttentionPartArgs& args);
Status MergeAttention(ops::OpContext& context, const ops::MergeAttentionArgs& args);
Status GatherRows(ops::OpContext& context, const ops::GatherRowsArgs& args);
Status SumRows(ops::OpContext& context, const ops::SumRowsArgs& args);
Status ExpertTerms(ops::OpContext& context, const ops::ExpertTermsArgs& args);
Status SumTerms(ops::OpContext& context, const ops::SumTermsArgs& args);

}  // namespace dsv4::backend::cpu
