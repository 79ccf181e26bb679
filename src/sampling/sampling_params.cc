// Checks of a request's sampling parameters.
#include "sampling/sampling_params.h"

#include <fmt/format.h>

#include <cmath>

namespace dsv4::sampling {

Status ValidateSamplingParams(const SamplingParams& params, int64_t vocab_size) {
  const auto require = [](bool ok, std::string_view name, auto got, std::string_view wanted) {
    return ok ? Status() : InvalidArgument(fmt::format("{}: got {}, wanted {}", name, got, wanted));
  };
  DSV4_RETURN_IF_ERROR(require(std::isfinite(params.temperature) && params.temperature >= 0.0F, "temperature",
                               params.temperature, "a number >= 0"));
  DSV4_RETURN_IF_ERROR(require(params.top_k >= 0, "top_k", params.top_k, "0 (off) or more"));
  DSV4_RETURN_IF_ERROR(
      require(params.top_p > 0.0F && params.top_p <= 1.0F, "top_p", params.top_p, "a number in (0, 1]"));
  DSV4_RETURN_IF_ERROR(
      require(params.min_p >= 0.0F && params.min_p < 1.0F, "min_p", params.min_p, "a number in [0, 1)"));
  DSV4_RETURN_IF_ERROR(require(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0.0F,
                               "repetition_penalty", params.repetition_penalty, "a number > 0"));
  DSV4_RETURN_IF_ERROR(require(std::isfinite(params.presence_penalty), "presence_penalty",
                               params.presence_penalty, "a finite number"));
  DSV4_RETURN_IF_ERROR(require(std::isfinite(params.frequency_penalty), "frequency_penalty",
                               params.frequency_penalty, "a finite number"));
  DSV4_RETURN_IF_ERROR(
      require(params.penalty_window >= 0, "penalty_window", params.penalty_window, "0 (all) or more"));
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument(fmt::format("logit_bias: token id {}, wanted 0..{}", id, vocab_size - 1));
    }
    if (std::isnan(bias)) return InvalidArgument(fmt::format("logit_bias: NaN for token id {}", id));
  }
  return {};
}

}  // namespace dsv4::sampling
