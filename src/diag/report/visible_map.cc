// Map of visible keys by layer: attended, missed and forbidden ones against the rule.
#include "diag/report/visible_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace dsv4::diag {
namespace {

constexpr size_t kMaxQueries = 200;
constexpr size_t kMaxMaps = 12;

bool KeepsRule(const QueryKeys& query) {
  return query.window == query.window_rule && query.entries == query.entries_rule;
}

bool KeepsRule(const LayerKeys& layer) {
  return std::all_of(layer.queries.begin(), layer.queries.end(),
                     [](const auto& query) { return KeepsRule(query); });
}

bool Same(const LayerKeys& a, const LayerKeys& b) {
  return a.kind == b.kind && std::equal(a.queries.begin(), a.queries.end(), b.queries.begin(),
                                        b.queries.end(), [](const QueryKeys& x, const QueryKeys& y) {
                                          return x.position == y.position && x.window == y.window &&
                                                 x.window_rule == y.window_rule && x.entries == y.entries &&
                                                 x.entries_rule == y.entries_rule &&
                                                 x.num_visible_entries == y.num_visible_entries;
                                        });
}

std::vector<KeyRun> Runs(const std::vector<int64_t>& seen, const std::vector<int64_t>& rule,
                         int64_t num_visible) {
  std::vector<std::pair<int64_t, KeyState>> keys;
  std::vector<int64_t> all;
  std::set_union(seen.begin(), seen.end(), rule.begin(), rule.end(), std::back_inserter(all));
  for (int64_t key = 0, next = 0; key < num_visible || next < static_cast<int64_t>(all.size());) {
    const bool listed = next < static_cast<int64_t>(all.size()) &&
                        (key >= num_visible || all[static_cast<size_t>(next)] <= key);
    if (!listed) {
      keys.emplace_back(key++, KeyState::kNotChosen);
      continue;
    }
    const int64_t found = all[static_cast<size_t>(next++)];
    const bool is_seen = std::binary_search(seen.begin(), seen.end(), found);
    const bool is_ruled = std::binary_search(rule.begin(), rule.end(), found);
    keys.emplace_back(found, !is_ruled ? KeyState::kExtra : is_seen ? KeyState::kSeen : KeyState::kMissing);
    key = std::max(key, found + 1);
  }
  std::vector<KeyRun> runs;
  for (const auto& [key, state] : keys) {
    if (!runs.empty() && runs.back().end == key && runs.back().state == state) {
      ++runs.back().end;
    } else {
      runs.push_back({key, key + 1, state});
    }
  }
  return runs;
}

int64_t NumKeys(const KeyPanel& panel) {
  int64_t count = 0;
  for (const auto& row : panel.rows) count = row.empty() ? count : std::max(count, row.back().end);
  return count;
}

KeyMap Draw(const LayerKeys& layer, const std::string& layers) {
  KeyMap map{.title = fmt::format("Keys attended to, {} ({})", layers, layer.kind),
             .reading =
                 "One row a query, from the first position down. The band is the sliding window; compressed "
                 "entries appear as "
                 "their last token is read."};
  KeyPanel window{.name = "window position"};
  KeyPanel entries{.name = "compressed entry"};
  const size_t step = (layer.queries.size() + kMaxQueries - 1) / kMaxQueries;
  for (size_t i = 0; i < layer.queries.size(); ++i) {
    const QueryKeys& query = layer.queries[i];
    if (i % step != 0 && KeepsRule(query)) continue;
    map.positions.push_back(query.position);
    window.rows.push_back(Runs(query.window, query.window_rule, 0));
    entries.rows.push_back(Runs(query.entries, query.entries_rule, query.num_visible_entries));
  }
  window.num_keys = NumKeys(window);
  entries.num_keys = NumKeys(entries);
  map.panels.push_back(std::move(window));
  if (entries.num_keys > 0) map.panels.push_back(std::move(entries));
  return map;
}

}  // namespace

VisibleMaps MapVisibleKeys(const std::vector<LayerKeys>& layers) {
  // Groups of layers that agree.
  std::vector<std::vector<const LayerKeys*>> groups;
  for (const LayerKeys& layer : layers) {
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& other) { return Same(*other[0], layer); });
    if (group == groups.end()) {
      groups.push_back({&layer});
    } else {
      group->push_back(&layer);
    }
  }
  std::stable_partition(groups.begin(), groups.end(),
                        [](const auto& group) { return !KeepsRule(*group[0]); });
  VisibleMaps made;
  for (size_t i = 0; i < std::min(groups.size(), kMaxMaps); ++i) {
    std::string names = groups[i].size() == 1 ? "layer" : "layers";
    for (size_t j = 0; j < groups[i].size(); ++j)
      names += fmt::format("{}{}", j == 0 ? " " : ", ", groups[i][j]->layer);
    made.maps.push_back(Draw(*groups[i][0], names));
  }
  if (groups.size() > kMaxMaps) {
    made.note = fmt::format("{} the rule with other entries, not drawn; --layer shows one",
                            Counted(groups.size() - kMaxMaps, "more layer keeps", "more layers keep"));
  }
  return made;
}

}  // namespace dsv4::diag
