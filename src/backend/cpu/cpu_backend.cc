#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include "backend/cpu/cpu_ops.h"

namespace dsv4::backend {

Result<ops::Backend> MakeCpuBackend(const CpuOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const cpu::Isa isa, cpu::ChooseIsa(options.isa));
  ops::Backend backend;
  backend.name = fmt::format("cpu ({})", cpu::IsaName(isa));
  backend.context = std::make_shared<cpu::CpuContext>(options.num_threads, cpu::KernelsFor(isa));
  backend.table = {
      .prepare_weight = cpu::PrepareWeight,
      .embed = cpu::Embed,
      .rms_norm = cpu::RmsNorm,
      .head_rms_norm = cpu::HeadRmsNorm,
      .linear = cpu::Linear,
      .grouped_linear = cpu::GroupedLinear,
      .rope = cpu::Rope,
      .simulate_fp8 = cpu::SimulateFp8,
      .hadamard_fp4 = cpu::HadamardFp4,
      .scale = cpu::Scale,
      .hc_pre = cpu::HcPre,
      .hc_post = cpu::HcPost,
      .hc_head = cpu::HcHead,
      .store_rows = cpu::StoreRows,
      .compressor_pool = cpu::CompressorPool,
      .indexer_select = cpu::IndexerSelect,
      .attention = cpu::Attention,
      .router = cpu::Router,
      .swiglu = cpu::Swiglu,
      .routed_experts = cpu::RoutedExperts,
      .moe_combine = cpu::MoeCombine,
  };
  return backend;
}

}  // namespace dsv4::backend
