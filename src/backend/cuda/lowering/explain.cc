// Text of --explain: chosen kernels by op and shape, with reasons and counts.
#include "backend/cuda/lowering/explain.h"

#include <fmt/format.h>

#include "base/log.h"

namespace dsv4::backend::cuda {

void Explanations::Add(std::string op, std::string kernel, std::string reason) {
  Explanation line = {std::move(op), std::move(kernel), std::move(reason), 1};
  const auto [place, is_new] = places_.try_emplace(ToString(line), lines_.size());
  if (!is_new) {
    ++lines_[place->second].count;
    return;
  }
  if (log_) LogWarning("cuda: " + place->first);
  lines_.push_back(std::move(line));
}

std::string ToString(const Explanation& line) {
  return line.kernel.empty() ? fmt::format("{}: fused: {}", line.op, line.reason)
                             : fmt::format("{}: {} ({})", line.op, line.kernel, line.reason);
}

}  // namespace dsv4::backend::cuda
