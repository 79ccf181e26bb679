// The op sample: what its rows want, on the device, and the kernel that fits.
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/kernels/sampling/sample_params.h"
#include "backend/cuda/lowering/select/sampling.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {
namespace {

// Changes, rules and masks, where there are any.
Status StageRules(CudaContext& context, const ops::SampleArgs& args, SampleParams* params) {
  if (!args.changes.empty()) {
    using Changes = std::span<const ops::RowChange>;
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const DeviceArray<ops::RowChange> changes,
        context.StageFrom<ops::RowChange>(args.changes, [](Changes all, std::vector<ops::RowChange>* out) {
          out->assign(all.begin(), all.end());
        }));
    const int64_t num_rows = args.logits.shape[0];
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const DeviceArray<int32_t> begin,
        context.StageFrom<int32_t>(args.changes, [num_rows](Changes all, std::vector<int32_t>* out) {
          out->assign(static_cast<size_t>(num_rows) + 1, 0);
          for (const ops::RowChange& change : all) ++(*out)[static_cast<size_t>(change.row) + 1];
          for (size_t i = 1; i < out->size(); ++i) (*out)[i] += (*out)[i - 1];
        }));
    params->changes = changes.data;
    params->change_begin = begin.data;
  }
  if (!args.rules.empty()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<ops::RowRule> rules, context.Stage(args.rules));
    params->rules = rules.data;
  }
  if (!args.masks.empty()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<uint64_t> masks, context.Stage(args.masks));
    params->masks = masks.data;
  }
  return {};
}

}  // namespace

Status Sample(CudaContext& context, const ops::SampleArgs& args) {
  const int64_t num_rows = args.logits.shape[0];
  const int64_t vocab_size = args.logits.shape[1];
  if (num_rows == 0) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const DeviceArray<RowChoice> staged,
      context.StageFrom<RowChoice>(
          args.choices, [](std::span<const sampling::ChoiceParams> all, std::vector<RowChoice>* choices) {
            for (const sampling::ChoiceParams& choice : all) {
              choices->push_back({.uniform = choice.uniform,
                                  .temperature = choice.temperature,
                                  .top_p = choice.top_p,
                                  .lowest_exponent = choice.lowest_exponent(),
                                  .top_k = choice.top_k});
            }
          }));
  SampleParams params = {.logits = args.logits.as<const float>(),
                         .allowed = args.allowed.as<const uint8_t>(),
                         .choices = staged.data,
                         .rules = nullptr,
                         .masks = nullptr,
                         .changes = nullptr,
                         .change_begin = nullptr,
                         .tokens = args.tokens.as<int32_t>(),
                         .faults = args.faults.as<int32_t>(),
                         .vocab_size = static_cast<int>(vocab_size)};
  DSV4_RETURN_IF_ERROR(StageRules(context, args, &params));
  const Plan<SamplePath> plan = ChooseSample({.vocab_size = vocab_size}, context.limits());
  context.Chose(plan);
  if (plan.kernel == SamplePath::kCluster) {
    LaunchSampleCluster(context, params, num_rows);
  } else {
    DSV4_ASSIGN_OR_RETURN_STATUS(float* const rows, context.Scratch<float>(num_rows * vocab_size));
    LaunchSampleRow(context, params, num_rows, rows);
  }
  return LaunchSampleScores(context, args);
}

}  // namespace dsv4::backend::cuda
