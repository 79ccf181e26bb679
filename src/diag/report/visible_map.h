// The picture of `visible`: for each layer, which keys each query attended to, against the rule.
#pragma once

#include <string>
#include <vector>

#include "diag/report/plot.h"

namespace dsv4::diag {

// One query; all lists ascend.
struct QueryKeys {
  int64_t position = 0;
  std::vector<int64_t> window;  // Positions attended to, and those of the rule.
  std::vector<int64_t> window_rule;
  std::vector<int64_t> entries;  // Compressed entries attended to, those of the rule,
  std::vector<int64_t> entries_rule;
  int64_t num_visible_entries = 0;  // and how many the query could have chosen from.
};

struct LayerKeys {
  int layer = 0;
  std::string kind;  // "csa"
  std::vector<QueryKeys> queries;
};

// One map for all layers that agree in everything. About 200 of many queries are drawn, and always those
// against the rule. The first 12 of many different layers are drawn, those with a query against the rule
// first. `note` says what was left out; empty if nothing was.
struct VisibleMaps {
  std::vector<KeyMap> maps;
  std::string note;
};
VisibleMaps MapVisibleKeys(const std::vector<LayerKeys>& layers);

}  // namespace dsv4::diag
