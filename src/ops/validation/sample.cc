// Checks of sample's logits, allowed tokens, biases and parameters by row.
#include "ops/sample.h"

#include <cmath>
#include <string>
#include <utility>

#include "ops/validate.h"

namespace dsv4::ops {

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
  const RowBias* before = nullptr;
  for (size_t i = 0; check.ok() && i < args.biases.size(); ++i) {
    const RowBias& bias = args.biases[i];
    const std::string name = "biases[" + std::to_string(i) + "]";
    const auto require = [&](bool ok, const char* field, float got, const std::string& want) {
      check.Require(ok, name + field, got, want);
    };
    require(bias.row >= 0 && bias.row < num_rows, ".row", static_cast<float>(bias.row),
            "0 to " + std::to_string(num_rows - 1));
    require(bias.added.token >= 0 && bias.added.token < vocab_size, ".added.token",
            static_cast<float>(bias.added.token), "0 to " + std::to_string(vocab_size - 1));
    require(!std::isnan(bias.added.bias), ".added.bias", bias.added.bias, "a number");
    require(before == nullptr ||
                std::pair(before->row, before->added.token) < std::pair(bias.row, bias.added.token),
            "", static_cast<float>(bias.added.token), "an order by row and token, each pair once");
    before = &bias;
  }
  return check.status();
}

}  // namespace dsv4::ops
