// Op sample on the CPU: the choice of sampling/choice.h for each row of logits, rows shared out to threads.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "sampling/choice.h"
#include "sampling/ranking.h"

namespace dsv4::backend::cpu {
namespace {

void Score(std::span<const float> logits, int32_t token, int32_t num_top, int32_t* out) {
  const sampling::LogSum sum = sampling::SumOf(logits);
  ops::ScoresHead head = {.logit = logits[static_cast<size_t>(token)], .highest = sum.highest};
  for (int i = 0; i < 2; ++i) {
    head.high[i] = static_cast<uint32_t>(sum.high >> (32 * i));
    head.low[i] = static_cast<uint32_t>(sum.low >> (32 * i));
  }
  std::memcpy(out, &head, sizeof(head));
  sampling::Ranking ranking(logits);
  for (int32_t i = 0; i < num_top; ++i) {
    const sampling::Ranked* const ranked = ranking.At(static_cast<size_t>(i));
    const ops::TopScore top = ranked == nullptr ? ops::kNoTopScore : ops::TopScore{ranked->id, ranked->value};
    std::memcpy(out + ops::ScoresWidth(i), &top, sizeof(top));
  }
}

// `chosen`: room for a row.
void ChooseRow(const ops::SampleArgs& args, size_t row, std::span<float> chosen) {
  const size_t vocab_size = chosen.size();
  const std::span<const float> logits(args.logits.as<const float>() + row * vocab_size, vocab_size);
  const ops::RowRule rule = args.rules.empty() ? ops::RowRule() : args.rules[row];
  std::span<const uint8_t> allowed;
  if (!args.allowed.is_null()) allowed = {args.allowed.as<const uint8_t>(), vocab_size};
  std::span<const uint64_t> permitted;
  if (rule.mask >= 0) {
    const auto words = static_cast<size_t>(args.mask_words());
    permitted = args.masks.subspan(static_cast<size_t>(rule.mask) * words, words);
  }
  const std::optional<int32_t> bad = sampling::TakeAllowed(logits, allowed, permitted, chosen);
  const auto number = static_cast<int32_t>(row);
  auto change = std::ranges::lower_bound(args.changes, number, {}, &ops::RowChange::row);
  for (; change != args.changes.end() && change->row == number; ++change) {
    float& logit = chosen[static_cast<size_t>(change->token)];
    logit = sampling::Adjusted(logit, change->bias, change->count, rule.penalties);
  }
  const std::optional<int32_t> token = bad ? std::nullopt : sampling::Choose(args.choices[row], chosen);
  args.tokens.as<int32_t>()[row] = token.value_or(0);
  args.faults.as<int32_t>()[row] = token ? ops::kNoFault : bad.value_or(static_cast<int32_t>(vocab_size));
  if (token && rule.num_top >= 0) {
    const auto width = static_cast<size_t>(args.scores.shape[1]);
    Score(logits, *token, rule.num_top, args.scores.as<int32_t>() + row * width);
  }
}

}  // namespace

Status Sample(ops::OpContext& context, const ops::SampleArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  context.threads().ParallelFor(args.logits.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<float> chosen(static_cast<size_t>(args.logits.shape[1]));
    for (int64_t row = begin; row < end; ++row) ChooseRow(args, static_cast<size_t>(row), chosen);
  });
  return {};
}

}  // namespace dsv4::backend::cpu
