// Op prepare_weight on CUDA: order of FP4 codes, fine FP8 blocks widened to bf16, everything else copied as
// stored.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backend/cuda/kernels/sm100/block_scaled.h"
#include "backend/cuda/runtime/cuda_ops.h"
#include "backend/cuda/tiers/expert_tiers.h"
#include "backend/cuda/weights/e2m1_order.h"

namespace dsv4::backend::cuda {

namespace {

// Whether codes of e2m1 are reordered (weights/e2m1_order.h): where 16 bytes are of one row, as the kernels
// that gain by it read them. Products in FP8 look codes of MXFP4 up four at a time, as they are stored. They and
// those with block scales want activations that are rounded by 128 columns.
bool WantsE2m1Order(const Weight& weight, const DeviceLimits& limits) {
  if (weight.cols % 32 != 0) return false;
  if (weight.format == WeightFormat::kMxFp4) {
    return ActivationGroup(weight.activation) != kActivationBlock ||
           (limits.block_scaled == BlockScaledMode::kOff && limits.fp8_products == Fp8Products::kOff);
  }
  return weight.format == WeightFormat::kNvFp4 && !WantsNvFp4AsStored(limits.block_scaled, weight);
}

// The codes of scales that kernels multiply by together with what widening a code takes.
ScaleCodes CodesOf(const Weight& weight) {
  const bool fine = weight.format == WeightFormat::kMxFp4 ||
                    (weight.format == WeightFormat::kFp8Block && weight.block_cols == kMxFp8Block);
  if (!fine || weight.scale.is_null() || weight.scale.dtype != DType::kF8E8M0) return {};
  const auto* codes = weight.scale.as<const uint8_t>();
  int64_t left = weight.scale.num_bytes();
  ScaleCodes found = {.least = 255, .largest = 0};
  const auto look = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      found.least = std::min(found.least, codes[i]);
      found.largest = std::max(found.largest, codes[i]);
    }
  };
  constexpr int64_t kAtOnce = 256;  // A constant, so that the compiler makes vectors of it.
  for (; left >= kAtOnce; left -= kAtOnce, codes += kAtOnce) look(kAtOnce);
  look(left);
  return found;
}

}  // namespace

// Cached experts are copied behind the caller, those of a layer side by side. A weight of another tier waits
// for them, and so does an error. The loader keeps a layer's memory until its last weight, which is of no
// routed expert.
//
// Data and scales of the tier kHost stay where they are, and those of kCached go to memory of the host
// (ExpertCache). Others move to the device as they are stored but for the order of FP4's codes, in one
// allocation; the kernels unpack them in registers.
Status PrepareWeight(CudaContext& context, const ops::PrepareWeightArgs& args) {
  context.expert_tables().WeightsChange();
  context.expert_tiers().WeightsChange();
  Weight source = *args.source;
  ExpertCache& cache = context.expert_tiers().cache();
  if (args.tier != ops::WeightTier::kCached) cache.Settle();
  if (args.tier == ops::WeightTier::kHost) {
    if (!context.expert_tiers().has_host()) {
      return FailedPrecondition(
          "op prepare_weight: an expert for the host, and the backend was made without one "
          "(CudaOptions::host)");
    }
    *args.prepared = source;
    return {};
  }
  source.scale_codes = CodesOf(source);
  const bool reorder = WantsE2m1Order(source, context.limits());
  if (args.tier == ops::WeightTier::kCached) {
    if (context.limits().fp8_products != Fp8Products::kOff) {
      return Unimplemented(
          "op prepare_weight: a cached expert with products in FP8 (DSV4_CUDA_FP8_PRODUCTS), which want all "
          "experts resident");
    }
    Result<Weight> kept = cache.Keep(source, args.slots, reorder);
    if (!kept.has_value()) {
      cache.Settle();
      return kept.error();
    }
    *args.prepared = *std::move(kept);
    return {};
  }
  constexpr size_t kAlignment = 256;
  const auto data_bytes = static_cast<size_t>(source.data.num_bytes());
  const size_t scale_begin = (data_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t scale_bytes = source.scale.is_null() ? 0 : static_cast<size_t>(source.scale.num_bytes());
  // Kernels read scales by the aligned word.
  constexpr size_t kWord = 4;
  Memory& memory = context.memory();
  DSV4_ASSIGN_OR_RETURN_STATUS(Buffer buffer, memory.Allocate(scale_begin + scale_bytes + kWord));
  auto* const base = static_cast<std::byte*>(buffer.data());
  DSV4_RETURN_IF_ERROR(memory.CopyFromHost(base, source.data.data, data_bytes, context.stream()));
  Weight prepared = source;
  if (reorder) {
    DSV4_RETURN_IF_ERROR(context.queue().CallOnStream(
        "order of FP4 codes", [&](cudaStream_t on) { return LaunchE2m1Order(on, base, data_bytes); }));
    prepared.repacked = true;
  }
  prepared.data =
      TensorView::Contiguous(static_cast<void*>(base), source.data.dtype, source.data.shape, memory.device());
  if (scale_bytes > 0) {
    DSV4_RETURN_IF_ERROR(
        memory.CopyFromHost(base + scale_begin, source.scale.data, scale_bytes, context.stream()));
    prepared.scale = TensorView::Contiguous(static_cast<void*>(base + scale_begin), source.scale.dtype,
                                            source.scale.shape, memory.device());
  }
  prepared.owner = std::move(buffer);
  *args.prepared = std::move(prepared);
  return {};
}

}  // namespace dsv4::backend::cuda
