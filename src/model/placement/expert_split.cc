// Parser and text of --experts, and the tier of each expert by order of choice.
#include "model/placement/expert_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/text.h"

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

Result<ExpertSplit> ParseExpertSplit(std::string_view text, int64_t num_experts, int64_t num_layers) {
  const auto wrong = [&](const std::string& what) {
    return Error(
        InvalidArgument(fmt::format("experts \"{}\": {}; want resident=N,cached=N,host=N, numbers of a "
                                    "layer's {} or shares such as "
                                    "75%, and with cached ones slots=N, of all layers",
                                    text, what, Counted(num_experts, "expert"))));
  };
  struct Part {
    std::string_view name;
    std::optional<int64_t> value;
  };
  std::array<Part, 4> parts = {{{"resident", {}}, {"cached", {}}, {"host", {}}, {"slots", {}}}};
  auto& [resident, cached, host, slots] = parts;
  std::string_view slots_text;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    const size_t equals = word.find('=');
    Part* const part = std::ranges::find(parts, word.substr(0, equals), &Part::name);
    if (equals == std::string_view::npos || part == parts.end())
      return wrong(fmt::format("got \"{}\"", word));
    if (part->value.has_value()) return wrong(fmt::format("{} more than once", part->name));
    const std::string_view value = word.substr(equals + 1);
    if (part == &slots) {  // Total that is known at the end.
      slots_text = value;
      slots.value = 0;
    } else {
      part->value = ParseCount(value, num_experts);
    }
    if (!part->value.has_value()) return wrong(fmt::format("got \"{}\"", word));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  ExpertSplit split{.host = host.value.value_or(0), .cached = cached.value.value_or(0)};
  split.resident = resident.value.value_or(std::max<int64_t>(0, num_experts - split.host - split.cached));
  if (split.total() != num_experts) return wrong(fmt::format("{} in all", Counted(split.total(), "expert")));
  if (slots.value.has_value()) {
    const int64_t all = split.cached * num_layers;
    const bool share = !slots_text.empty() && slots_text.back() == '%';
    slots.value = ParseCount(slots_text, share ? all : INT64_MAX);
    if (split.cached == 0) return wrong("slots, and no cached experts that they would be for");
    if (!slots.value.has_value() || *slots.value < split.cached) {
      return wrong(fmt::format("slots={}, want {} at least, those of one layer", slots_text, split.cached));
    }
    split.slots = std::min(*slots.value, all);
  }
  return split;
}

std::string ToString(const ExpertSplit& split) {
  std::string text = fmt::format("resident={}", split.resident);
  if (split.cached > 0) text += fmt::format(",cached={}", split.cached);
  if (split.host > 0 || split.cached == 0) text += fmt::format(",host={}", split.host);
  if (split.slots > 0) text += fmt::format(",slots={}", split.slots);
  return text;
}

std::string ToString(std::span<const ExpertSplit> of_stages) {
  if (std::ranges::all_of(of_stages, [&](const ExpertSplit& split) { return split == of_stages.front(); }))
    return ToString(of_stages.front());
  std::string text;
  for (size_t i = 0; i < of_stages.size(); ++i)
    text += fmt::format("{}stage {} {}", i == 0 ? "" : "; ", i, ToString(of_stages[i]));
  return text;
}

std::vector<ops::WeightTier> TiersOf(const ExpertSplit& split, const std::vector<int32_t>& order) {
  const auto num_experts = static_cast<size_t>(split.total());
  DSV4_CHECK(order.empty() || order.size() == num_experts) << order.size() << " of " << num_experts;
  std::vector<ops::WeightTier> tiers(num_experts, ops::WeightTier::kResident);
  for (auto i = static_cast<size_t>(split.resident); i < num_experts; ++i) {
    const bool cached = i < static_cast<size_t>(split.resident + split.cached);
    tiers[order.empty() ? i : static_cast<size_t>(order[i])] =
        cached ? ops::WeightTier::kCached : ops::WeightTier::kHost;
  }
  return tiers;
}

}  // namespace dsv4::model
