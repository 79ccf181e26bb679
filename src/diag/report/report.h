// CheckReport: what one check of `dsv4 diagnose` found, as data. The same report becomes text for people and
// JSON for scripts. Both say the same. html_report.h makes a page of it, with drawings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "diag/report/plot.h"

namespace dsv4::diag {

enum class Verdict : uint8_t {
  kPass,
  kFinding,        // Something is wrong, or at least not what the release does.
  kNotApplicable,  // The experiment says nothing about this model or these options; the headline says why.
};
std::string_view VerdictName(Verdict verdict);  // "pass", "finding", "not applicable"

// Tensor of a finding in the graph, in the names of model/graph/observer.h.
struct Location {
  int layer = -1;        // -1: before or behind the layers.
  std::string tensor;    // "attn.compressor.pooled"
  std::string op;        // The op of ops/op_table.h that wrote it; empty when several are possible.
  int64_t position = 0;  // The first token position concerned.
  std::vector<int64_t> experts = {};  // Experts of ffn.routed, where few explain what is wrong.

  std::string ToString() const;  // "layer 3, attn.o (op attention), position 17", "..., expert 5"
};

// Figures. Every row has one cell a column.
struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

struct CheckReport {
  std::string check;  // The name on the command line.
  Verdict verdict = Verdict::kPass;
  std::string headline;               // One line without the verdict.
  std::vector<std::string> evidence;  // Steps and measurements, a line each.
  std::vector<Table> tables;
  std::vector<Plot> plots;  // Drawn by html_report.h alone.
  std::vector<KeyMap> key_maps;
  std::vector<std::string> rules_out;  // Causes that are ruled out, given the verdict.
  std::string next_step;
  std::optional<Location> location;
  // A finding that makes the checks after it meaningless: `all` stops here.
  bool ends_run = false;
};

// The report of an experiment that says nothing, with what it has so far.
CheckReport NotApplicable(CheckReport report, std::string why);

std::string ToText(const CheckReport& report);
// One line, what came of all of them: "nothing found: 8 checks passed, 1 not applicable (compare)"; the
// checks with findings, where the first lies and what to do next.
std::string Summary(const std::vector<CheckReport>& reports);
// One JSON document: {"checks": [{check, verdict, headline, place?, evidence, tables, rules_out, next_step,
// ends_run}]}.
std::string ToJson(const std::vector<CheckReport>& reports);

// 0 when no report is a finding, else 1.
int ExitCode(const std::vector<CheckReport>& reports);

}  // namespace dsv4::diag
