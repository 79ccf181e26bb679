#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "backend/cpu/cpu_ops.h"

namespace dsv4::backend {
namespace {

Result<std::optional<std::chrono::microseconds>> SpinFromEnvironment() {
  constexpr int kMaxMicroseconds = 1'000'000;
  const char* text = std::getenv("DSV4_SPIN_US");
  if (text == nullptr || *text == '\0') return std::nullopt;
  const char* end = text + std::strlen(text);
  int value = 0;
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < 0 || value > kMaxMicroseconds) {
    return Error(InvalidArgument(
        fmt::format("DSV4_SPIN_US: \"{}\", wanted 0 to {} microseconds", text, kMaxMicroseconds)));
  }
  return std::chrono::microseconds(value);
}

}  // namespace

Result<ops::Backend> MakeCpuBackend(const CpuOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const cpu::Isa isa, cpu::ChooseIsa(options.isa));
  DSV4_ASSIGN_OR_RETURN(const auto spin, SpinFromEnvironment());
  ops::Backend backend;
  backend.name = fmt::format("cpu ({})", cpu::IsaName(isa));
  backend.context = std::make_shared<cpu::CpuContext>(
      ThreadPoolOptions{
          .num_threads = options.num_threads, .spin = spin, .cpus_of_nodes = options.cpus_of_nodes},
      cpu::KernelsFor(isa));
  backend.packs_rows = true;
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
      .sample = cpu::Sample,
      .indexer_candidates = cpu::IndexerCandidates,
      .merge_candidates = cpu::MergeCandidates,
      .gather_rows = cpu::GatherRows,
      .attention_part = cpu::AttentionPart,
      .merge_attention = cpu::MergeAttention,
      .sum_rows = cpu::SumRows,
      .expert_terms = cpu::ExpertTerms,
      .sum_terms = cpu::SumTerms,
  };
  return backend;
}

}  // namespace dsv4::backend
