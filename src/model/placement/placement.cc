// Parser of --placement, a rank's part of it, and stages cut by bytes.
#include "model/placement/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/text.h"

namespace dsv4::model {

Result<Placement> ParsePlacement(std::string_view text, int num_ranks) {
  const auto refuse = [&](std::string_view why) {
    return Error(InvalidArgument(fmt::format(
        "placement: got '{}', {}; want auto, pipeline, or expert, expert,entries, expert,sequences, tensor "
        "or tensor,entries, with or without pipeline=STAGES",
        text, why)));
  };
  Placement placement;
  std::optional<int> stages;
  std::optional<ExpertPlacement> experts;
  bool entries = false;
  bool sequences = false;
  for (std::string_view rest = text == "auto" ? "expert" : text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    if (word == "expert" || word == "tensor") {
      if (experts) return refuse("which divides the experts twice");
      experts = word == "expert" ? ExpertPlacement::kById : ExpertPlacement::kByColumns;
    } else if (word == "entries") {
      if (entries) return refuse("which divides the entries twice");
      entries = true;
    } else if (word == "sequences") {
      if (sequences) return refuse("which divides the sequences twice");
      sequences = true;
    } else if (word == "pipeline") {
      if (stages) return refuse("which has two pipelines");
      stages = num_ranks;
    } else if (word.starts_with("pipeline=")) {
      if (stages) return refuse("which has two pipelines");
      const std::string_view number = word.substr(word.find('=') + 1);
      int value = 0;
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
      if (error != std::errc() || end != number.data() + number.size() || value < 1)
        return refuse("whose stages are no number");
      stages = value;
    } else {
      return refuse("which has an unknown word");
    }
  }
  if (entries && !experts) return refuse("whose entries go with expert or tensor only");
  if (sequences && experts != ExpertPlacement::kById) return refuse("whose sequences go with expert only");
  if (sequences && entries) return refuse("which divides the entries of sequences that are divided");
  if (!stages && !experts) return refuse("which is empty");
  placement.num_stages = stages.value_or(1);
  if (num_ranks % placement.num_stages != 0) {
    return refuse(fmt::format("but {} not fill {} evenly", Counted(num_ranks, "rank does", "ranks do"),
                              Counted(placement.num_stages, "stage")));
  }
  placement.num_shards = num_ranks / placement.num_stages;
  placement.experts = experts.value_or(ExpertPlacement::kById);
  if (placement.num_shards > 1 && !experts) return refuse("which does not say how a stage is divided");
  placement.divide_entries = placement.num_shards > 1 && entries;
  placement.divide_sequences = placement.num_shards > 1 && sequences;
  return placement;
}

std::string ToString(const Placement& placement) {
  std::string shards = placement.experts == ExpertPlacement::kById ? "expert" : "tensor";
  if (placement.divide_entries) shards += ",entries";
  if (placement.divide_sequences) shards += ",sequences";
  if (placement.num_stages == 1) return shards;
  if (placement.num_shards == 1) return "pipeline";
  return fmt::format("pipeline={},{}", placement.num_stages, shards);
}

Range PartOf(int64_t count, int64_t unit, int part, int num_parts) {
  DSV4_CHECK(unit > 0 && 0 <= part && part < num_parts) << unit << ", " << part << " of " << num_parts;
  const int64_t num_units = (count + unit - 1) / unit;
  const auto begin = [&](int64_t p) {
    return std::min(count, (num_units / num_parts * p + std::min<int64_t>(p, num_units % num_parts)) * unit);
  };
  return {begin(part), begin(part + 1)};
}

Range PartOf(std::span<const int64_t> counts, int part) {
  const auto mine = counts.begin() + part;
  const int64_t begin = std::accumulate(counts.begin(), mine, int64_t{0});
  return {begin, begin + *mine};
}

std::vector<Range> BalanceLayers(std::span<const int64_t> costs, int64_t first_extra, int num_stages) {
  const size_t num_layers = costs.size();
  const auto stages = static_cast<size_t>(num_stages);
  DSV4_CHECK(stages >= 1 && stages <= num_layers) << num_layers << " layers, " << num_stages << " stages";
  // best[s][l]: the dearest stage when the first s stages have the first l layers; cut[s][l]: where the last
  // of them begins.
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> best(stages + 1, std::vector<int64_t>(num_layers + 1, kNever));
  std::vector<std::vector<size_t>> cut(stages + 1, std::vector<size_t>(num_layers + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s <= stages; ++s) {
    for (size_t l = s; l <= num_layers; ++l) {
      int64_t cost = s == 1 ? first_extra : 0;
      for (size_t begin = l; begin-- > s - 1;) {
        cost += costs[begin];
        const int64_t dearest = std::max(cost, best[s - 1][begin]);
        if (dearest >= best[s][l]) continue;
        best[s][l] = dearest;
        cut[s][l] = begin;
      }
    }
  }
  std::vector<Range> ranges(stages);
  size_t end = num_layers;
  for (size_t s = stages; s > 0; --s) {
    ranges[s - 1] = {static_cast<int64_t>(cut[s][end]), static_cast<int64_t>(end)};
    end = cut[s][end];
  }
  return ranges;
}

}  // namespace dsv4::model
