// Text and JSON of a benchmark: rows, ratios, profiles, kernels and memory.
#include "apps/bench/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"

namespace dsv4::apps {
namespace {

// Ops with less of a profile's time share a line.
constexpr double kSmallShare = 0.003;

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// "-" where there is nothing to compare with.
std::string PercentText(double percent) { return percent > 0 ? fmt::format("{:.1f} %", percent) : "-"; }

double ReadPercent(const BenchRow& row) {
  return Percent(row.cost.bytes() / row.Median(), row.Machine().read_bandwidth);
}

double MultiplyAddPercent(const BenchRow& row) {
  return Percent(row.cost.multiply_adds / row.Median(), row.Machine().multiply_adds);
}

// The least time that the cost allows on this machine; 0: unknown.
double BoundSeconds(const diag::OpCost& cost, const BenchMachine& machine) {
  if (machine.read_bandwidth == 0) return 0;
  const double multiplying = machine.multiply_adds > 0 ? cost.multiply_adds / machine.multiply_adds : 0;
  return std::max(cost.bytes() / machine.read_bandwidth, multiplying);
}

// The row that differs from `row` in these alone; null when it was not run.
const BenchRow* Find(const BenchReport& report, const BenchRow& row, const std::string& backend,
                     int64_t depth, int64_t batch) {
  const auto found = std::ranges::find_if(report.rows, [&](const BenchRow& other) {
    return other.prefill == row.prefill && other.ahead == row.ahead && other.verify == row.verify &&
           other.tokens == row.tokens && other.backend == backend && other.depth == depth &&
           other.batch == batch;
  });
  return found == report.rows.end() ? nullptr : &*found;
}

const char* Kind(const BenchRow& row) {
  if (row.verify) return "rows";
  return row.prefill ? "prefill" : row.ahead ? "ahead" : "decode";
}

std::string RowName(const BenchRow& row) {
  if (row.verify) return fmt::format("{}, depth {}", Counted(row.tokens, "row"), row.depth);
  return row.prefill ? fmt::format("prefill {}", row.tokens)
                     : fmt::format("{}, depth {}, batch {}", Kind(row), row.depth, row.batch);
}

Json RowJson(const BenchRow& row) {
  Json json = {{"kind", Kind(row)},
               {"backend", row.backend},
               {"depth", row.depth},
               {"batch", row.batch},
               {"tokens", row.tokens},
               {"seconds", row.seconds},
               {"median_seconds", row.Median()},
               {"spread", row.Spread()},
               {"tokens_per_second", row.TokensPerSecond()},
               {"weight_bytes", row.cost.weight_bytes},
               {"cache_bytes", row.cost.cache_bytes},
               {"multiply_adds", row.cost.multiply_adds},
               {"layer_rows", row.layer_rows.run},
               {"layer_rows_of_all", row.layer_rows.all},
               {"bytes_without_replication", row.bytes_without_replication},
               {"machine_read_bytes_per_second", row.Machine().read_bandwidth},
               {"machine_multiply_adds_per_second", row.Machine().multiply_adds},
               {"busy", row.busy},
               {"read_percent", ReadPercent(row)},
               {"multiply_add_percent", MultiplyAddPercent(row)}};
  if (row.disk_steps > 0) {
    json["disk"] = {{"chosen_bytes", row.disk_chosen},
                    {"read_bytes", row.disk_read},
                    {"steps", row.disk_steps},
                    {"bytes_per_second", row.disk_rate}};
  }
  if (row.ops.empty()) return json;
  const auto steps = static_cast<double>(row.profiled_steps);
  json["ops"] = Json::array();
  for (const diag::OpTime& op : row.ops) {
    json["ops"].push_back({{"op", op.op},
                           {"detail", op.detail},
                           {"calls", static_cast<double>(op.calls) / steps},
                           {"seconds", op.seconds / steps},
                           {"weight_bytes", op.cost.weight_bytes / steps},
                           {"cache_bytes", op.cost.cache_bytes / steps},
                           {"multiply_adds", op.cost.multiply_adds / steps},
                           {"bound_seconds", BoundSeconds(op.cost, row.Machine()) / steps}});
  }
  return json;
}

// The least time of a decode step, with the share of misses that it had.
double TierBound(const BenchExperts& experts, const BenchRow& row) {
  return experts.BoundSeconds(row.cost.bytes(), row.batch, row.Machine().read_bandwidth,
                              row.MissShare().value_or(experts.MissShare()));
}

}  // namespace

std::vector<BenchSummary> Summarize(const BenchReport& report) {
  std::vector<BenchSummary> summary;
  const std::string& first = report.backends.front();
  for (const BenchRow& row : report.rows) {
    const std::string of = report.backends.size() > 1 ? ", " + row.backend : "";
    const std::string name = RowName(row) + of;
    const auto add = [&](const std::string& than, double value, const std::string& unit, bool busy = false) {
      summary.push_back({.what = name + than, .value = value, .unit = unit, .busy = row.busy || busy});
    };
    if (row.Machine().read_bandwidth > 0) {
      if (row.prefill && row.Machine().multiply_adds > 0)
        add("", MultiplyAddPercent(row), "% of the multiply-adds");
      if (!row.prefill && row.batch == 1) add("", ReadPercent(row), "% of the read bandwidth");
    }
    if (report.experts.has_value() && !row.prefill && row.Machine().read_bandwidth > 0) {
      const double bound = TierBound(*report.experts, row);
      add(fmt::format(", of {:.2f} ms", bound * 1e3), 100.0 * bound / row.Median(), "% of the bound by tier");
    }
    if (report.experts.has_value() && row.prefill && row.cache_bytes > 0 &&
        report.experts->rates.link_beside > 0) {
      const double bytes = report.experts->Stages() * static_cast<double>(row.cache_bytes) /
                           static_cast<double>(row.seconds.size());
      const double bound = bytes / report.experts->rates.link_beside;
      add(fmt::format(", of {:.1f} MB in {:.1f} ms", bytes / 1e6, bound * 1e3), 100.0 * bound / row.Mean(),
          "% of the link's bound");
    }
    if (const std::optional<double> missed = row.MissShare())
      add("", 100.0 * (1.0 - *missed), "% of chosen cached experts were on the GPU");
    if (report.experts.has_value() && row.host.requests > 0) {
      const auto requests = static_cast<double>(row.host.requests);
      const auto experts = static_cast<double>(row.host.experts);
      add(fmt::format(", the host's answer of {:.1f} experts", experts / requests),
          row.host.seconds / requests * 1e6, "us");
      add(", the host's answers", experts * report.experts->expert_bytes / row.host.seconds / 1e9, "GB/s");
    }
    if (row.disk_steps > 0) {
      const double read = static_cast<double>(row.disk_read) / static_cast<double>(row.disk_steps);
      add(fmt::format(", of {:.1f} MB of chosen experts",
                      static_cast<double>(row.disk_chosen) / static_cast<double>(row.disk_steps) / 1e6),
          read / 1e6, "MB read from disk");
      add(fmt::format(", of those at {:.2f} GB/s", row.disk_rate / 1e9),
          100.0 * read / row.disk_rate / row.Mean(), "% of the disk's bound");
    }
    if (row.layer_rows.run < row.layer_rows.all)
      add(fmt::format(", {} of {} of layers run", row.layer_rows.run, Counted(row.layer_rows.all, "row")),
          100.0 * static_cast<double>(row.layer_rows.run) / static_cast<double>(row.layer_rows.all),
          "% of all");
    if (!row.prefill) add(" / layer", row.Median() * 1e6 / static_cast<double>(report.num_layers), "us");
    // Beside ranks that divide a token's bytes evenly.
    if (row.bytes_without_replication > 0 && row.Machine().read_bandwidth > 0) {
      add("", Percent(row.bytes_without_replication / row.Median(), row.Machine().read_bandwidth),
          "% of the bound without replication");
    }
    if (const BenchRow* alone = Find(report, row, row.backend, row.depth, 1);
        alone != nullptr && alone != &row) {
      add(" / batch 1", row.TokensPerSecond() / alone->TokensPerSecond(), "x the tokens", alone->busy);
      summary.back().bound = static_cast<double>(row.batch) *
                             (report.experts.has_value() && row.Machine().read_bandwidth > 0
                                  ? TierBound(*report.experts, *alone) / TierBound(*report.experts, row)
                                  : alone->cost.bytes() / row.cost.bytes());
    }
    if (row.verify && row.tokens > 1) {
      BenchRow single = row;
      single.tokens = 1;
      if (const BenchRow* one = Find(report, single, row.backend, row.depth, 1); one != nullptr)
        add(" / 1 row", row.Median() / one->Median(), "x the time", one->busy);
    }
    if (const BenchRow* flat = Find(report, row, row.backend, 0, row.batch);
        flat != nullptr && flat != &row) {
      add(" / depth 0", row.Median() / flat->Median(), "x the time", flat->busy);
    }
    if (const BenchRow* base = Find(report, row, first, row.depth, row.batch);
        base != nullptr && base != &row) {
      add(" / " + first, row.Median() / base->Median(), "x the time", base->busy);
    }
  }
  return summary;
}

std::string HeaderText(const BenchReport& report) {
  std::string text = fmt::format("model    {}, {}, numerics {}\n", report.model,
                                 Counted(report.num_layers, "layer"), report.numerics);
  text += fmt::format("backend  {}; {}\n", fmt::join(report.backends, ", "),
                      Counted(report.num_threads, "thread"));
  if (report.loopback_ranks > 0) {
    text +=
        fmt::format("output   UNCHECKED: rank 0 of {}, whose exchanges come back to it (--loopback-ranks)\n",
                    report.loopback_ranks);
  } else if (report.checks.empty()) {
    text += "output   UNCHECKED (--check off)\n";
  }
  for (const BenchCheck& check : report.checks) {
    text += fmt::format(
        "output   {}: checked against the reference in {} ({:.0f} s): every op of a prefill of {}; "
        "logits "
        "at depth {}: worst cosine {:.6f}, worst error {:.1e} of their size\n",
        check.backend, Counted(check.layers, "layer"), check.seconds, check.prefill_tokens, check.depth,
        check.worst_cosine, check.worst_error);
  }
  return text;
}

std::string RowHeading(bool narrow) {
  if (narrow) {
    return fmt::format("{:<8} {:>6} {:>5} {:>6} {:>11} {:>7} {:>9} {:>7} {:>7}\n", "", "depth", "batch",
                       "tokens", "time", "spread", "tokens/s", "reads", "peak");
  }
  return fmt::format("{:<8} {:>6} {:>5} {:>6} {:>11} {:>7} {:>9} {:>9} {:>9} {:>7} {:>9} {:>7}   {}\n", "",
                     "depth", "batch", "tokens", "time", "spread", "tokens/s", "weights", "cache", "reads",
                     "G mul-add", "peak", "machine: GB/s, G mul-add/s");
}

std::string RowText(const BenchRow& row, bool narrow) {
  if (narrow) {
    std::string text = fmt::format("{:<8} {:>6} {:>5} {:>6} {:>8.2f} ms {:>5.1f} % {:>9.2f} {:>7} {:>7}{}\n",
                                   Kind(row), row.depth, row.batch, row.tokens, row.Median() * 1e3,
                                   100 * row.Spread(), row.TokensPerSecond(), PercentText(ReadPercent(row)),
                                   PercentText(MultiplyAddPercent(row)), row.busy ? " BUSY" : "");
    text +=
        fmt::format("         weights {:.0f} MB, cache {:.1f} MB, {:.2f} G mul-add",
                    row.cost.weight_bytes / 1e6, row.cost.cache_bytes / 1e6, row.cost.multiply_adds / 1e9);
    if (row.Machine().read_bandwidth > 0)
      text += fmt::format("; {:.1f} GB/s", row.Machine().read_bandwidth / 1e9);
    if (row.Machine().multiply_adds > 0)
      text += fmt::format(", {:.0f} G/s", row.Machine().multiply_adds / 1e9);
    return text + "\n";
  }
  std::string text = fmt::format(
      "{:<8} {:>6} {:>5} {:>6} {:>8.2f} ms {:>5.1f} % {:>9.2f} {:>6.0f} MB {:>6.1f} MB {:>7} {:>9.2f} {:>7}",
      Kind(row), row.depth, row.batch, row.tokens, row.Median() * 1e3, 100 * row.Spread(),
      row.TokensPerSecond(), row.cost.weight_bytes / 1e6, row.cost.cache_bytes / 1e6,
      PercentText(ReadPercent(row)), row.cost.multiply_adds / 1e9, PercentText(MultiplyAddPercent(row)));
  if (row.Machine().read_bandwidth > 0) {
    text += fmt::format("   {:.1f}, {:.0f}", row.Machine().read_bandwidth / 1e9,
                        row.Machine().multiply_adds / 1e9);
  }
  return text + fmt::format("   {}{}\n", row.backend, row.busy ? "   BUSY" : "");
}

std::string ProfileText(const BenchRow& row, bool narrow) {
  std::vector<diag::OpTime> ops = row.ops;
  std::ranges::sort(ops, [](const diag::OpTime& a, const diag::OpTime& b) { return a.seconds > b.seconds; });
  const auto steps = static_cast<double>(row.profiled_steps);
  double total = 0;
  for (const diag::OpTime& op : ops) total += op.seconds;
  // Narrow: op and detail share a column, or have a line of their own.
  const auto named = [narrow](const std::string& op, const std::string& detail) {
    if (!narrow) return fmt::format("    {:<18} {:<36}", op, detail);
    const std::string name = detail.empty() ? op : op + " " + detail;
    return name.size() <= 38 ? fmt::format("  {:<38}", name) : fmt::format("  {}\n{:40}", name, "");
  };
  std::string text = named("op", "") + fmt::format(" {:>6} {:>11} {:>7}", "calls", "time", "share");
  text += narrow ? fmt::format(" {:>9}\n", "of bound")
                 : fmt::format(" {:>9} {:>9} {:>9}\n", "reads", "G mul-add", "of bound");
  const auto add = [&](const diag::OpTime& op) {
    text += named(op.op, op.detail) + fmt::format(" {:>6.0f} {:>8.3f} ms {:>5.1f} %",
                                                  static_cast<double>(op.calls) / steps,
                                                  op.seconds / steps * 1e3, Percent(op.seconds, total));
    if (!narrow)
      text += fmt::format(" {:>6.1f} MB {:>9.3f}", op.cost.bytes() / steps / 1e6,
                          op.cost.multiply_adds / steps / 1e9);
    text += fmt::format(" {:>9}\n", PercentText(Percent(BoundSeconds(op.cost, row.Machine()), op.seconds)));
  };
  diag::OpTime rest = {.op = "others"};
  int64_t num_small = 0;
  for (const diag::OpTime& op : ops) {
    if (op.seconds >= kSmallShare * total) {
      add(op);
      continue;
    }
    rest += op;
    ++num_small;
  }
  if (num_small > 0) {
    rest.detail = fmt::format("{} below {:g} % each", num_small, 100 * kSmallShare);
    add(rest);
  }
  text += named("all ops", "") + fmt::format(" {:>6} {:>8.3f} ms, {:.1f} % of {}\n", "", total / steps * 1e3,
                                             Percent(total / steps, row.Median()),
                                             narrow ? "a step" : "the median step");
  return text;
}

std::string KernelsText(const BenchReport& report) {
  std::string text = "calls  op and shapes: kernel (why)\n";
  for (const BenchKernel& k : report.kernels) {
    text += k.kernel.empty() ? fmt::format("{:>5}  {}: fused ({})\n", k.count, k.op, k.reason)
                             : fmt::format("{:>5}  {}: {} ({})\n", k.count, k.op, k.kernel, k.reason);
  }
  return text;
}

std::string FooterText(const BenchReport& report, bool narrow) {
  std::string text;
  if (report.experts.has_value()) text += ExpertsText(*report.experts);
  if (report.verified.has_value()) text += "experts  " + report.verified->text + "\n";
  for (const BenchSummary& line : Summarize(report)) {
    // Narrow: a bound has a line of its own.
    text += fmt::format("{:<{}} {:>7.2f} {}{}{}\n", line.what, narrow ? 40 : 64, line.value, line.unit,
                        line.bound > 0 ? fmt::format(",{}by bytes alone {:.2f}",
                                                     narrow ? "\n" + std::string(49, ' ') : " ", line.bound)
                                       : "",
                        line.busy ? ", BUSY" : "");
  }
  const BenchMemory& memory = report.memory;
  text += fmt::format(
      "memory   peak {:.1f} MB = {:.3f} x the weights' {:.1f} MB{}with the largest row's {:.1f} MB of "
      "cache\n",
      static_cast<double>(memory.peak_bytes) / 1e6,
      static_cast<double>(memory.peak_bytes - memory.states_bytes) /
          static_cast<double>(memory.weights_bytes),
      static_cast<double>(memory.weights_bytes) / 1e6, narrow ? "\n         " : " ",
      static_cast<double>(memory.states_bytes) / 1e6);
  if (memory.device_bytes > 0) {
    text += fmt::format("memory   GPU {:.2f} GB with its context, {:.1f} % of the {:.2f} GB planned\n",
                        static_cast<double>(memory.device_bytes) / 1e9,
                        100.0 * static_cast<double>(memory.device_bytes) /
                            static_cast<double>(std::max<int64_t>(memory.planned_bytes, 1)),
                        static_cast<double>(memory.planned_bytes) / 1e9);
  }
  if (memory.host_planned_bytes > 0) {
    text += fmt::format(
        "memory   host {:.2f} GB less available at most, {:.1f} % of the {:.2f} GB planned\n",
        static_cast<double>(memory.host_bytes) / 1e9,
        100.0 * static_cast<double>(memory.host_bytes) / static_cast<double>(memory.host_planned_bytes),
        static_cast<double>(memory.host_planned_bytes) / 1e9);
  }
  return text;
}

Json ToJson(const BenchReport& report) {
  Json json = {{"model", report.model},
               {"layers", report.num_layers},
               {"numerics", report.numerics},
               {"backends", report.backends},
               {"threads", report.num_threads}};
  if (report.loopback_ranks > 0) json["loopback_ranks"] = report.loopback_ranks;
  json["checks"] = report.checks.empty() ? Json("UNCHECKED") : Json::array();
  for (const BenchCheck& check : report.checks) {
    json["checks"].push_back({{"backend", check.backend},
                              {"layers", check.layers},
                              {"prefill_tokens", check.prefill_tokens},
                              {"depth", check.depth},
                              {"worst_cosine", check.worst_cosine},
                              {"worst_error", check.worst_error},
                              {"seconds", check.seconds}});
  }
  json["rows"] = Json::array();
  for (const BenchRow& row : report.rows) json["rows"].push_back(RowJson(row));
  if (!report.kernels.empty()) json["kernels"] = Json::array();
  for (const BenchKernel& k : report.kernels) {
    json["kernels"].push_back({{"op", k.op},
                               {"kernel", k.kernel},
                               {"fused", k.kernel.empty()},
                               {"reason", k.reason},
                               {"calls", k.count}});
  }
  json["summary"] = Json::array();
  for (const BenchSummary& line : Summarize(report)) {
    json["summary"].push_back({{"what", line.what},
                               {"value", line.value},
                               {"unit", line.unit},
                               {"bound", line.bound},
                               {"busy", line.busy}});
  }
  if (report.experts.has_value()) {
    const BenchExperts& experts = *report.experts;
    json["experts"] = {{"split", model::ToString(experts.split)},
                       {"expert_bytes", experts.expert_bytes},
                       {"host_bytes_per_token", experts.HostBytes(1)},
                       {"cached_bytes_per_token", experts.CachedBytes(1)},
                       {"bytes_per_token", experts.AllBytes(1)},
                       {"host_bytes_per_second", experts.rates.host},
                       {"host_bytes_per_second_beside", experts.rates.host_beside},
                       {"link_bytes_per_second", experts.rates.link},
                       {"link_bytes_per_second_beside", experts.rates.link_beside}};
    if (report.verified.has_value()) {
      const model::TrialVerdict& verdict = report.verified->verdict;
      json["experts"]["verified"] = {
          {"as_planned", verdict.as_planned},        {"step_seconds", verdict.seen},
          {"planned_seconds", verdict.planned},      {"host_experts", verdict.asked.host},
          {"brought_experts", verdict.asked.missed}, {"loads", report.verified->num_loads}};
    }
  }
  json["memory"] = {{"peak_bytes", report.memory.peak_bytes},
                    {"weights_bytes", report.memory.weights_bytes},
                    {"states_bytes", report.memory.states_bytes}};
  return json;
}

}  // namespace dsv4::apps
