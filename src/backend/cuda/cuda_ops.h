// The op functions of the CUDA backend: each queues its kernels and returns. Arguments have passed the contract's Validate
// (cuda_backend.cc); kernels are in kernels/<op>.cu.
#pragma once

#include "backend/cuda/runtime/cuda_context.h"
#include "ops/op_table.h"

namespace dsv4::backend::cuda {

Status PrepareWeight(CudaContext& context, const ops::PrepareWeightArgs& args);
Status Embed(CudaContext& context, const ops::EmbedArgs& args);
Status RmsNorm(CudaContext& context, const ops::RmsNormArgs& args);
Status HeadRmsNorm(CudaContext& context, const ops::HeadRmsNormArgs& args);
Status Linear(CudaContext& context, const ops::LinearArgs& args);
Status GroupedLinear(CudaContext& context, const ops::GroupedLinearArgs& args);
Status Rope(CudaContext& context, const ops::RopeArgs& args);
Status SimulateFp8(CudaContext& context, const ops::SimulateFp8Args& args);
Status HadamardFp4(CudaContext& context, const ops::HadamardFp4Args& args);
Status Scale(CudaContext& context, const ops::ScaleArgs& args);
Status HcPre(CudaContext& context, const ops::HcPreArgs& args);
Status HcPost(CudaContext& context, const ops::HcPostArgs& args);
Status HcHead(CudaContext& context, const ops::HcHeadArgs& args);
Status StoreRows(CudaContext& context, const ops::StoreRowsArgs& args);
Status CompressorPool(CudaContext& context, const ops::CompressorPoolArgs& args);
Status IndexerSelect(CudaContext& context, const ops::IndexerSelectArgs& args);
Status Attention(CudaContext& context, const ops::AttentionArgs& args);
Status Router(CudaContext& context, const ops::RouterArgs& args);
Status Swiglu(CudaContext& context, const ops::SwigluArgs& args);
Status RoutedExperts(CudaContext& context, const ops::RoutedExpertsArgs& args);
Status MoeCombine(CudaContext& context, const ops::MoeCombineArgs& args);
Status Sample(CudaContext& context, const ops::SampleArgs& args);
Status IndexerCandidates(CudaContext& context, const ops::IndexerCandidatesArgs& args);
Status MergeCandidates(CudaContext& context, const ops::MergeCandidatesArgs& args);
Status AttentionPart(CudaContext& context, const ops::AttentionPartArgs& args);
Status MergeAttention(CudaContext& context, const ops::MergeAttentionArgs& args);
Status GatherRows(CudaContext& context, const ops::GatherRowsArgs& args);
Status SumRows(CudaContext& context, const ops::SumRowsArgs& args);
Status ExpertTerms(CudaContext& context, const ops::ExpertTermsArgs& args);
Status SumTerms(CudaContext& context, const ops::SumTermsArgs& args);

}  // namespace dsv4::backend::cuda
