// Op sample on the CPU: the choice of sampling/choice.h for each row of logits, rows shared out to threads.
#include <optional>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "sampling/choice.h"

namespace dsv4::backend::cpu {

Status Sample(ops::OpContext& context, const ops::SampleArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const auto vocab_size = static_cast<size_t>(args.logits.shape[1]);
  for (const ops::RowBias& bias : args.biases)
    args.logits
        .as<float>()[static_cast<size_t>(bias.row) * vocab_size + static_cast<size_t>(bias.added.token)] +=
        bias.added.bias;
  std::span<const uint8_t> allowed;
  if (!args.allowed.is_null()) allowed = {args.allowed.as<const uint8_t>(), vocab_size};
  context.threads().ParallelFor(args.logits.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<float> choices(vocab_size);
    for (int64_t row = begin; row < end; ++row) {
      const auto i = static_cast<size_t>(row);
      const std::span<const float> logits(args.logits.as<const float>() + i * vocab_size, vocab_size);
      const std::optional<int32_t> bad = sampling::TakeAllowed(logits, allowed, {}, choices);
      const std::optional<int32_t> token = bad ? std::nullopt : sampling::Choose(args.choices[i], choices);
      args.tokens.as<int32_t>()[i] = token.value_or(0);
      args.faults.as<int32_t>()[i] = token ? ops::kNoFault : bad.value_or(static_cast<int32_t>(vocab_size));
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
