// Checks of sample's logits, allowed tokens, biases and parameters by row.
#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/text.h"
#include "ops/validate.h"

namespace dsv4::ops {
namespace {

void CheckRules(const SampleArgs& args, OperandChecker& check) {
  if (!check.ok()) return;
  const int64_t num_rows = args.logits.shape[0];
  const auto words = static_cast<size_t>(args.mask_words());
  check.Require(args.rules.empty() || static_cast<int64_t>(args.rules.size()) == num_rows, "rules",
                std::to_string(args.rules.size()), "none or " + std::to_string(num_rows));
  check.Require(args.masks.size() % words == 0, "masks", Counted(args.masks.size(), "word"),
                "a multiple of " + std::to_string(words));
  int32_t most_top = -1;
  for (size_t i = 0; check.ok() && i < args.rules.size(); ++i) {
    const RowRule& rule = args.rules[i];
    const auto require = [&](bool ok, const char* field, float got, const std::string& want) {
      check.Require(ok, "rules[" + std::to_string(i) + "]." + field, got, want);
    };
    require(std::isfinite(rule.penalties.repetition) && rule.penalties.repetition > 0.0F,
            "penalties.repetition", rule.penalties.repetition, "a number > 0");
    require(std::isfinite(rule.penalties.presence), "penalties.presence", rule.penalties.presence,
            "a finite number");
    require(std::isfinite(rule.penalties.frequency), "penalties.frequency", rule.penalties.frequency,
            "a finite number");
    const size_t num_masks = args.masks.size() / words;
    require(rule.mask < 0 || static_cast<size_t>(rule.mask) < num_masks, "mask",
            static_cast<float>(rule.mask), "less than " + std::to_string(num_masks));
    require(rule.num_top <= kMostTopScores, "num_top", static_cast<float>(rule.num_top),
            "at most " + std::to_string(kMostTopScores));
    most_top = std::max(most_top, rule.num_top);
  }
  if (!check.ok() || (most_top < 0 && args.scores.is_null())) return;
  check.Operand("scores", args.scores, {DType::kI32}, {num_rows, kAnyDim});
  check.Disjoint("scores", args.scores, "logits", args.logits);
  check.Disjoint("scores", args.scores, "tokens", args.tokens);
  check.Disjoint("scores", args.scores, "faults", args.faults);
  const int64_t wanted = ScoresWidth(std::max<int64_t>(most_top, 0));
  check.Require(args.scores.shape[1] >= wanted, "scores", "width " + std::to_string(args.scores.shape[1]),
                std::to_string(wanted) + " or more");
}

}  // namespace

Status Validate(const SampleArgs& args) {
  OperandChecker check("sample");
  check.Operand("logits", args.logits, {DType::kF32}, {kAnyDim, kAnyDim});
  const int64_t num_rows = args.logits.shape[0];
  const int64_t vocab_size = args.logits.shape[1];
  check.Require(vocab_size >= 1 && vocab_size <= sampling::kMaxChoices, "logits",
                "vocab_size " + std::to_string(vocab_size), "1 to " + std::to_string(sampling::kMaxChoices));
  if (!args.allowed.is_null()) check.Operand("allowed", args.allowed, {DType::kU8}, {vocab_size});
  check.Operand("tokens", args.tokens, {DType::kI32}, {num_rows});
  check.Operand("faults", args.faults, {DType::kI32}, {num_rows});
  check.Disjoint("tokens", args.tokens, "logits", args.logits);
  check.Disjoint("faults", args.faults, "logits", args.logits);
  check.Disjoint("tokens", args.tokens, "faults", args.faults);
  check.Require(static_cast<int64_t>(args.choices.size()) == num_rows, "choices",
                std::to_string(args.choices.size()), std::to_string(num_rows));
  for (size_t i = 0; check.ok() && i < args.choices.size(); ++i) {
    const sampling::ChoiceParams& choice = args.choices[i];
    const auto require = [&](bool ok, const char* field, double got, const char* want) {
      if (!ok)
        check.Require(false, "choices[" + std::to_string(i) + "]." + field, static_cast<float>(got), want);
    };
    require(std::isfinite(choice.temperature) && choice.temperature >= 0.0F, "temperature",
            static_cast<double>(choice.temperature), "a number >= 0");
    require(choice.top_k >= 0, "top_k", choice.top_k, "0 (off) or more");
    require(choice.top_p > 0.0F && choice.top_p <= 1.0F, "top_p", static_cast<double>(choice.top_p),
            "a number in (0, 1]");
    require(choice.min_p >= 0.0F && choice.min_p < 1.0F, "min_p", static_cast<double>(choice.min_p),
            "a number in [0, 1)");
    require(choice.uniform >= 0.0 && choice.uniform < 1.0, "uniform", choice.uniform, "a number in [0, 1)");
  }
  const RowChange* before = nullptr;
  for (size_t i = 0; check.ok() && i < args.changes.size(); ++i) {
    const RowChange& change = args.changes[i];
    const std::string name = "changes[" + std::to_string(i) + "]";
    const auto require = [&](bool ok, const char* field, float got, const std::string& want) {
      check.Require(ok, name + field, got, want);
    };
    require(change.row >= 0 && change.row < num_rows, ".row", static_cast<float>(change.row),
            "0 to " + std::to_string(num_rows - 1));
    require(change.token >= 0 && change.token < vocab_size, ".token", static_cast<float>(change.token),
            "0 to " + std::to_string(vocab_size - 1));
    require(!std::isnan(change.bias), ".bias", change.bias, "a number");
    require(change.count >= 0, ".count", static_cast<float>(change.count), "0 or more");
    require(before == nullptr || std::pair(before->row, before->token) < std::pair(change.row, change.token),
            "", static_cast<float>(change.token), "an order by row and token, each pair once");
    before = &change;
  }
  CheckRules(args, check);
  return check.status();
}

}  // namespace dsv4::ops
