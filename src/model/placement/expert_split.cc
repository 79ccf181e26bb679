#include "model/placement/expert_split.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "base/check.h"

namespace dsv4::model {
namespace {

// A number of experts, or "75%" of them to the nearest; nothing for other words.
std::optional<int64_t> ParseCount(std::string_view text, int64_t num_experts) {
  const bool share = !text.empty() && text.back() == '%';
  if (share) text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  if (!share) return value <= num_experts ? std::optional(value) : std::nullopt;
  if (value > 100) return std::nullopt;
  return std::llround(static_cast<double>(num_experts) * static_cast<double>(value) / 100.0);
}

}  // namespace

Result<ExpertSplit> ParseExpertSplit(std::string_view text, int64_t num_experts) {
  const auto wrong = [&](const std::string& what) {
    return Error(InvalidArgument(fmt::format(
        "experts \"{}\": {}; want resident=N,host=N, numbers of a layer's {} experts or shares such as 75%",
        text, what, num_experts)));
  };
  std::optional<int64_t> resident;
  std::optional<int64_t> host;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    std::optional<int64_t>* const tier = name == "resident" ? &resident : name == "host" ? &host : nullptr;
    if (equals == std::string_view::npos || tier == nullptr) return wrong(fmt::format("got \"{}\"", part));
    if (tier->has_value()) return wrong(fmt::format("{} more than once", name));
    *tier = ParseCount(part.substr(equals + 1), num_experts);
    if (!tier->has_value()) return wrong(fmt::format("got \"{}\"", part));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  const ExpertSplit split{.resident = resident.value_or(num_experts - host.value_or(0)),
                          .host = host.value_or(0)};
  if (split.total() != num_experts) return wrong(fmt::format("{} experts in all", split.total()));
  return split;
}

std::string ToString(const ExpertSplit& split) {
  return fmt::format("resident={},host={}", split.resident, split.host);
}

std::vector<ops::WeightTier> TiersOf(const ExpertSplit& split, const std::vector<int32_t>& order) {
  const auto num_experts = static_cast<size_t>(split.total());
  DSV4_CHECK(order.empty() || order.size() == num_experts) << order.size() << " of " << num_experts;
  std::vector<ops::WeightTier> tiers(num_experts, ops::WeightTier::kResident);
  for (auto i = static_cast<size_t>(split.resident); i < num_experts; ++i)
    tiers[order.empty() ? i : static_cast<size_t>(order[i])] = ops::WeightTier::kHost;
  return tiers;
}

}  // namespace dsv4::model
